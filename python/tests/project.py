"""A project of a user's: files in a folder, workers started by command lines, scripts that are its producers."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bed import PACKAGE
from servers import PATIENCE, RedisServer, wait_for

# What tasks of every project can call to say what happened.
NOTES = """
import json, os, time, redis
store = redis.Redis.from_url({store!r})

def note(what, **more):
    store.rpush("events", json.dumps({{"what": what, "at": time.time(), "pid": os.getpid(), **more}}))
"""


class Project:
    """Use: `project.write({path: text})`, `project.start(command)`, `project.ask(source, value)`, `project.events()`.

    The server is its own; the store is in db 3, as in 0.1.0's README.
    """

    def __init__(self, server: RedisServer, folder: Path, *, python: str = sys.executable) -> None:
        self.server = server
        self.folder = folder
        self.python = python
        self.store = server.client(3, decode_responses=True)
        self.broker = server.client(0, decode_responses=True)
        self.notes = server.client(2, decode_responses=True)
        self.started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def __enter__(self) -> Project:
        for client in (self.store, self.broker, self.server.client(1), self.notes):
            client.flushdb()
        self.write({"notes.py": NOTES.format(store=self.server.url(2))})
        return self

    def __exit__(self, *_: object) -> None:
        for process, _log in self.started:
            self.kill(process)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """With its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def write(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(self.python).parent), os.environ["PATH"]])
        return {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{PACKAGE}",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Starts a worker as in a shell in the project's folder, and waits until it is ready."""
        path = self.folder / f"worker{len(self.started) + 1}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append((process, path))

        def ready() -> bool:
            """The worker is ready."""
            assert process.poll() is None, path.read_text(errors="replace")
            return " ready." in path.read_text(errors="replace")

        wait_for(ready)
        return process

    def run(self, source: str) -> str:
        """Runs a script in the project; answers what it prints."""
        done = subprocess.run(
            [self.python, "-c", source],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{source}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def ask(self, source: str, answer: str) -> Any:
        """Runs a script in the project; answers the value of an expression after it, as JSON has it."""
        return json.loads(self.run(f"{source}\nimport json\nprint(json.dumps({answer}))").splitlines()[-1])

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        """What has been noted, in order."""
        events = [json.loads(event) for event in self.notes.lrange("events", 0, -1)]
        return [event for event in events if what is None or event["what"] == what]

    def wait_for_events(self, what: str, number: int, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        try:
            wait_for(lambda: len(self.events(what)) >= number, seconds)
        except AssertionError:
            raise AssertionError(f"{number} x {what!r} within {seconds} s: {self.events()}\n{self.logs()}") from None
        return self.events(what)

    def drained(self, name: str = "files", seconds: float = PATIENCE) -> None:
        """Waits until a queue holds nothing: not queued, not leased, not delayed."""
        keys = [f"vtrr:{name}:{key}" for key in ("queue", "waiting", "lease", "delayed")]
        try:
            wait_for(lambda: not self.store.exists(*keys), seconds)
        except AssertionError:
            raise AssertionError(f"{self.store.keys()} after {seconds} s; {self.events()}\n{self.logs()}") from None

    def log(self) -> str:
        """All that the workers have said."""
        return "".join(path.read_text(errors="replace") for _, path in self.started)

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for _, path in self.started)

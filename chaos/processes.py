"""The workers and producers under test, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from servers import wait_for

from . import ROOT

RUST = ROOT / "target/debug/vtrr-chaos"


def command(kind: str, role: str, concurrency: int) -> list[str]:
    if kind == "rust":
        return [str(RUST), role]
    if role == "produce":
        return [sys.executable, "-m", "chaos.produce"]
    pool = "prefork" if kind == "celery" else kind.removeprefix("celery ")
    words = ["-m", "celery", "-A", "chaos.app", "worker", "-Q", "vtrr_queue", "-P", pool, "-c", str(concurrency)]
    return [sys.executable, *words, "-l", "info", "--without-gossip", "--without-mingle"]


class Process:
    """A worker or a producer in a process group of its own."""

    def __init__(self, name: str, folder: Path, words: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.ledger = folder / f"{name}.ledger"
        self.log = folder / f"{name}.log"
        if words[0] == sys.executable and "worker" in words:
            words = [*words, "-n", f"{name}@%h"]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "CHAOS_LEDGER": str(self.ledger), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def ready(self, seconds: float = 60) -> None:
        def is_ready() -> bool:
            assert self.is_alive, f"{self.name} ended: {self.tail()}"
            return self.ledger.exists() and any(line.startswith("ready ") for line in self.ledger.read_text().splitlines()[:50])

        wait_for(is_ready, seconds, 0.02)

    def children(self) -> list[int]:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
            return [int(pid) for pid in text.split()]
        return []

    def group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def send(self, number: int) -> None:
        """To the main process."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """As the kernel does it when memory is full."""
        self.group(signal.SIGKILL)
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM, seconds: float = 120) -> int | None:
        """Answers the exit code; None if it did not end. Celery 5.7 now and then takes 30 s for it: where a message arrives
        as it stops, a process of its pool waits for so long to see its last result read."""
        self.send(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


def pause(pid: int, seconds: float) -> None:
    """SIGSTOP, and SIGCONT later."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)

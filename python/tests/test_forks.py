"""A worker's main process forks only while none of our threads holds a lock of the Redis client."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from bed import PACKAGE
from servers import wait_for
from vtrr_queue import forks, keeper
from vtrr_queue.worker import Sweeper

SOURCE = """
import os, sys, threading, time
from vtrr_queue import forks

forks.watch()
lock = threading.Lock()  # as in a pool of connections
inside = threading.Event()

def command(seconds):
    with forks.quiet(), lock:
        inside.set()
        time.sleep(seconds)

threading.Thread(target=command, args=(float(sys.argv[1]),), daemon=True).start()
inside.wait()
begin = time.monotonic()
child = os.fork()
if child == 0:
    with forks.quiet():
        os._exit(0 if lock.acquire(timeout=0.5) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), time.monotonic() - begin)
with forks.quiet():
    pass
"""


def fork(seconds: float) -> tuple[int, float]:
    """Forks while a thread has a lock for so many seconds; answers whether the child could not have it, and how long it took."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    words = [sys.executable, "-W", "ignore", "-c", SOURCE, str(seconds)]
    code, took = subprocess.run(words, env=env, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    return int(code), float(took)


def test_a_fork_waits_for_a_command() -> None:
    code, took = fork(0.4)
    assert code == 0
    assert took >= 0.3


def test_a_fork_does_not_wait_for_a_server_that_hangs() -> None:
    _, took = fork(30)
    assert took < 15


class Busy:
    """A queue that notes for each command whether a fork would wait for it."""

    def __init__(self) -> None:
        self.lease = 1.0
        self.name = "busy"
        self.vtrr = self
        self.vtrr_owner = "owner"
        self.time_start = 1.0
        self._core = SimpleNamespace(extend_owner=lambda owner, lease: "extend")
        self.seen: dict[str, int] = {}

    def _run(self, command: str) -> None:
        self.seen[command] = forks._busy


def test_all_commands_of_the_main_process_are_waited_for() -> None:
    busy: Any = Busy()
    keepers = keeper._Keeper()
    keepers.register(busy)
    assert keepers.post("test", busy, "post").wait(10)
    wait_for(lambda: "extend" in busy.seen)
    Sweeper(busy, None).run_command("sweep")
    assert set(busy.seen) == {"post", "extend", "sweep"}
    assert min(busy.seen.values()) >= 1

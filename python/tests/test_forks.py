"""A worker's main process forks only while none of our threads holds a lock of the Redis client."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from bed import PACKAGE
from servers import PATIENCE, wait_for
from vtrr_queue import forks, keeper
from vtrr_queue.worker import Sweeper

SOURCE = """
import os, sys, threading, time
from vtrr_queue import forks

forks.watch()
forks.WAIT_SECONDS = float(sys.argv[2])
lock = threading.Lock()  # as in a pool of connections
inside = threading.Event()
ended = []

def command(seconds):
    with forks.quiet(), lock:
        inside.set()
        time.sleep(seconds)
        ended.append(True)

threading.Thread(target=command, args=(float(sys.argv[1]),), daemon=True).start()
inside.wait()
child = os.fork()
has_ended = bool(ended)
if child == 0:
    with forks.quiet():
        os._exit(0 if lock.acquire(timeout=0.5) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(has_ended))
with forks.quiet():
    pass
"""


def fork(seconds: float, wait: float = forks.WAIT_SECONDS) -> tuple[bool, bool]:
    """Forks while a thread has a lock for so many seconds; answers whether the child could have it, and whether the
    fork came after that."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    words = [sys.executable, "-W", "ignore", "-c", SOURCE, str(seconds), str(wait)]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True, timeout=PATIENCE)
    code, has_ended = done.stdout.split()
    return code == "0", has_ended == "1"


def test_a_fork_waits_for_a_command() -> None:
    assert fork(0.4, PATIENCE) == (True, True)


def test_a_fork_does_not_wait_for_a_server_that_hangs() -> None:
    _, has_ended = fork(600)
    assert not has_ended


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
    assert keepers.post("test", busy, "post").wait(PATIENCE)
    wait_for(lambda: "extend" in busy.seen)
    Sweeper(busy, None).run_command("sweep")
    assert set(busy.seen) == {"post", "extend", "sweep"}
    assert min(busy.seen.values()) >= 1

"""Workers inside a process that goes on after them, as fixtures of a user's own tests start them: nothing of ours stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bed import PACKAGE, Bed

TASKS = """
@vtrr.task
def job(self, n):
    return n + 1
"""

# Ten workers, one after the other. What is left of each is waited for, so that none can hide behind the next.
SCRIPT = """
import json, os, threading, time
import MODULE as module
from celery.contrib.testing.worker import start_worker

def ours():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("vtrr"))

def listeners():
    return dict(module.store.pubsub_numsub(module.vtrr._core.wake_channel)).popitem()[1]

seen, got, left = set(), [], []
queues = [module.vtrr.celery_queue]
for n in range(10):
    with start_worker(module.app, pool="POOL", perform_ping_check=False, queues=queues, shutdown_timeout=60):
        results = module.job.queue("u", [{"args": [n]}, {"args": [n]}])
        got.append([result.get(timeout=30) for result in results])
        end = time.monotonic() + 30
        while not listeners() and time.monotonic() < end:
            time.sleep(0.02)
        seen.update(ours())
    end = time.monotonic() + 30
    while (ours() or listeners()) and time.monotonic() < end:
        time.sleep(0.02)
    left.append([ours(), listeners(), os.path.exists("HEALTH")])
    if ours():
        break
print(json.dumps([sorted(seen), got, left]))
"""


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_worker_inside_a_process_leaves_no_thread_of_ours(bed: Bed, tmp_path: Path, pool: str) -> None:
    health = tmp_path / "health"
    bed.load(TASKS, sweep_interval=0.5, health_file=str(health))
    script = SCRIPT.replace("MODULE", bed.name)
    said = run(bed, script.replace("POOL", pool).replace("HEALTH", str(health)))
    seen, got, left = said
    assert left == [[[], 0, False]] * 10
    assert got == [[n + 1, n + 1] for n in range(10)]
    # These do live beside a worker.
    assert {f"vtrr-sweep-{bed.name}", f"vtrr-tell-{bed.name}", "vtrr-extend_leases", "vtrr-work"} <= set(seen)


def run(bed: Bed, script: str) -> Any:
    path = os.pathsep.join([str(bed.folder), str(PACKAGE)])
    words = [sys.executable, "-c", script]
    done = subprocess.run(
        words, cwd=bed.folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])

"""Short tasks are taken several at once; what is taken never waits for, nor suffers from, a neighbour."""

from __future__ import annotations

from collections import Counter

import pytest
from billiard.exceptions import WorkerLostError

from bed import Bed
from servers import wait_for

TASKS = """
import signal
from types import SimpleNamespace
from vtrr_queue import hand, ticket

seconds = float(os.environ.get("SECONDS", 0))
if seconds:
    # A clock by which each task takes so long, whatever the machine does beside it.
    clock = [0.0]
    ticket.time = hand.time = SimpleNamespace(monotonic=lambda: clock[0])

@vtrr.task
def short(self, n):
    note("end", self, n=n)
    if seconds:
        clock[0] += seconds

@vtrr.task
def long(self):
    note("start", self)
    gates.blpop("gate:" + NAME, timeout=600)
    note("end", self)

@vtrr.task
def poison(self):
    note("start", self)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def shorts(app: object, first: int, n: int) -> None:
    app.short.queue("a", [{"args": [i]} for i in range(first, first + n)])  # type: ignore[attr-defined]


def calls(bed: Bed, seconds: float) -> int:
    """How many calls of scripts 2000 tasks cost that take so long each by the worker's clock."""
    app = bed.load(TASKS, sweep_interval=600)
    shorts(app, 0, 2000)
    bed.store.config_resetstat()
    bed.worker(concurrency=1, env={"SECONDS": str(seconds)})
    bed.drained()
    assert [event["n"] for event in bed.events("end")] == list(range(2000))
    return int(bed.store.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_many_short_tasks_cost_few_calls(bed: Bed) -> None:
    assert calls(bed, 0.004) < 1000


def test_tasks_that_are_not_short_are_taken_one_by_one(bed: Bed) -> None:
    assert calls(bed, 0.006) >= 2000


def test_a_long_task_does_not_hold_up_those_taken_with_it(bed: Bed) -> None:
    app = bed.load(TASKS, max_concurrency=2)
    shorts(app, 0, 100)
    app.long.queue("a", [{}])
    shorts(app, 100, 100)
    bed.worker(concurrency=2)
    wait_for(lambda: bed.events("start"))
    wait_for(lambda: len([event for event in bed.events("end") if "n" in event]) == 200)
    assert not [event for event in bed.events("end") if event["task"].endswith("long")], "the long one should still run"
    # What had ended beside it is stored, and only the long one is leased.
    wait_for(lambda: bed.state() == {"queued": 0, "leased": 1, "delayed": 0, "dead": 0})
    bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()
    assert max(Counter(event["n"] for event in bed.events("end") if "n" in event).values()) == 1


def test_a_task_that_kills_its_worker_takes_no_other_with_it(bed: Bed) -> None:
    app = bed.load(TASKS, max_deliveries=3)
    shorts(app, 0, 100)
    (poisoned,) = app.poison.queue("a", [{"id": "poison"}])
    shorts(app, 100, 100)
    bed.worker(concurrency=1)
    bed.drained()
    (letter,) = app.vtrr.dead_letters()
    assert letter.id == "poison"
    assert "poison" in letter.error
    assert "worker lost" in letter.error
    assert len(bed.events("start")) == 3
    # Whoever waits for its result is told.
    with pytest.raises(WorkerLostError, match="poison"):
        poisoned.get(timeout=120)
    runs = Counter(event["n"] for event in bed.events("end"))
    assert set(runs) == set(range(200))
    assert max(runs.values()) <= 2, "only what ended just before may have to be run again"

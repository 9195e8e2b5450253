"""Tasks that give themselves back, and what `redelivered` says: in real workers, beside plain Celery."""

from __future__ import annotations

import pytest

from bed import POOLS, Bed, ends, starts
from servers import wait_for
from vtrr_queue import InvalidArgument

TASKS = """
from celery import Task
from celery.exceptions import Reject

@vtrr.task
def greedy(self):
    note("greedy", self)
    if not store.exists("open:" + NAME):
        raise Reject("not yet", requeue=True)

class Stubborn(Task):
    def before_start(self, *_):
        note("greedy", self)
        if not store.exists("open:" + NAME):
            raise Reject("not yet", requeue=True)

@vtrr.task(base=Stubborn)
def hooked(self):
    pass

@vtrr.task
def good(self):
    note("end", self)

def seen(self):
    return (self.request.delivery_info or {}).get("redelivered")

@vtrr.task(max_retries=3)
def job(self, n, ask=False):
    note("start", self, n=n, redelivered=seen(self))
    if ask and not self.request.retries:
        raise self.retry(countdown=0)
    note("end", self, n=n)
    return n

@vtrr.task
def holds(self):
    note("start", self, redelivered=seen(self))
    gates.blpop("gate:" + NAME, timeout=600)
    note("end", self)
"""


@pytest.mark.parametrize("task", ["greedy", "hooked"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_gives_itself_back_for_ever_starves_nobody(bed: Bed, pool: str, task: str) -> None:
    app = bed.load(TASKS, sweep_interval=1)
    bed.worker(pool, concurrency=1)
    getattr(app, task).queue("A", [{}])
    wait_for(lambda: len(bed.events("greedy")) > 3)
    app.good.queue("B", [{} for _ in range(10)])
    wait_for(lambda: len(ends(bed)) == 10)
    # What A got while B had work: as much as B, and what began before B came or after it was done.
    order = [event["what"] for event in bed.events()]
    first = order.index("end")
    last = len(order) - 1 - order[::-1].index("end")
    between = order[first:last].count("greedy")
    assert between <= 10 + 2, f"A ran {between} times while B's 10 tasks were done"
    bed.store.set(f"open:{bed.name}", 1)
    bed.drained()


def test_a_retry_and_what_a_burst_gave_back_are_not_redelivered(bed: Bed) -> None:
    """With deduplication Celery skips what is redelivered if its id has a success: ids may be used again."""
    conf = {"task_acks_late": True, "worker_deduplicate_successful_tasks": True}
    app = bed.load(TASKS, sweep_interval=1, conf=conf)
    bed.worker(concurrency=2)
    ids = [f"t{n}" for n in range(100)]
    for turn in range(3):
        app.job.queue("u", [{"id": id, "args": [turn, turn == 1]} for id in ids])
        if turn == 2:
            # One that takes long, in the middle of a burst: those behind it go back unrun.
            app.holds.queue("u", [{"id": "holds"}])
            app.job.queue("u", [{"id": id, "args": [3]} for id in ("after1", "after2")])
            wait_for(lambda: starts(bed, "holds"))
            bed.store.lpush(f"gate:{bed.name}", "go")
        bed.drained()
        done = [event["id"] for event in bed.events("end") if event.get("n") == turn]
        assert sorted(done) == sorted(ids), f"turn {turn}"
    assert {event["redelivered"] for event in bed.events("start")} == {False}


@pytest.mark.parametrize("pool", POOLS)
def test_what_was_lost_in_mid_run_is_redelivered(bed: Bed, pool: str) -> None:
    app = bed.load(TASKS, sweep_interval=1, lease=2)
    bed.worker(pool, concurrency=1)
    app.holds.queue("u", [{"id": "t"}])
    wait_for(lambda: starts(bed, "t"))
    bed.workers[0].kill()
    bed.worker(concurrency=1)
    wait_for(lambda: len(starts(bed, "t")) == 2)
    bed.store.lpush(f"gate:{bed.name}", "go", "go")
    bed.drained()
    assert [event["redelivered"] for event in starts(bed, "t")] == [False, True]


@pytest.mark.parametrize("seconds", [4e8, 1e300, -1.0, float("nan")])
@pytest.mark.parametrize("outcome", ["release", "ran", "stopped", "lost", "unknown", "retry"])
def test_a_delay_that_is_not_from_0_s_to_ten_years_is_refused(bed: Bed, outcome: str, seconds: float) -> None:
    app = bed.load(TASKS)
    with pytest.raises(InvalidArgument, match=r"^delay must be from 0 (s|ms) to 10 years, not "):
        app.vtrr._core.settle([("t", "1-1", outcome, seconds, None)])

"""Shutdowns: warm ones end what runs, cold ones give it back at once; what waits is run after a restart."""

from __future__ import annotations

import signal
import time

import celery
import pytest

from bed import GATED, WORK, Bed, ends, starts
from servers import wait_for

TASKS = (
    WORK
    + GATED
    + '''
@vtrr.task
def first_time_long(self, seconds=60):
    """Long, until it is given to a second worker."""
    redelivered = self.request.delivery_info["redelivered"]
    note("start", self)
    time.sleep(0 if redelivered else seconds)
    note("end", self)

@vtrr.task
def retried(self):
    note("start", self)
    if not self.request.retries:
        raise self.retry(countdown=6)
    note("end", self)
'''
)


def shut_down_cold(bed: Bed, pool: str, concurrency: int) -> None:
    """While t0 runs; then another worker takes over."""
    worker = bed.worker(pool, concurrency)
    wait_for(lambda: starts(bed, "t0"))
    worker.signal(signal.SIGQUIT)
    worker.ended()
    bed.worker(pool, concurrency)
    bed.drained()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_warm_shutdown_ends_what_runs(bed: Bed, pool: str) -> None:
    """C21 (a)."""
    # No burst, in which a ticket whose task was short takes another one.
    app = bed.load(TASKS, lease=600, sweep_interval=1, burst=0)
    app.gated.queue("u", [{"id": f"t{i}"} for i in range(4)])
    worker = bed.worker(pool, 1)
    wait_for(lambda: starts(bed, "t0"))
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "Warm shutdown" in worker.log())
    if pool == "prefork":
        # Its event loop sees that at its next turn, and until then hands on what it has. Then it lets go of the sweep's channel.
        wait_for(lambda: not bed.store.pubsub_numsub(app.vtrr._core.wake_channel)[0][1])
    bed.store.rpush(f"gate:{bed.name}", 1)
    assert worker.ended() == 0
    assert sorted(ends(bed)) == [event["id"] for event in bed.events("start")] == ["t0"]
    assert bed.state() == {"queued": 3, "leased": 0, "delayed": 0, "dead": 0}
    bed.store.rpush(f"gate:{bed.name}", 1, 1, 1)
    bed.worker(pool, 1)
    bed.drained()
    assert sorted(ends(bed)) == ["t0", "t1", "t2", "t3"]


def test_a_cold_shutdown_gives_back_what_runs(bed: Bed) -> None:
    """C21 (b): at once, long before its lease has run out."""
    app = bed.load(TASKS, lease=600, sweep_interval=1)
    app.first_time_long.queue("u", [{"id": "t0"}])
    app.work.queue("u", [{"id": "t1"}])
    shut_down_cold(bed, "prefork", 1)
    assert sorted(ends(bed)) == ["t0", "t1"]
    assert len(starts(bed, "t0")) == 2
    assert app.vtrr.stats().dead == 0


def test_a_cold_shutdown_of_greenlets(bed: Bed) -> None:
    """C21 (b): they end with the process, which then gives back what they had."""
    app = bed.load(TASKS, lease=600, sweep_interval=1)
    app.first_time_long.queue("u", [{"id": "t0"}])
    shut_down_cold(bed, "gevent", 2)
    assert sorted(ends(bed)) == ["t0"]
    assert app.vtrr.stats().dead == 0


def test_a_cold_shutdown_of_the_solo_pool(bed: Bed) -> None:
    """C21 (b): up to Celery 5.4 it interrupts what runs, from 5.5 on it waits for its end. Lost is nothing either way."""
    app = bed.load(TASKS, lease=600, sweep_interval=1)
    app.first_time_long.queue("u", [{"id": "t0", "args": [3]}])
    app.work.queue("u", [{"id": "t1"}])
    shut_down_cold(bed, "solo", 1)
    assert sorted(ends(bed)) == ["t0", "t1"]
    assert app.vtrr.stats().dead == 0


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery before 5.5 heeds no second signal while it waits for its processes")
def test_a_second_interrupt_is_a_cold_shutdown(bed: Bed) -> None:
    """C21 (b): Ctrl-C twice."""
    app = bed.load(TASKS, lease=600, sweep_interval=1)
    app.first_time_long.queue("u", [{"id": "t0"}])
    worker = bed.worker(concurrency=1)
    wait_for(lambda: starts(bed, "t0"))
    worker.signal(signal.SIGINT)
    wait_for(lambda: "Warm shutdown" in worker.log())
    time.sleep(1)  # two of a kind may be delivered as one
    worker.signal(signal.SIGINT)
    worker.ended()
    bed.worker(concurrency=1)
    bed.drained()
    assert sorted(ends(bed)) == ["t0"]


def test_a_shutdown_while_a_retry_waits(bed: Bed) -> None:
    """C21 (c): its delay is the queue's, not a worker's."""
    app = bed.load(TASKS, lease=600, sweep_interval=1)
    app.retried.queue("u", [{"id": "t0"}])
    worker = bed.worker(concurrency=1)
    wait_for(lambda: bed.state()["delayed"] == 1)
    assert worker.stop() == 0
    bed.worker(concurrency=1)
    bed.drained()
    assert sorted(ends(bed)) == ["t0"]
    assert [event["retries"] for event in starts(bed, "t0")] == [0, 1]

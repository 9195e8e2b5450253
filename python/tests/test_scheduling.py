"""Tickets: how many there are, that they are disposable, and that their ways are not the users' tasks' ways."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import states

from bed import GATED, WORK, Bed, ends, waiting_tickets
from servers import wait_for
from vtrr_queue import tickets

TASKS = (
    WORK
    + GATED
    + """
@vtrr.task
def other(self):
    note("end", self)

@app.task
def plain():
    return "plain"
"""
)


def test_as_many_tickets_as_tasks_but_no_more_than_max_concurrency(bed: Bed) -> None:
    """C22: max_concurrency is about tickets that wait in the broker."""
    app = bed.load(TASKS, max_concurrency=3)
    app.work.queue("u", [{}])
    assert waiting_tickets(bed) == 1
    app.work.queue("v", [{} for _ in range(10)])
    assert waiting_tickets(bed) == 3
    app.work.queue("w", [{} for _ in range(10)])
    assert waiting_tickets(bed) == 3


def test_duplicates_get_no_tickets(bed: Bed) -> None:
    app = bed.load(TASKS, max_concurrency=10)
    app.work.queue("u", [{"id": "x"}])
    app.work.queue("u", [{"id": "x"}, {"id": "x"}, {"id": "y"}])
    assert waiting_tickets(bed) == 2


def test_a_revoked_ticket_takes_no_task_with_it(bed: Bed) -> None:
    """C14: the task runs, in another ticket."""
    app = bed.load(TASKS, conf={"worker_prefetch_multiplier": 1}, burst=0, sweep_interval=1)
    worker = bed.worker(concurrency=1)
    app.gated.queue("u", [{"id": "gate"}])
    wait_for(lambda: bed.events("start"))
    app.work.queue("v", [{"id": "x1"}, {"id": "x2"}])
    inspect = app.app.control.inspect(timeout=120, limit=1)

    def reserved() -> list[str]:
        return [request["id"] for requests in (inspect.reserved() or {}).values() for request in requests]

    ids = wait_for(reserved)
    app.app.control.revoke(ids, reply=True, timeout=120, limit=1)
    bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()
    assert sorted(ends(bed)) == ["gate", "x1", "x2"]
    wait_for(lambda: all(f"Discarding revoked task: vtrr.ticket[{id}]" in worker.log() for id in ids))


def test_a_cancelled_task_never_runs(bed: Bed) -> None:
    """C14: not by a worker that starts later either."""
    app = bed.load(TASKS, sweep_interval=1)
    cancelled, kept = app.work.queue("u", [{"id": "y1"}, {"id": "z1"}])
    cancelled.revoke()
    assert app.vtrr.cancel(["y1"]) == {"y1": "gone"}
    bed.worker(concurrency=1)
    kept.get(timeout=120)
    bed.drained()
    assert ends(bed) == ["z1"]
    assert cancelled.state == states.REVOKED


def test_two_workers_share_what_waits(bed: Bed) -> None:
    """C24: tickets that the first worker has prefetched do not keep tasks from the second one."""
    app = bed.load(TASKS, sweep_interval=1)
    bed.worker(concurrency=1)
    app.gated.queue("u", [{} for _ in range(8)])
    wait_for(lambda: bed.events("start"))
    bed.worker(concurrency=1)
    wait_for(lambda: len(bed.events("start")) == 2)
    assert len({event["pid"] for event in bed.events("start")}) == 2
    bed.store.rpush(f"gate:{bed.name}", *range(8))
    bed.drained()
    assert len(bed.events("start")) == len(ends(bed)) == 8


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sep": ":"},
        {"global_keyprefix": "prefix_"},
        {"priority_steps": [0, 3, 6, 9], "sep": "#", "global_keyprefix": "p_", "queue_order_strategy": "priority"},
    ],
)
def test_tickets_are_counted_as_the_broker_does(bed: Bed, options: dict[str, Any]) -> None:
    """C25: with priorities, another separator, a prefix of all keys."""
    app = bed.load(TASKS, conf={"broker_transport_options": options}, max_concurrency=4)
    assert tickets.count(app.app, bed.celery_queue) == 0
    tickets.publish(app.work, priority=3)
    tickets.publish(app.work, priority=9)
    assert tickets.count(app.app, bed.celery_queue) == 2
    app.work.queue("u", [{} for _ in range(10)])
    assert tickets.count(app.app, bed.celery_queue) == 4
    bed.worker(concurrency=1)
    bed.drained()
    assert len(ends(bed)) == 10


@pytest.mark.parametrize(
    "route",
    [
        {"queue": "nowhere"},
        {"routing_key": "no.where"},
        {"exchange": "nowhere", "exchange_type": "topic", "routing_key": "no.where"},
    ],
    ids=lambda route: "-".join(route),
)
def test_tickets_do_not_go_the_ways_of_tasks(bed: Bed, route: dict[str, str]) -> None:
    """Routes are for calls; tickets have a queue of their own. They are named as what they are."""
    conf = {"task_routes": {"*": route}, "task_default_priority": 5}
    app = bed.load(TASKS, conf=conf, sweep_interval=1)
    worker = bed.worker(concurrency=1)
    (result,) = app.work.queue("u", [{}])
    result.get(timeout=120)
    assert "Task vtrr.ticket[" in worker.log()
    assert bed.server.client(0).llen("nowhere") == 0


def test_a_worker_of_other_queues_does_not_sweep(bed: Bed) -> None:
    """It is not the one that has processes for what waits."""
    app = bed.load(TASKS, conf={"task_default_queue": "elsewhere"}, sweep_interval=0.5)
    bed.worker(queues="elsewhere")
    assert app.plain.delay().get(timeout=120) == "plain"
    bed.store.delete(app.vtrr._core.sweeper_key)
    time.sleep(2)
    assert not bed.store.exists(app.vtrr._core.sweeper_key)
    bed.worker()
    wait_for(lambda: bed.store.exists(app.vtrr._core.sweeper_key))


def test_a_worker_that_consumes_later_sweeps_from_then_on(bed: Bed) -> None:
    app = bed.load(TASKS, conf={"task_default_queue": "elsewhere"}, sweep_interval=0.5)
    bed.worker(queues="elsewhere")
    app.work.queue("u", [{}])
    bed.server.client(0).delete(bed.celery_queue)
    app.app.control.add_consumer(bed.celery_queue, reply=True, timeout=120, limit=1)
    bed.drained()
    assert len(ends(bed)) == 1


def test_one_worker_sweeps_at_a_time(bed: Bed) -> None:
    app = bed.load(TASKS, sweep_interval=2)
    for _ in range(2):
        bed.worker(concurrency=1)
    lock = app.vtrr._core.sweeper_key
    holder = wait_for(lambda: bed.store.get(lock))
    # It keeps the lock, of 6 s, for some turns, while the other one has turns too.
    for _ in range(4):
        wait_for(lambda: bed.store.pttl(lock) < 5000)
        wait_for(lambda: bed.store.pttl(lock) > 5000)
        assert bed.store.get(lock) == holder

"""Tickets stay few, also in workers that take all that there are (`worker_prefetch_multiplier=0`) and start none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from bed import GATED, WORK, Bed, ends, waiting_tickets
from servers import wait_for
from vtrr_queue import tickets

MOST = 4


def load(bed: Bed, conf: dict[str, Any] | None = None, **options: Any) -> ModuleType:
    options.setdefault("sweep_interval", 0.5)
    conf = {"worker_prefetch_multiplier": 0, **(conf or {})}
    return bed.load(WORK + GATED, conf=conf, max_concurrency=MOST, **options)


def held(app: ModuleType) -> int:
    """How many messages workers have received and not begun with."""
    name = next(iter(wait_for(lambda: app.app.control.ping(limit=1))[0]))
    reserved = wait_for(lambda: app.app.control.inspect(destination=[name]).reserved())
    return sum(map(len, reserved.values()))


def turns(app: ModuleType, number: int) -> None:
    """Waits for so many turns of the sweep: with each the key that says whose turn it is lives longer again."""
    key, seen = app.vtrr._core.sweeper_key, [0]
    left = [0]

    def passed() -> bool:
        now = app.store.pttl(key)
        seen[0] += now > left[0]
        left[0] = now
        return seen[0] >= number

    wait_for(passed, every=0.02)


@pytest.mark.parametrize(
    ("broker", "pool", "processes"),
    [
        ("redis", "prefork", 1),
        ("redis", "prefork", 2),
        ("redis", "threads", 1),
        ("redis", "gevent", 1),
        ("rabbitmq", "prefork", 1),
    ],
)
def test_outstanding_tickets_are_few_whatever_is_prefetched(
    bed: Bed, request: pytest.FixtureRequest, broker: str, pool: str, processes: int
) -> None:
    """Those in the broker, by its own count, are at most `max_concurrency`; a worker of few processes holds at most as many."""
    if broker == "rabbitmq":
        bed.broker = request.getfixturevalue("rabbitmq").url
    app = load(bed)
    bed.worker(pool, processes)
    app.gated.queue("u", [{}] * processes)
    wait_for(lambda: len(bed.events("start")) == processes)
    outstanding: Callable[[], int] = lambda: tickets.count(app.app, bed.celery_queue) + held(app)  # noqa: E731
    if broker == "redis":
        outstanding = lambda: waiting_tickets(bed) + len(bed.unacknowledged())  # noqa: E731
    app.work.queue("v", [{}] * 10)
    seen = []
    for _ in range(20):
        app.work.queue("w", [{}] * 2)
        seen.append(outstanding())
    turns(app, 10)
    seen.append(outstanding())
    holds = max(MOST, 4 * processes)
    # A producer and the sweep may count at the same moment, and both send.
    assert max(seen) <= holds + 2 * MOST, seen
    # With all greenlets busy gevent looks at no message, and leaves what both sent where it is.
    assert seen[-1] <= holds + (2 if pool == "gevent" else 1) * MOST, seen
    assert app.vtrr.stats().queued == 50
    for _ in range(processes):
        bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()
    assert len(ends(bed)) == 50 + processes
    wait_for(lambda: outstanding() == 0)


def test_a_worker_that_takes_all_tickets_leaves_others_enough(bed: Bed) -> None:
    """One is busy for long and takes every other ticket; whoever is free goes on all the same."""
    app = load(bed)
    bed.worker(concurrency=1)
    app.gated.queue("u", [{}])
    wait_for(lambda: bed.events("start"))
    bed.worker(concurrency=1)
    app.work.queue("v", [{"args": [0.01]} for _ in range(60)])
    wait_for(lambda: len(ends(bed)) == 60)
    bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()


def test_a_process_that_becomes_free_finds_its_tickets(bed: Bed) -> None:
    """What a worker throws away is what it does not need: of many long tasks as many run at once as there are processes."""
    app = load(bed, burst=0)
    bed.worker(concurrency=3)
    app.gated.queue("u", [{}] * 12)
    wait_for(lambda: len(bed.events("start")) == 3)
    turns(app, 5)
    for round in range(1, 4):
        for _ in range(3):
            bed.store.rpush(f"gate:{bed.name}", 1)
        wait_for(lambda: len(bed.events("start")) == 3 * round + 3)  # noqa: B023
    for _ in range(3):
        bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()


def test_the_sweep_stops_sending_where_nothing_moves(bed: Bed) -> None:
    """It sends more as long as tasks begin; where all are busy it looks again at its next turn."""
    app = load(bed, sweep_interval=3600)
    bed.worker(concurrency=1)
    app.gated.queue("u", [{}])
    wait_for(lambda: bed.events("start"))
    app.work.queue("v", [{}] * 10)
    sent = [-1]

    def quiet() -> bool:
        """No more tickets are sent."""
        sent.append(bed.server.client(0).info("commandstats")["cmdstat_lpush"]["calls"])
        return sent[-1] == sent[-2]

    wait_for(quiet, every=2.0)
    bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()


def test_a_worker_holds_few_tickets_where_tasks_are_under_limits(bed: Bed) -> None:
    """There each ticket is worth as many tasks as there are, and others come all the time."""
    app = load(bed, conf={"task_time_limit": 600}, sweep_interval=0.2)
    bed.worker("prefork", 2)
    app.work.queue("u", [{"kwargs": {"seconds": 0.01}} for _ in range(1000)])
    held_at_once = []
    while app.vtrr.stats().queued:
        turns(app, 5)
        held_at_once.append(held(app))
    # Beside those that wait for a process, two may be asking for a task, and two tasks may be on their way.
    assert max(held_at_once) <= 4 * 2 + 4
    bed.drained()
    assert len(ends(bed)) == 1000

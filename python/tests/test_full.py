"""Bounds on queued tasks: a call over one is refused whole, and nothing that comes back ever is."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bed import GATED, WORK, Bed, ends, waiting_tickets
from proxy import Proxy
from servers import wait_for
from vtrr_queue import IdConflict, QueueFull, VtrrError, VTRRQueue
from vtrr_queue.legacy import run_legacy

TASKS = (
    WORK
    + GATED
    + """
@vtrr.task(max_retries=1, default_retry_delay=0)
def again(self):
    note("start", self)
    if self.request.retries == 0:
        gates.blpop("gate:" + NAME, timeout=600)
        raise self.retry()
    note("end", self)
"""
)


def stored(bed: Bed) -> dict[bytes, bytes | None]:
    return {key: bed.store.dump(key) for key in bed.store.keys(bed.key("*"))}


@pytest.mark.parametrize("tagging", ["head", "all"])
def test_a_call_over_a_bound_stores_sends_and_charges_nothing(bed: Bed, tagging: str) -> None:
    app = bed.load(TASKS, tagging=tagging, max_queued=6, max_queued_per_partition=3, max_concurrency=100)
    with pytest.raises(QueueFull):
        app.work.queue("a", [{}] * 4)
    assert (stored(bed), waiting_tickets(bed)) == ({}, 0)
    results = app.work.queue("a", [{"id": "a0"}, {"id": "a1"}])
    before = stored(bed)
    with pytest.raises(
        QueueFull, match=r'^partition "a" is full: 2 queued and 2 to be added .* max_queued_per_partition, 3'
    ) as raised:
        app.work.queue("a", [{}, {"id": "a9"}])
    assert isinstance(raised.value, VtrrError)
    assert raised.value.bound == "max_queued_per_partition"
    assert not isinstance(raised.value, (ValueError, TypeError, IdConflict))
    unfinished = raised.value.unfinished  # type: ignore[attr-defined]
    assert (unfinished.stored, unfinished.ids[1]) == (0, "a9")
    assert (stored(bed), waiting_tickets(bed), app.vtrr.find("a9")) == (before, 2, None)
    # Others go on; what is queued already does not count twice.
    assert app.work.queue("a", [{"id": "a0"}, {"id": "a2"}]).duplicates == ["a0"]
    app.work.queue("b", [{}, {}])
    with pytest.raises(
        QueueFull, match=r'^the queue is full: 5 queued and 2 to be added to partition "c" .* max_queued, 6'
    ) as raised:
        app.work.queue("c", [{}, {}])
    assert raised.value.bound == "max_queued"
    app.work.queue("c", [{}])
    other = VTRRQueue(bed.store, app.app, name=f"{bed.name}other", celery_queue=f"{bed.name}o", max_queued=1)

    @other.task
    def work(self: Any) -> None: ...

    work.queue("a", [{}])
    assert (len(app.vtrr), waiting_tickets(bed)) == (6, 6)
    # What is taken out makes room.
    results[0].revoke()
    app.work.queue("a", [{}])


def test_what_comes_back_is_not_refused(bed: Bed) -> None:
    app = bed.load(TASKS, max_queued=2, sweep_interval=1)
    bed.worker(concurrency=1)
    (result,) = app.again.queue("u", [{"id": "again"}])
    wait_for(lambda: bed.events("start"))
    # One that runs does not count; the two that wait do.
    app.gated.queue("u", [{"id": "first"}, {"id": "second"}])
    with pytest.raises(QueueFull):
        app.work.queue("v", [{}])
    # A retry of 0.1.0 whose task nobody knows here becomes a task of the queue.
    run_legacy(app.work, "old", {"task_name": "nobody's", "args": [], "kwargs": {}}, {})
    assert (len(app.vtrr), app.vtrr.cancel(["old"])) == (3, {"old": "done"})
    # The retry is stored while both of them wait.
    bed.store.rpush(f"gate:{bed.name}", 1, 1, 1)
    bed.drained()
    assert sorted(ends(bed)) == ["again", "first", "second"]
    assert (result.get(timeout=120), app.vtrr.stats().totals["retried"]) == (None, 1)
    app.work.queue("v", [{}, {}])


CLIENTS = {"ours": Retry(NoBackoff(), 0), "client's": Retry(NoBackoff(), 3)}


@pytest.mark.parametrize("retry", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_lost_reply_of_a_call_that_fills_the_queue_changes_nothing(bed: Bed, nth: int, retry: Retry) -> None:
    """C07, at the bound: each piece is stored and charged once, and the second run of one is not refused for its first."""
    app = bed.load(TASKS, max_queued=2501, max_queued_per_partition=2500)
    tasks = [{"id": f"b{i:04}"} for i in range(2500)]

    def run() -> Any:
        app.work.queue("A", [{"id": "a"}])
        if app.vtrr.redis_client is not bed.store:
            app.vtrr.redis_client = redis.Redis(port=proxy.port, db=3, retry=retry)
            proxy.lose(nth)
        results = app.work.queue("B", tasks)
        assert ([it.id for it in results], results.duplicates) == ([task["id"] for task in tasks], [])
        with pytest.raises(QueueFull):
            app.work.queue("C", [{}])
        order = bed.store.zrange(bed.key("queue"), 0, -1, withscores=True)
        finish = bed.store.hgetall(bed.key("partition_virtual_time"))
        lane = [entry.split()[1] for entry in bed.store.lrange(bed.key("lane:=B"), 0, -1)]
        return order, finish, lane, bed.store.hgetall(bed.key("head")), app.vtrr.stats().totals

    app.vtrr.redis_client = bed.store
    expected = run()
    bed.store.delete(*bed.store.keys(bed.key("*")))
    with Proxy(bed.server.port) as proxy:
        app.vtrr.redis_client = redis.Redis(port=proxy.port, db=3, retry=retry)
        assert run() == expected
        assert proxy.lost == 1


def test_a_long_call_that_was_let_in_can_be_finished_when_the_queue_is_full(bed: Bed) -> None:
    app = bed.load(TASKS, max_queued=2500)
    with Proxy(bed.server.port) as proxy:
        app.vtrr.redis_client = redis.Redis(port=proxy.port, db=3, retry=Retry(NoBackoff(), 0))
        app.vtrr.stats()
        proxy.lose(2, then_dead=True)
        with pytest.raises(redis.ConnectionError) as raised:
            app.work.queue("B", [{} for _ in range(2500)])
        unfinished = raised.value.unfinished  # type: ignore[attr-defined]
        assert (unfinished.stored, bed.state()["queued"], waiting_tickets(bed)) == (1000, 2000, 0)
        proxy.dead = False
        # Others were let in meanwhile.
        app.work.queue("C", [{} for _ in range(500)])
        with pytest.raises(QueueFull):
            app.work.queue("C", [{}])
        results = app.work.queue("B", [{"id": id} for id in unfinished.ids], request=unfinished.request)
        assert ([it.id for it in results], results.duplicates) == (unfinished.ids, [])
        assert (bed.state()["queued"], app.vtrr.stats().totals) == (3000, {"enqueued": 3000})


def test_a_long_call_over_the_bound_stores_none_of_its_pieces(bed: Bed) -> None:
    app = bed.load(TASKS, max_queued=2499)
    with pytest.raises(QueueFull, match="0 queued and 2500 to be added") as raised:
        app.work.queue("B", [{} for _ in range(2500)])
    unfinished = raised.value.unfinished  # type: ignore[attr-defined]
    assert (unfinished.stored, len(unfinished.ids), stored(bed), waiting_tickets(bed)) == (0, 2500, {}, 0)
    # Nor if its first piece holds only what is queued already.
    first: list[dict[str, Any]] = [{"id": f"b{i}"} for i in range(1000)]
    app.work.queue("B", first)
    bed.server.client(0).delete(bed.celery_queue)
    with pytest.raises(QueueFull, match="1000 queued and 1500 to be added"):
        app.work.queue("B", first + [{} for _ in range(1500)])
    assert (len(app.vtrr), waiting_tickets(bed)) == (1000, 0)

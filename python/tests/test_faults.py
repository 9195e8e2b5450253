"""What goes wrong between a producer and Redis: nothing is stored twice, nothing half, and it can be repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bed import Bed
from proxy import Proxy
from servers import RedisServer, free_port
from vtrr_queue import tickets

TASKS = """
@vtrr.task
def work(self, *args): ...
"""

CLIENTS = {
    "no retries": {"retry": Retry(NoBackoff(), 0)},
    "client's retries": {"retry": Retry(NoBackoff(), 3), "retry_on_error": [redis.ConnectionError, redis.TimeoutError]},
    "default": {},
    "decoding": {"decode_responses": True},
}


@pytest.fixture(params=["head", "all"])
def app(bed: Bed, request: pytest.FixtureRequest) -> ModuleType:
    bed.store.flushall()
    return bed.load(TASKS, tagging=request.param)


@pytest.fixture
def proxy(bed: Bed) -> Iterator[Proxy]:
    with Proxy(bed.server.port) as proxy:
        yield proxy


def dequeue(app: Any, n: int, owner: str = "owner", settle: Any = ()) -> Any:
    options = {"lease": 30.0, "max_deliveries": 5, "settle": list(settle)}
    return app.vtrr._run(app.vtrr._core.dequeue(n, owner=owner, **options))


def dequeue_all(app: Any) -> list[str]:
    """The ids of all that is queued, in order."""
    return [it.id for owner in range(4) for it in dequeue(app, 1000, f"owner{owner}")[0]]


def state(bed: Bed) -> dict[str, Any]:
    """All that is stored, but for what differs from run to run: ids are given, times are not compared."""
    keys = sorted(key.decode() for key in bed.store.keys(bed.key("*")))
    stored: dict[str, Any] = {}
    for key in keys:
        name = key.removeprefix(bed.key(""))
        if name in ("queue", "idle"):
            stored[name] = bed.store.zrange(key, 0, -1, withscores=True)
        elif name in ("partition_virtual_time", "head"):
            stored[name] = bed.store.hgetall(key)
        elif name in ("task", "waiting"):
            stored[name] = sorted(bed.store.hkeys(key))
    return stored


@pytest.mark.parametrize("options", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_enqueue_whose_reply_is_lost_is_stored_and_charged_once(
    app: Any, bed: Bed, proxy: Proxy, options: Any, nth: int
) -> None:
    tasks = [{"id": f"b{i:04}"} for i in range(2500)]

    def run(lose: bool) -> Any:
        app.work.queue("A", [{"id": "a1"}, {"id": "a2"}])
        dequeue(app, 1)
        if lose:
            proxy.lose(nth)
        results = app.work.queue("B", tasks)
        assert ([result.id for result in results], results.duplicates) == ([task["id"] for task in tasks], [])
        return state(bed)

    expected = run(lose=False)
    order = dequeue_all(app)
    bed.store.flushall()
    app.vtrr.redis_client = redis.Redis(port=proxy.port, db=3, **options)
    assert run(lose=True) == expected
    assert proxy.lost == 1
    assert app.vtrr.stats().totals["enqueued"] == 2502
    assert dequeue_all(app) == order


@pytest.mark.parametrize("form", CLIENTS)
def test_a_dequeue_or_settle_whose_reply_is_lost_is_the_same_again(app: Any, proxy: Proxy, form: str) -> None:
    app.work.queue("A", [{"id": f"a{i}"} for i in range(4)])
    app.vtrr._run(app.vtrr._core.settle([("none", "1-1", "ack", 0.0, None)]))
    app.vtrr.redis_client = redis.Redis(port=proxy.port, db=3, **CLIENTS[form])
    (first,) = dequeue(app, 1)[0]
    proxy.lose()
    deliveries, settled, _, _ = dequeue(app, 1, settle=[(first.id, first.token, "ack", 0.0, None)])
    # A client that sends again by itself sees the second answer: for one's own repeated call "gone" is success.
    own = {"done"} if form == "no retries" else {"done", "gone"}
    assert [it.id for it in deliveries] == ["a1"]
    assert settled[0] in own
    assert (deliveries[0].deliveries, app.vtrr.stats().leased) == (1, 1)
    proxy.lose()
    settling = [(it.id, it.token, "failed", 0.0, b"x") for it in deliveries]
    assert app.vtrr._run(app.vtrr._core.settle(settling))[0] in own
    assert [letter.id for letter in app.vtrr.dead_letters()] == ["a1"]
    assert [it.id for it in dequeue(app, 5)[0]] == ["a2", "a3"]
    assert proxy.lost == 2


def test_a_call_that_was_cut_off_can_be_finished(app: Any, bed: Bed, proxy: Proxy) -> None:
    tasks = [{"id": f"b{i:04}"} if i % 2 else {} for i in range(2500)]
    app.vtrr.redis_client = redis.Redis(port=proxy.port, db=3, retry=Retry(NoBackoff(), 0))
    app.vtrr.stats()
    proxy.lose(2, then_dead=True)
    begin = time.monotonic()
    with pytest.raises(redis.ConnectionError) as raised:
        app.work.queue("B", tasks)
    assert time.monotonic() - begin < 3
    unfinished = raised.value.unfinished  # type: ignore[attr-defined]
    # The second thousand was stored, but nobody was told.
    assert unfinished.stored == 1000
    assert len(set(unfinished.ids)) == 2500
    assert [id for id in unfinished.ids if id.startswith("b")] == [task["id"] for task in tasks if task]
    assert bed.state()["queued"] == 2000
    assert bed.server.client(0).llen(bed.celery_queue) == 0
    proxy.dead = False
    again = [{"id": id} for id in unfinished.ids]
    results = app.work.queue("B", again, request=unfinished.request)
    assert ([result.id for result in results], results.duplicates) == (unfinished.ids, [])
    assert app.vtrr.stats().totals["enqueued"] == 2500
    app.work.queue("C", [{"id": "c"}])
    order = dequeue_all(app)
    assert [id for id in order if id != "c"] == unfinished.ids
    assert order.index("c") <= 2
    assert bed.server.client(0).llen(bed.celery_queue) == 4


def test_a_server_that_is_down_is_the_clients_own_error(bed: Bed, tmp_path: Path) -> None:
    app: Any = bed.load(TASKS)
    bed.server.client(0).delete(bed.celery_queue)
    with RedisServer(tmp_path, port=free_port()) as server:
        app.vtrr.redis_client = server.client(retry=Retry(NoBackoff(), 0))
        app.work.queue("u", [{"id": "before"}])
        server.stop()
        waiting = bed.server.client(0).llen(bed.celery_queue)
        begin = time.monotonic()
        with pytest.raises(redis.ConnectionError) as raised:
            app.work.queue("u", [{}, {"id": "mine"}])
        assert time.monotonic() - begin < 3
        unfinished = raised.value.unfinished  # type: ignore[attr-defined]
        assert (unfinished.stored, unfinished.ids[1], len(unfinished.ids)) == (0, "mine", 2)
        assert bed.server.client(0).llen(bed.celery_queue) == waiting
        for call in (app.vtrr.stats, app.vtrr.purge, app.vtrr.flatten):
            with pytest.raises(redis.ConnectionError):
                call()
        server.start()
        tasks = [{"id": id} for id in unfinished.ids]
        for _ in range(2):
            results = app.work.queue("u", tasks, request=unfinished.request)
            assert [result.id for result in results] == unfinished.ids
        assert app.vtrr.stats().queued == 2
        assert app.vtrr.stats().totals == {"enqueued": 2}


def test_a_server_that_does_not_answer_raises_in_time_and_the_call_can_be_repeated(app: Any, bed: Bed) -> None:
    app.vtrr.redis_client = bed.server.client(3, socket_timeout=0.3, retry=Retry(NoBackoff(), 1))
    app.vtrr.stats()
    bed.server.client(0).client_pause(2500)
    begin = time.monotonic()
    with pytest.raises(redis.TimeoutError) as raised:
        app.work.queue("u", [{"id": "a"}, {"id": "b"}])
    assert time.monotonic() - begin < 2
    unfinished = raised.value.unfinished  # type: ignore[attr-defined]
    assert (unfinished.ids, unfinished.stored) == (["a", "b"], 0)
    bed.server.client(0).client_unpause()
    app.work.queue("u", [{"id": "a"}, {"id": "b"}], request=unfinished.request)
    assert app.vtrr.stats().queued == app.vtrr.stats().totals["enqueued"] == 2


def test_scripts_that_the_server_has_forgotten_are_sent_again(app: Any, bed: Bed) -> None:
    for _ in range(3):
        bed.store.script_flush()
        app.work.queue("u", [{}, {}])
        bed.store.script_flush()
        (delivery,) = dequeue(app, 1)[0]
        bed.store.script_flush()
        assert app.vtrr._run(app.vtrr._core.settle([(delivery.id, delivery.token, "ack", 0.0, None)])) == ["done"]
        bed.store.script_flush()
        assert app.vtrr.stats().leased == 0
    assert app.vtrr.stats().queued == 3


@pytest.mark.parametrize("tagging", ["head", "all"])
def test_memory_that_is_full_refuses_new_tasks_and_lets_old_ones_out(bed: Bed, tmp_path: Path, tagging: str) -> None:
    app: Any = bed.load(TASKS, tagging=tagging)
    with RedisServer(tmp_path) as server:
        client = app.vtrr.redis_client = server.client()
        app.work.queue("u", [{"id": f"t{i}"} for i in range(4)])
        app.vtrr._run(app.vtrr._core.sweep("sweeper", 15.0))
        client.config_set("maxmemory", 1)
        waiting = bed.server.client(0).llen(bed.celery_queue)

        def dump() -> Any:
            return {key: client.dump(key) for key in sorted(client.keys())}

        before = dump()
        for partition in ("u", "new"):
            with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory") as raised:
                app.work.queue(partition, [{}, {}, {}])
            assert raised.value.unfinished.stored == 0  # type: ignore[attr-defined]
        with pytest.raises(redis.ResponseError):
            app.work.queue("u", [{} for _ in range(3000)])
        assert dump() == before
        assert bed.server.client(0).llen(bed.celery_queue) == waiting
        # Out it goes, in order.
        for i in range(4):
            (delivery,) = dequeue(app, 1)[0]
            assert delivery.id == f"t{i}"
            assert app.vtrr._run(app.vtrr._core.settle([(delivery.id, delivery.token, "ack", 0.0, None)])) == ["done"]
            app.vtrr._run(app.vtrr._core.sweep("sweeper", 15.0))
        assert (app.vtrr.stats().queued, app.vtrr.stats().leased) == (0, 0)
        client.config_set("maxmemory", 0)
        assert len(app.work.queue("u", [{}, {}, {}])) == 3


@pytest.mark.parametrize("how", ["refuses", "is silent"])
def test_a_broker_that_cannot_be_reached_does_not_lose_or_block_anything(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(tickets, "PUBLISH_SECONDS", 1.0)
    with RedisServer(tmp_path, port=free_port()) as broker:
        bed.broker = broker.url(0)
        app: Any = bed.load(TASKS, conf={"broker_transport_options": {"socket_timeout": 20}})
        app.vtrr.purge()
        app.work.queue("u", [{}])
        assert broker.client().llen(bed.celery_queue) == 1
        if how == "refuses":
            broker.stop()
        else:
            broker.client().client_pause(3_000)
        begin = time.monotonic()
        assert len(app.work.queue("u", [{}, {}])) == 2
        assert time.monotonic() - begin < 2
        assert app.vtrr.stats().queued == 3
        # Only the first one waits for the broker.
        begin = time.monotonic()
        app.work.queue("u", [{}])
        assert time.monotonic() - begin < (2 if how == "refuses" else 0.5)

"""Tickets that vanish, brokers and stores that fail, payloads and task names that are not there: what waits still runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import states

from bed import GATED, HEADER, WORK, Bed, ends, letter_of, waiting_tickets
from servers import RedisServer, wait_for
from vtrr_queue import tickets

TASKS = (
    WORK
    + GATED
    + '''
from vtrr_queue import run, tickets

published = tickets.publish

def publish(task, **options):
    """Tickets of this worker vanish on the way while "silent" is set."""
    if store.exists("silent:" + NAME):
        store.incr("vanished:" + NAME)
    else:
        published(task, **options)

if "STUCK" in os.environ:
    # On demand the server stops before a dequeue comes to it, and goes on when its client has gone.
    import signal, threading
    from vtrr_queue import ticket

    drain = ticket.Ticket.drain

    def stuck(self):
        if store.delete("stick:" + NAME):
            server = int(os.environ["STUCK"])
            os.kill(server, signal.SIGSTOP)
            threading.Timer(3, os.kill, (server, signal.SIGCONT)).start()
        return drain(self)

    ticket.Ticket.drain = stuck

if "VANISHING" in os.environ:
    tickets.publish = publish

if "OLD" in os.environ:
    run.PAUSE_SECONDS, run.PAUSE_MOST = 0.5, 1.0
else:
    @vtrr.task
    def newtask(self):
        note("end", self)
'''
)


def test_tickets_deleted_before_a_worker_starts(bed: Bed) -> None:
    """C02: the broker's list is deleted."""
    app = bed.load(TASKS, sweep_interval=1)
    app.work.queue("u", [{"id": f"t{i}"} for i in range(3)])
    assert bed.server.client(0).delete(bed.celery_queue) == 1
    bed.worker(concurrency=1)
    bed.drained()
    assert ends(bed) == ["t0", "t1", "t2"]


def test_tickets_purged_under_a_worker(bed: Bed) -> None:
    """C02: `celery purge` while a task runs; what the worker has prefetched runs one task, the others wait for the sweep."""
    app = bed.load(TASKS, conf={"worker_prefetch_multiplier": 1}, burst=0, sweep_interval=1)
    worker = bed.worker(concurrency=1, env={"VANISHING": "1"})
    app.gated.queue("u", [{"id": "t0"}])
    wait_for(lambda: bed.events("start"))
    app.work.queue("u", [{"id": f"t{i}"} for i in range(1, 6)])
    wait_for(lambda: waiting_tickets(bed) >= 2)
    bed.store.set(f"silent:{bed.name}", 1)
    with app.app.connection() as connection:
        assert connection.default_channel.queue_purge(bed.celery_queue) >= 2
    bed.store.rpush(f"gate:{bed.name}", 1)
    # No ticket follows another one now, and no sweep can send any.
    wait_for(lambda: "t0" in ends(bed))
    bed.store.delete(f"silent:{bed.name}")
    bed.drained()
    assert ends(bed) == [f"t{i}" for i in range(6)]
    assert worker.process.poll() is None


def test_tickets_that_vanish_on_the_way(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """C02: nobody is told, nothing is enqueued any more: the sweep sees what waits."""
    app = bed.load(TASKS, sweep_interval=1)
    bed.worker(concurrency=1, env={"VANISHING": "1"})
    bed.store.set(f"silent:{bed.name}", 1)
    monkeypatch.setattr(app.vtrr._issuer, "issue", lambda task, wanted: None)
    app.work.queue("u", [{"id": f"t{i}"} for i in range(3)])
    # Those of the sweep, which heard of the tasks, and tries again.
    wait_for(lambda: int(bed.store.get(f"vanished:{bed.name}") or 0) >= 4)
    assert ends(bed) == []
    bed.store.delete(f"silent:{bed.name}")
    bed.drained()
    assert ends(bed) == ["t0", "t1", "t2"]


def test_tasks_are_stored_before_tickets_are_sent(bed: Bed) -> None:
    """C04 (b)."""
    app = bed.load(TASKS)
    seen = []
    issue = app.vtrr._issuer.issue

    def look(task: Any, wanted: int) -> None:
        seen.append((len(app.vtrr), waiting_tickets(bed)))
        issue(task, wanted)

    app.vtrr._issuer.issue = look
    app.work.queue("u", [{} for _ in range(3)])
    assert seen == [(3, 0)]
    assert waiting_tickets(bed) == 3


def test_a_store_that_is_slow(bed: Bed, server: RedisServer) -> None:
    """C04 (a): tasks run soon after `queue()` has returned, however long it took."""
    bed.broker, bed.backend = server.url(0), server.url(1)
    app = bed.load(TASKS)
    bed.worker(concurrency=1)
    with bed.server.hanging():
        queueing = threading.Thread(target=app.work.queue, args=("u", [{"id": "t0"}]))
        queueing.start()
        queueing.join(1)
        assert queueing.is_alive()
    queueing.join()
    wait_for(lambda: ends(bed))


def test_tickets_that_find_nothing(bed: Bed) -> None:
    app = bed.load(TASKS, sweep_interval=1)
    worker = bed.worker(concurrency=2)
    for _ in range(10):
        tickets.publish(app.work)
    wait_for(lambda: worker.log().count("received") >= 10)
    app.work.queue("u", [{"id": "t0"}])
    bed.drained()
    assert ends(bed) == ["t0"]
    assert "ERROR" not in worker.log()
    assert "WARNING" not in worker.log().split(" ready.")[1]


def test_a_broker_that_is_full_when_a_task_ends(bed: Bed, server: RedisServer) -> None:
    """C05: the next ticket cannot be sent; the broker recovers; the other tasks run."""
    bed.broker = server.url(0)
    app = bed.load(TASKS, max_concurrency=1, burst=0, sweep_interval=1)
    worker = bed.worker(concurrency=1)
    app.gated.queue("u", [{"id": "t0"}])
    wait_for(lambda: bed.events("start"))
    broker = server.client(0)
    broker.config_set("maxmemory", 1)
    app.work.queue("u", [{"id": f"t{i}"} for i in range(1, 9)])
    bed.store.rpush(f"gate:{bed.name}", 1)
    wait_for(lambda: "t0" in ends(bed))
    wait_for(lambda: "the next ticket could not be sent" in worker.log())
    # Tickets that the worker had already were good for a task each.
    assert len(ends(bed)) < 9
    broker.config_set("maxmemory", 0)
    time.sleep(1)
    if worker.process.poll() is not None or "Unrecoverable" in worker.log():
        # Celery gives up where it cannot acknowledge a message. What looks after workers starts another one.
        bed.worker(concurrency=1)
    bed.drained()
    assert ends(bed) == [f"t{i}" for i in range(9)]


def test_a_store_that_is_a_replica_for_a_while(bed: Bed, server: RedisServer, redis_server: RedisServer) -> None:
    """C06: dequeue fails with READONLY; nothing is stored meanwhile; then it goes on."""
    with Bed(server, bed.folder, f"{bed.name}r") as own:
        own.broker, own.backend = redis_server.url(0), redis_server.url(1)
        app = own.load(TASKS, sweep_interval=1)
        app.work.queue("u", [{"id": "t0"}])
        own.store.execute_command("REPLICAOF", "127.0.0.1", "1")
        worker = own.worker(concurrency=1)
        wait_for(lambda: "nothing could be dequeued" in worker.log())
        with pytest.raises(redis.ReadOnlyError) as raised:
            app.work.queue("u", [{"id": "t1"}])
        assert raised.value.unfinished.stored == 0
        own.store.execute_command("REPLICAOF", "NO", "ONE")
        own.drained()
        assert ends(own) == ["t0"]


def test_a_store_that_is_gone_for_a_while(bed: Bed, server: RedisServer, redis_server: RedisServer) -> None:
    """C06: the server is down when a task ends; its result and its end are stored when it is back."""
    server.options = ("--appendonly", "yes", "--appendfsync", "always")
    server.stop()
    server.start()
    with Bed(server, bed.folder, f"{bed.name}g") as own:
        own.broker, own.backend = redis_server.url(0), redis_server.url(1)
        app = own.load(TASKS, sweep_interval=1, lease=60)
        own.worker(concurrency=1)
        (first, second) = app.work.queue("u", [{"id": "t0", "args": [2]}, {"id": "t1"}])
        wait_for(lambda: own.events("start"))
        server.stop()
        time.sleep(3)  # the task ends in the meantime, with an error: it cannot note its end
        server.start()
        own.drained()
        assert ends(own)[-1] == "t1"
        assert second.state == states.SUCCESS
        assert len([event for event in own.events("start") if event["id"] == "t0"]) == 1
        assert first.state in (states.SUCCESS, states.FAILURE)


def test_a_store_that_is_stuck_blames_no_task_that_did_not_begin(
    bed: Bed, server: RedisServer, redis_server: RedisServer
) -> None:
    """The client gives up, the server does it all the same when it goes on: what was delivered to nobody comes back."""
    with Bed(server, bed.folder, f"{bed.name}s") as own:
        own.broker, own.backend = redis_server.url(0), redis_server.url(1)
        header = HEADER.replace("from_url({store!r})", "from_url({store!r}, socket_timeout=1)")
        app = own.load(TASKS, header=header, sweep_interval=1, max_deliveries=1)
        assert server.process is not None
        worker = own.worker(concurrency=1, env={"STUCK": str(server.process.pid)})
        app.work.queue("u", [{"id": "first"}])
        own.drained()
        own.store.set(f"stick:{own.name}", 1)
        app.work.queue("u", [{"id": f"t{i}"} for i in range(40)])
        wait_for(lambda: "nothing could be dequeued" in worker.log())
        own.drained()
        assert sorted(ends(own)) == sorted(["first", *(f"t{i}" for i in range(40))])
        assert app.vtrr.stats().dead == 0
        assert "reclaimed" not in app.vtrr.stats().totals


def test_payloads_that_are_gone(bed: Bed) -> None:
    """C15: each is a dead letter by its id, and the next one runs."""
    app = bed.load(TASKS, sweep_interval=1)
    app.work.queue("u", [{"id": "head"}, {"id": "lane"}, {"id": "good"}])
    assert bed.store.hdel(bed.key("task"), "head") == 1
    app.work.queue("v", [{"id": "broken"}, {"id": "other"}])
    assert bed.store.hset(bed.key("task"), "broken", "no JSON") == 0
    bed.worker(concurrency=1)
    wait_for(lambda: {"good", "other"} <= set(ends(bed)))
    wait_for(lambda: letter_of(app, "head") and letter_of(app, "broken"))
    assert "payload" in letter_of(app, "head").error
    assert "payload" in letter_of(app, "broken").error
    bed.drained()


@pytest.mark.parametrize(("policy", "warns"), [("noeviction", False), ("volatile-lru", False), ("allkeys-lru", True)])
def test_a_store_that_may_delete_tasks(
    server: RedisServer, redis_server: RedisServer, tmp_path: Path, policy: str, warns: bool
) -> None:
    """C15: the worker says so when it starts."""
    server.client().config_set("maxmemory-policy", policy)
    with Bed(server, tmp_path, f"evicting{policy[:3]}") as bed:
        bed.broker = redis_server.url(0)
        app = bed.load(TASKS, sweep_interval=1)
        worker = bed.worker(concurrency=1)
        app.work.queue("u", [{}])
        bed.drained()
        # It sweeps from then on.
        wait_for(lambda: bed.store.exists(app.vtrr._core.sweeper_key))
        assert (f"maxmemory-policy {policy} may delete tasks" in worker.log()) is warns


def test_a_task_that_a_new_worker_knows(bed: Bed) -> None:
    """C16: a rolling deploy. The old worker gives the task back until a new one is there."""
    app = bed.load(TASKS, sweep_interval=1, max_deliveries=100)
    old = bed.worker(concurrency=1, env={"OLD": "1"})
    app.newtask.queue("u", [{"id": "new"}])
    app.work.queue("v", [{"id": "known"}])
    wait_for(lambda: "given back" in old.log())
    wait_for(lambda: "known" in ends(bed))
    bed.worker(concurrency=1)
    bed.drained()
    assert set(ends(bed)) == {"new", "known"}
    assert app.vtrr.stats().dead == 0


def test_a_task_that_no_worker_knows(bed: Bed) -> None:
    """C16: after max_deliveries it is set aside, to be counted, and can be redriven."""
    app = bed.load(TASKS, sweep_interval=1, max_deliveries=2)
    bed.worker(concurrency=1, env={"OLD": "1"})
    app.newtask.queue("u", [{"id": "new"}])
    letter = wait_for(lambda: letter_of(app, "new"))
    assert f"no task '{bed.name}.newtask'" in letter.error
    assert letter.deliveries == 2
    bed.workers[0].kill()
    bed.worker(concurrency=1)
    assert app.vtrr.redrive(["new"]) == [True]
    bed.drained()
    assert ends(bed) == ["new"]


def test_a_result_backend_that_refuses_states_costs_no_task_a_life(bed: Bed, server: RedisServer) -> None:
    """It is full, or a replica for a while: tasks are given back however often it takes, and are no dead letters."""
    bed.backend = server.url(1)
    app = bed.load(TASKS, sweep_interval=1, max_deliveries=2)
    bed.worker(concurrency=1, env={"OLD": "1"})
    server.client().config_set("maxmemory", 1)
    (result,) = app.work.queue("u", [{"id": "t0"}])
    # Between two runs: freed within one, the error itself is stored as the task's.
    wait_for(lambda: len(ends(bed)) >= 4 and bed.state()["delayed"])
    server.client().config_set("maxmemory", 0)
    bed.drained()
    assert result.get(timeout=120) is None
    assert app.vtrr.stats().dead == 0


def test_a_result_backend_that_hangs_does_not_stop_the_sweep(bed: Bed, server: RedisServer) -> None:
    bed.backend = server.url(1)
    app = bed.load(TASKS, sweep_interval=1)
    bed.worker(concurrency=1)
    with server.hanging():
        # The state of a task that cannot be read is for the sweep to store.
        bed.store.hset(bed.key("task"), "odd", "no JSON")
        bed.store.zadd(bed.key("queue"), {"odd": 1})
        wait_for(lambda: letter_of(app, "odd"))
        # Some more sweeps.
        for _ in range(3):
            bed.store.delete(bed.key("sweeper"))
            wait_for(lambda: bed.store.exists(bed.key("sweeper")))


def test_a_result_backend_that_hangs_does_not_stop_leases(bed: Bed, server: RedisServer) -> None:
    """The event loop and the child wait for the backend; the lease is extended all the same."""
    bed.backend = server.url(1)
    app = bed.load(TASKS, lease=4, sweep_interval=1)
    bed.worker(concurrency=1)
    bed.worker(concurrency=1)
    with server.hanging():
        threading.Thread(target=app.work.queue, args=("u", [{"id": "t0"}])).start()
        wait_for(lambda: ends(bed))
        # Longer than its lease was at first.
        first = bed.store.zscore(bed.key("lease"), "t0")
        wait_for(lambda: bed.store.zscore(bed.key("lease"), "t0") > first + 4000)
    bed.drained()
    assert ends(bed) == ["t0"]

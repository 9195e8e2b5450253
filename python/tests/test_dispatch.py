"""Tasks under limits, which a worker's main process dequeues when a process is free: whatever happens then, each ends once, and
all processes are busy again after it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import pytest
from celery.exceptions import TimeLimitExceeded

from bed import Bed, Worker, ends, letter_of, starts
from proxy import Proxy
from servers import RedisServer, wait_for
from vtrr_queue import tickets

TASKS = """
@vtrr.task(time_limit=600)
def quick(self, n=0):
    note("start", self)
    note("end", self, n=n)
    return n

@vtrr.task(time_limit=600)
def gated(self, n=0):
    note("start", self)
    gates.blpop("gate:" + NAME, timeout=600)
    note("end", self)

@vtrr.task
def free(self):
    note("end", self)

@vtrr.task(time_limit=1)
def hung(self):
    note("start", self)
    time.sleep(600)
"""


def open_gate(bed: Bed, times: int) -> None:
    bed.store.rpush(f"gate:{bed.name}", *range(times))


def check_all_busy(bed: Bed, app: ModuleType, processes: int) -> None:
    """No process was lost to the count of free ones."""
    results = app.gated.queue("all busy", [{} for _ in range(processes)])
    wait_for(lambda: all(starts(bed, result.id) for result in results))
    open_gate(bed, processes)
    bed.drained()


def busy(bed: Bed, app: ModuleType, tasks: int) -> tuple[Worker, list[Any]]:
    """A worker whose two processes each have one of the tasks."""
    worker = bed.worker("prefork", 2)
    results = app.gated.queue("u", [{} for _ in range(tasks)])
    wait_for(lambda: len(bed.events("start")) == 2)
    return worker, results


def check_once(bed: Bed, app: ModuleType, results: list[Any]) -> None:
    bed.drained()
    ended = Counter(ends(bed))
    assert [ended[result.id] for result in results] == [1] * len(results)
    assert app.vtrr.dead_letters() == []


def children(worker: Worker) -> list[int]:
    text = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def leased(bed: Bed) -> bool:
    return bed.state()["leased"] == 1


@pytest.fixture
def proxy(redis_server: RedisServer, bed: Bed) -> Iterator[Proxy]:
    """The way to the broker."""
    with Proxy(redis_server.port) as proxy:
        bed.broker = f"redis://127.0.0.1:{proxy.port}/0"
        yield proxy


def reconnect(worker: Worker, proxy: Proxy) -> None:
    connected = worker.log().count("Connected to redis")
    proxy.break_all()
    wait_for(lambda: worker.log().count("Connected to redis") > connected)


def test_inspect_active_shows_the_task_itself(bed: Bed) -> None:
    app = bed.load(TASKS)
    worker = bed.worker("prefork", 1)
    (result,) = app.gated.queue("u", [{"args": [7]}])
    wait_for(lambda: starts(bed, result.id))
    (active,) = next(iter(app.app.control.inspect(timeout=60, limit=1).active().values()))
    shown = {key: active[key] for key in ("id", "name", "args", "kwargs")}
    assert shown == {"id": result.id, "name": f"{bed.name}.gated", "args": [7], "kwargs": {}}
    assert active["worker_pid"] in children(worker)
    open_gate(bed, 1)
    check_once(bed, app, [result])


def test_autoscale_starts_processes_for_them(bed: Bed) -> None:
    app = bed.load(TASKS)
    bed.worker("prefork", 1, "--autoscale", "3,1")
    results = app.gated.queue("u", [{} for _ in range(9)])
    wait_for(lambda: len(bed.events("start")) == 3)
    open_gate(bed, 9)
    check_once(bed, app, results)


def test_a_process_ends_after_its_number_of_them(bed: Bed) -> None:
    app = bed.load(TASKS)
    bed.worker("prefork", 2, "--max-tasks-per-child", "3")
    results = app.quick.queue("u", [{} for _ in range(30)])
    check_once(bed, app, results)
    assert max(Counter(event["pid"] for event in bed.events("end")).values()) <= 3
    check_all_busy(bed, app, 2)


def test_a_hard_limit_and_all_processes_are_busy_again(bed: Bed) -> None:
    app = bed.load(TASKS)
    bed.worker("prefork", 2)
    hung = app.hung.queue("u", [{} for _ in range(3)])
    quick = app.quick.queue("v", [{} for _ in range(10)])
    for result in hung:
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=120)
    bed.drained()
    assert sorted(ends(bed)) == sorted(result.id for result in quick)
    assert all(len(starts(bed, result.id)) == 1 for result in hung)
    check_all_busy(bed, app, 2)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_hard_limit_ends_its_task_alone_whatever_was_taken_with_it(bed: Bed, pool: str) -> None:
    # In gevent before what was taken with it is given back, which is after 50 ms.
    limit = "0.01" if pool == "gevent" else "1"
    app = bed.load(TASKS.replace("time_limit=1)", f"time_limit={limit})"), sweep_interval=1)
    before = app.free.queue("u", [{} for _ in range(60)])
    (hung,) = app.hung.queue("u", [{}])
    after = app.free.queue("u", [{} for _ in range(60)])
    bed.worker(pool, 1)
    with pytest.raises(TimeLimitExceeded):
        hung.get(timeout=120)
    bed.drained()
    assert sorted(ends(bed)) == sorted(result.id for result in before + after)
    assert [letter.id for letter in app.vtrr.dead_letters()] == [hung.id]


# What plain Celery can terminate.
TERMINATES = pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery terminates greenlets from 5.5 on")


@pytest.mark.parametrize("pool", ["prefork", pytest.param("gevent", marks=TERMINATES)])
def test_revoke_with_terminate_ends_it_for_good(bed: Bed, pool: str) -> None:
    app = bed.load(TASKS.replace("gates.blpop", "while not gates.lpop").replace(", timeout=600)", "): time.sleep(0.01)"))
    bed.worker(pool, 2)
    gated, other = app.gated.queue("u", [{}, {}])
    wait_for(lambda: starts(bed, gated.id) and starts(bed, other.id))
    gated.revoke(terminate=True)
    wait_for(lambda: gated.state == "REVOKED")
    if pool == "prefork":
        letter = wait_for(lambda: letter_of(app, gated.id))
        assert (letter.cause, letter.error) == ("revoked", "revoked: terminated")
    open_gate(bed, 1)
    bed.drained()
    assert (ends(bed), len(starts(bed, gated.id))) == ([other.id], 1)


def test_a_warm_shutdown_takes_no_more(bed: Bed) -> None:
    app = bed.load(TASKS)
    first, results = busy(bed, app, 10)
    first.signal(signal.SIGTERM)
    wait_for(lambda: "Warm shutdown" in first.log())
    open_gate(bed, 2)
    first.ended()
    assert bed.state() == {"queued": 8, "leased": 0, "delayed": 0, "dead": 0}
    bed.worker("prefork", 2)
    open_gate(bed, 8)
    check_once(bed, app, results)


def test_a_cold_shutdown_gives_them_back(bed: Bed) -> None:
    app = bed.load(TASKS)
    first, results = busy(bed, app, 4)
    first.signal(signal.SIGQUIT)
    first.ended()
    wait_for(lambda: bed.state() == {"queued": 4, "leased": 0, "delayed": 0, "dead": 0})
    bed.worker("prefork", 2)
    open_gate(bed, 4)
    check_once(bed, app, results)


def test_a_process_that_is_killed_before_it_begins_is_not_the_tasks_fault(bed: Bed) -> None:
    # One lost worker would make a dead letter of it.
    app = bed.load(TASKS, max_deliveries=1)
    worker = bed.worker("prefork", 1)
    (warm,) = app.quick.queue("u", [{}])
    bed.drained()
    (child,) = children(worker)
    os.kill(child, signal.SIGSTOP)
    (result,) = app.quick.queue("u", [{}])
    wait_for(lambda: leased(bed))
    assert not starts(bed, result.id)
    os.kill(child, signal.SIGKILL)
    check_once(bed, app, [warm, result])
    check_all_busy(bed, app, 1)


def test_a_broker_that_reconnects_costs_no_process(bed: Bed, proxy: Proxy) -> None:
    """Celery forgets what its pool has not begun then, and that a process was taken for it."""
    app = bed.load(TASKS, lease=4, sweep_interval=1)
    worker = bed.worker("prefork", 2)
    (warm,) = app.quick.queue("u", [{}])
    bed.drained()
    paused = children(worker)
    for child in paused:
        os.kill(child, signal.SIGSTOP)
    results = app.quick.queue("u", [{} for _ in range(2)])
    wait_for(lambda: all(f"quick[{result.id}] received" in worker.log() for result in results))
    reconnect(worker, proxy)
    for child in paused:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
    bed.drained()
    assert {event["id"] for event in bed.events("end")} == {warm.id, *(result.id for result in results)}
    check_all_busy(bed, app, 2)


def test_a_broker_that_reconnects_while_they_run(bed: Bed, proxy: Proxy) -> None:
    app = bed.load(TASKS, sweep_interval=1)
    worker, results = busy(bed, app, 6)
    reconnect(worker, proxy)
    open_gate(bed, 6)
    check_once(bed, app, results)
    check_all_busy(bed, app, 2)


def test_a_redis_that_hangs_does_not_stop_the_event_loop(redis_server: RedisServer, server: RedisServer, tmp_path: Path) -> None:
    with Bed(server, tmp_path, "hanging") as bed:
        bed.broker, bed.backend = redis_server.url(0), redis_server.url(1)
        app = bed.load(TASKS, sweep_interval=1)
        bed.worker("prefork", 2)
        results = app.quick.queue("u", [{} for _ in range(20)])
        bed.drained()
        with server.hanging():
            # More than the worker has processes: each of them makes it ask.
            for _ in range(6):
                tickets.publish(app.quick)
            for _ in range(20):
                # Each of them would wait for as long as Redis hangs.
                assert app.app.control.ping(timeout=30, limit=1)
                threading.Event().wait(1)
        results += app.quick.queue("u", [{} for _ in range(20)])
        check_once(bed, app, results)
        check_all_busy(bed, app, 2)


def test_a_message_that_says_it_is_bound_to_a_task_is_none(bed: Bed) -> None:
    """An older worker may have left one in the broker."""
    app = bed.load(TASKS)
    tickets.publish(app.quick, task_id="old", headers={"vtrr": "bound", "vtrr_token": "1-1", "vtrr_delivery": "nothing"})
    bed.worker("prefork", 1)
    (result,) = app.quick.queue("u", [{}])
    check_once(bed, app, [result])
    check_all_busy(bed, app, 1)


def ahead_of_a_newcomer(bed: Bed, app: ModuleType) -> int:
    """With one process: how many of A's start between B's `.queue()` and B's start."""
    app.gated.queue("a", [{} for _ in range(8)])
    wait_for(lambda: len(bed.events("start")) == 1)
    (newcomer,) = app.gated.queue("b", [{}])
    open_gate(bed, 9)
    bed.drained()
    return [event["id"] for event in bed.events("start")].index(newcomer.id) - 1


def test_where_celery_counts_no_free_processes_one_task_waits_in_the_pool(bed: Bed) -> None:
    app = bed.load(TASKS, conf={"worker_pool_putlocks": False})
    bed.worker("prefork", 1)
    assert ahead_of_a_newcomer(bed, app) <= 3
    check_all_busy(bed, app, 1)


def test_where_the_transport_blocks_one_task_waits_for_a_process(bed: Bed) -> None:
    folder = bed.folder / "messages"
    folder.mkdir()
    options = {"data_folder_in": str(folder), "data_folder_out": str(folder), "control_folder": str(bed.folder / "control")}
    bed.broker = "filesystem://"
    app = bed.load(TASKS, conf={"broker_transport_options": options}, sweep_interval=1)
    bed.worker("prefork", 1)
    assert ahead_of_a_newcomer(bed, app) <= 3
    check_all_busy(bed, app, 1)

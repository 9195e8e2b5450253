"""Time limits, and revoke with terminate: enforced by Celery for the task itself, under its own id."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import states
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from bed import GATED, Bed, letter_of
from servers import RedisServer, wait_for
from vtrr_queue import tickets

TASKS = """
import hashlib
from celery.exceptions import SoftTimeLimitExceeded

@vtrr.task
def quick(self, *args):
    note("end", self)
    return "quick"

@vtrr.task
def sleeper(self, seconds):
    note("start", self)
    time.sleep(seconds)
    note("end", self)
    return self.name

@vtrr.task(soft_time_limit=1)
def short(self, seconds):
    note("start", self)
    end = time.monotonic() + seconds
    try:
        # Not `pass`: on Python 3.13.0 a signal between two turns of such a loop is raised outside the `try`.
        while time.monotonic() < end:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        note("interrupted", self, name=self.name, after=time.monotonic() - end + seconds)
        return "interrupted"
    return "not interrupted"

@vtrr.task(soft_time_limit=1)
def unaware(self):
    time.sleep(20)

@vtrr.task(time_limit=1)
def hung(self):
    note("start", self)
    time.sleep(20)

@vtrr.task(time_limit=1)
def burner(self):
    note("start", self)
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 200_000_000)

@vtrr.task(time_limit=120)
def bound(self, seconds=0):
    note("start", self, timelimit=self.request.timelimit)
    time.sleep(seconds)
    note("end", self)
    return self.request.id
"""
TASKS += GATED


@pytest.fixture(scope="module")
def limited(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A worker with one process, so that what follows a killed task needs another one. It has no limits of its own."""
    with Bed(redis_server, tmp_path_factory.mktemp("limits"), "limits") as bed:
        app = bed.load(TASKS, sweep_interval=1)
        bed.worker(concurrency=1)
        yield SimpleNamespace(bed=bed, app=app)


@pytest.fixture
def app(limited: Any) -> ModuleType:
    return limited.app


def events_of(bed: Bed, id: str) -> list[str]:
    return [event["what"] for event in bed.events() if event["id"] == id]


def check_killed(bed: Bed, app: ModuleType, result: Any, other: Any) -> None:
    """The killed one has failed under its own id and is a dead letter, once; the other one went on."""
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=120)
    assert result.state == states.FAILURE
    assert other.get(timeout=120) == "quick"
    letter = wait_for(lambda: letter_of(app, result.id))
    assert "TimeLimitExceeded" in letter.error
    assert letter.deliveries == 1
    bed.drained()
    assert events_of(bed, result.id).count("start") == 1


def test_a_hard_limit_kills_the_task_and_nothing_else(limited: Any, app: ModuleType) -> None:
    (result,) = app.hung.queue("u", [{}])
    (other,) = app.quick.queue("v", [{}])
    check_killed(limited.bed, app, result, other)


def test_a_hard_limit_in_c_code(limited: Any, app: ModuleType) -> None:
    """C11: the child cannot run any Python any more."""
    (result,) = app.burner.queue("u", [{}])
    (other,) = app.quick.queue("v", [{}])
    check_killed(limited.bed, app, result, other)


def test_a_soft_limit_reaches_the_task(limited: Any, app: ModuleType) -> None:
    (result,) = app.short.queue("u", [{"args": [60]}])
    assert result.get(timeout=120) == "interrupted"
    limited.bed.drained()
    assert letter_of(app, result.id) is None


def test_a_soft_limit_that_nobody_catches_is_a_failure(limited: Any, app: ModuleType) -> None:
    (result,) = app.unaware.queue("u", [{}])
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=120)
    assert "SoftTimeLimitExceeded" in wait_for(lambda: letter_of(app, result.id)).error


def test_many_tasks_with_limits_each_have_a_message_with_their_id(limited: Any, app: ModuleType) -> None:
    results = app.bound.queue("u", [{} for _ in range(10)])
    others = app.bound.queue("v", [{} for _ in range(10)])
    assert [result.get(timeout=120) for result in results + others] == [result.id for result in results + others]
    limited.bed.drained()
    log = limited.bed.workers[0].log()
    assert all(f"Task limits.bound[{result.id}] received" in log for result in results)
    assert all(events_of(limited.bed, result.id) == ["start", "end"] for result in results + others)


def test_revoke_with_terminate_ends_a_task_that_has_a_limit(limited: Any, app: ModuleType) -> None:
    (result,) = app.bound.queue("u", [{"args": [60]}])
    wait_for(lambda: events_of(limited.bed, result.id))
    (other,) = app.quick.queue("v", [{}])
    result.revoke(terminate=True)
    wait_for(lambda: result.state == states.REVOKED)
    assert wait_for(lambda: letter_of(app, result.id)).error == "revoked: terminated"
    assert other.get(timeout=120) == "quick"
    limited.bed.drained()
    assert events_of(limited.bed, result.id) == ["start"]


def test_revoke_of_a_task_whose_message_waits(limited: Any, app: ModuleType) -> None:
    """Celery's own `control.revoke`, when the task has a message already: it never runs, and is gone from the queue."""
    (gate,) = app.gated.queue("u", [{}])
    wait_for(lambda: events_of(limited.bed, gate.id))
    (result,) = app.bound.queue("u", [{}])
    assert app.app.control.revoke(result.id, reply=True, timeout=120, limit=1)
    # It is heard by then, and applied by a thread.
    wait_for(lambda: result.state == states.REVOKED)
    limited.bed.store.rpush(f"gate:{limited.bed.name}", 1)
    limited.bed.drained()
    assert events_of(limited.bed, result.id) == []


@pytest.mark.parametrize(("ticket", "item"), [("short", "sleeper"), ("sleeper", "short")])
def test_a_ticket_does_not_lend_its_limits(limited: Any, app: ModuleType, ticket: str, item: str) -> None:
    """C13, both ways: the item's limit holds, not that of the task whose ticket took it."""
    bed, queue = limited.bed, app.vtrr
    task = getattr(app, item)
    # No ticket of the item's own: the wake-up is answered by the sweep, but only after a while.
    seconds = 3 if item == "sleeper" else 60
    (result,) = [task.AsyncResult(id) for id in stored(queue, task, [{"args": [seconds]}])]
    for _ in range(3):
        tickets.publish(getattr(app, ticket))
    assert result.get(timeout=120) == ("limits.sleeper" if item == "sleeper" else "interrupted")
    bed.drained()
    if item == "short":
        (event,) = [event for event in bed.events("interrupted") if event["id"] == result.id]
        assert event["name"] == "limits.short"
        assert event["after"] < 60


def stored(queue: Any, task: Any, items: list[dict[str, Any]]) -> list[str]:
    """Stores tasks and sends no ticket."""
    command = queue._core.enqueue(queue._prepare(task, "u", items), None)
    queue._run(command)
    return list(command.ids)


LIMITS = {
    "app": ({"task_time_limit": 3, "task_soft_time_limit": 1}, []),
    "worker": ({}, ["--time-limit", "3", "--soft-time-limit", "1"]),
}

UNLIMITED = """
from celery.exceptions import SoftTimeLimitExceeded

@vtrr.task
def quick(self):
    note("end", self)
    return "quick"

@vtrr.task
def stubborn(self):
    note("start", self)
    try:
        time.sleep(20)
    except SoftTimeLimitExceeded:
        note("soft", self)
    time.sleep(20)
"""


@pytest.mark.parametrize("whose", LIMITS)
def test_limits_of_the_app_and_of_the_worker(bed: Bed, whose: str) -> None:
    conf, options = LIMITS[whose]
    app = bed.load(UNLIMITED, conf=conf, sweep_interval=1)
    bed.worker("prefork", 1, *options)
    (first,) = app.quick.queue("u", [{}])
    (result,) = app.stubborn.queue("u", [{}])
    (other,) = app.quick.queue("v", [{}])
    assert first.get(timeout=120) == "quick"
    check_killed(bed, app, result, other)
    assert events_of(bed, result.id) == ["start", "soft"]


POOLS = """
from celery.exceptions import SoftTimeLimitExceeded

@vtrr.task(soft_time_limit=0.5)
def soft(self):
    time.sleep(1.5)
    return "went on"

@vtrr.task(time_limit=1)
def hard(self):
    note("start", self)
    time.sleep(2.5)
    return "went on"

@vtrr.task
def quick(self):
    return "quick"
"""


@pytest.mark.parametrize("pool", ["gevent", "eventlet", "threads", "solo"])
def test_what_other_pools_enforce(bed: Bed, pool: str) -> None:
    """Celery's: gevent the hard limit only, the others none."""
    app = bed.load(POOLS, sweep_interval=1)
    bed.worker(pool, 2)
    (soft,) = app.soft.queue("u", [{}])
    (hard,) = app.hard.queue("u", [{}])
    (other,) = app.quick.queue("v", [{}])
    assert soft.get(timeout=120) == "went on"
    if pool == "gevent":
        check_killed(bed, app, hard, other)
    else:
        assert hard.get(timeout=120) == "went on"
        assert other.get(timeout=120) == "quick"
    bed.drained()


# Celery's tracer fails before it has begun with a task, as where a signal comes at that moment.
TRACER = """
from celery.app import trace
from celery.exceptions import SoftTimeLimitExceeded

context = trace.Context

def failing(*args, **kwargs):
    if gates.lpop("fail:" + NAME):
        raise {error}()
    return context(*args, **kwargs)

trace.Context = failing

@vtrr.task{limits}
def free(self):
    note("end", self)
    return "ran"
"""


@pytest.mark.parametrize("error", ["SoftTimeLimitExceeded", "OSError"])
@pytest.mark.parametrize("limits", ["", "(soft_time_limit=60)"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_celery_fails_to_begin_with_is_not_lost(bed: Bed, pool: str, limits: str, error: str) -> None:
    app = bed.load(TRACER.format(error=error, limits=limits), sweep_interval=1)
    bed.store.rpush(f"fail:{bed.name}", 1)
    bed.worker(pool, 1)
    (result,) = app.free.queue("u", [{}])
    assert result.get(timeout=120) == "ran"
    bed.drained()
    assert [event["id"] for event in bed.events("end")] == [result.id]
    assert bed.store.llen(f"fail:{bed.name}") == 0

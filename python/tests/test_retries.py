"""Retries go through the fair queue, whatever asks for them, and keep their id."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import celery
import pytest
from celery import states

from bed import Bed, letter_of
from servers import RedisServer, wait_for

TASKS = '''
from datetime import datetime, timedelta, timezone
from celery import Task

class Own(Task):
    """A base class with a retry of its own."""

    def retry(self, *args, **options):
        note("own retry", self)
        return super().retry(*args, **{**options, "countdown": 0.1})

@vtrr.task(max_retries=3)
def once(self, countdown):
    note("run", self)
    if not self.request.retries:
        raise self.retry(countdown=countdown)
    return self.request.retries

@vtrr.task
def changed(self, value, newarg=None):
    note("run", self, value=value, newarg=newarg)
    if not self.request.retries:
        raise self.retry(args=[value + 1], kwargs={"newarg": "CHANGED"}, countdown=0)
    return [value, newarg]

@vtrr.task(base=Own)
def by_base(self):
    note("run", self)
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries

@vtrr.task(autoretry_for=(KeyError,), retry_backoff=1, retry_jitter=False, retry_kwargs={"max_retries": 2})
def backing_off(self):
    note("run", self)
    raise KeyError("each time")

@vtrr.task(autoretry_for=(KeyError,), retry_backoff=True, retry_backoff_max=1, retry_jitter=True, max_retries=2)
def jittering(self, good=2):
    note("run", self)
    if self.request.retries < good:
        raise KeyError("not yet")
    return self.request.retries

@vtrr.task(autoretry_for=(Exception,), dont_autoretry_for=(KeyError,), default_retry_delay=0.1)
def choosy(self, error):
    note("run", self)
    if not self.request.retries:
        raise {"key": KeyError, "value": ValueError}[error]("no")
    return self.request.retries

@vtrr.task
def with_eta(self):
    note("run", self)
    if not self.request.retries:
        raise self.retry(eta=datetime.now(timezone.utc) + timedelta(seconds=1.5))
    return self.request.retries

@vtrr.task(max_retries=1)
def exhausted(self):
    note("run", self)
    raise self.retry(exc=LookupError("still not"), countdown=0)

@vtrr.task(max_retries=0)
def never(self):
    note("run", self)
    raise self.retry(countdown=0)

@vtrr.task(max_retries=3)
def stumbling(self, times):
    note("run", self, key=self.request.get("vtrr_partition"))
    if self.request.retries < times:
        raise self.retry(countdown=0)

@vtrr.task(max_retries=3, default_retry_delay=0.5)
def failing(self):
    note("run", self)
    time.sleep(0.02)
    raise self.retry()

@vtrr.task
def plain(self):
    note("run", self)
'''


@pytest.fixture(scope="module")
def retrying(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Bed(redis_server, tmp_path_factory.mktemp("retries"), "retrying") as bed:
        app = bed.load(TASKS, sweep_interval=1)
        bed.worker(concurrency=2)
        yield SimpleNamespace(bed=bed, app=app)


@pytest.fixture
def bed_of(retrying: Any) -> Bed:
    return retrying.bed


@pytest.fixture
def app(retrying: Any) -> ModuleType:
    return retrying.app


def runs(bed: Bed, id: str) -> list[dict[str, Any]]:
    return [event for event in bed.events("run") if event["id"] == id]


def retries(bed: Bed, id: str) -> list[int]:
    return [event["retries"] for event in runs(bed, id)]


def test_changed_arguments_arrive(bed_of: Bed, app: ModuleType) -> None:
    """C56."""
    (result,) = app.changed.queue("u", [{"args": [1], "kwargs": {"newarg": "first"}}])
    assert result.get(timeout=120) == [2, "CHANGED"]
    assert [(event["value"], event["newarg"]) for event in runs(bed_of, result.id)] == [(1, "first"), (2, "CHANGED")]


def test_a_base_class_may_have_a_retry_of_its_own(bed_of: Bed, app: ModuleType) -> None:
    (result,) = app.by_base.queue("u", [{}])
    assert result.get(timeout=120) == 2
    assert retries(bed_of, result.id) == [0, 1, 2]
    assert len([event for event in bed_of.events("own retry") if event["id"] == result.id]) == 2


def test_autoretry_with_backoff(bed_of: Bed, app: ModuleType) -> None:
    (result,) = app.backing_off.queue("u", [{}])
    with pytest.raises(KeyError):
        result.get(timeout=120)
    first, second, third = (event["at"] for event in runs(bed_of, result.id))
    assert second - first >= 1
    assert third - second >= 2
    assert retries(bed_of, result.id) == [0, 1, 2]
    assert "KeyError" in wait_for(lambda: letter_of(app, result.id)).error


def test_autoretry_with_jitter(bed_of: Bed, app: ModuleType) -> None:
    (good,) = app.jittering.queue("u", [{}])
    (bad,) = app.jittering.queue("u", [{"args": [5]}])
    assert good.get(timeout=120) == 2
    with pytest.raises(KeyError):
        bad.get(timeout=120)
    assert retries(bed_of, bad.id) == [0, 1, 2]


@pytest.mark.skipif(celery.VERSION < (5, 3), reason="Celery has dont_autoretry_for from 5.3 on")
def test_autoretry_only_for_some_errors(bed_of: Bed, app: ModuleType) -> None:
    (other,) = app.choosy.queue("u", [{"args": ["value"]}])
    (excluded,) = app.choosy.queue("u", [{"args": ["key"]}])
    assert other.get(timeout=120) == 1
    with pytest.raises(KeyError):
        excluded.get(timeout=120)
    assert retries(bed_of, excluded.id) == [0]


def test_retry_with_an_eta(bed_of: Bed, app: ModuleType) -> None:
    (result,) = app.with_eta.queue("u", [{}])
    assert result.get(timeout=120) == 1
    first, second = (event["at"] for event in runs(bed_of, result.id))
    assert second - first >= 1.3


def test_when_retries_are_used_up_the_error_stands(bed_of: Bed, app: ModuleType) -> None:
    (result,) = app.exhausted.queue("u", [{}])
    with pytest.raises(LookupError, match="still not"):
        result.get(timeout=120)
    (none,) = app.never.queue("u", [{}])
    with pytest.raises(app.never.MaxRetriesExceededError):
        none.get(timeout=120)
    assert retries(bed_of, result.id) == [0, 1]
    assert retries(bed_of, none.id) == [0]
    assert wait_for(lambda: letter_of(app, result.id)).error == "LookupError: still not"


def test_a_retry_waits_in_the_queue_not_in_the_broker(bed_of: Bed, app: ModuleType) -> None:
    (result,) = app.once.queue("u", [{"args": [600]}])
    wait_for(lambda: result.state == states.RETRY)
    wait_for(lambda: app.vtrr.find(result.id).state == "delayed")
    wait_for(lambda: not bed_of.unacknowledged())
    assert bed_of.server.client(0).llen(bed_of.celery_queue) == 0
    assert app.vtrr.find(result.id).state == "delayed"
    # Its time has come.
    bed_of.store.zadd(bed_of.key("delayed"), {result.id: 1})
    assert result.get(timeout=120) == 1


def restore(app: ModuleType) -> None:
    """What kombu does from time to time: puts back messages that were not acknowledged within the visibility timeout."""
    with app.app.connection() as connection:
        connection.default_channel.qos.restore_visible()


def test_a_delay_longer_than_the_visibility_timeout(bed: Bed) -> None:
    """C09."""
    app = bed.load(TASKS, conf={"broker_transport_options": {"visibility_timeout": 1}}, sweep_interval=1)
    for _ in range(2):
        bed.worker(concurrency=1)
    (result,) = app.once.queue("u", [{"args": [6]}])
    wait_for(lambda: result.state == states.RETRY)
    for _ in range(3):
        time.sleep(1)
        restore(app)
    assert result.get(timeout=120) == 1
    bed.drained()
    assert retries(bed, result.id) == [0, 1]


# With a burst a worker takes up to 16 short tasks at once, and A's retries can only be placed after these.
@pytest.mark.parametrize(("burst", "most", "length"), [(0, 2, 40), (0.1, 10, 20)])
def test_retries_are_charged_and_take_their_turn(bed: Bed, burst: float, most: int, length: int) -> None:
    """C29: A's tasks run four times each, B's once; B gets every second run all the same."""
    app = bed.load(TASKS, sweep_interval=1, burst=burst)
    a = app.stumbling.queue("A", [{"args": [3]} for _ in range(5)])
    app.stumbling.queue("B", [{"args": [0]} for _ in range(20)])
    bed.worker(concurrency=1)
    bed.drained()
    ids = {result.id for result in a}
    users = "".join("A" if event["id"] in ids else "B" for event in bed.events("run"))
    assert users.count("A") == users.count("B") == 20
    leads = [abs(users[:n].count("A") - users[:n].count("B")) for n in range(1, length + 1)]
    assert max(leads) <= most, users


def test_a_newcomer_does_not_wait_for_retries(bed: Bed) -> None:
    """C29: many of A's retries are due; B's only task is next but one."""
    app = bed.load(TASKS, sweep_interval=1)
    worker = bed.worker(concurrency=1)
    app.failing.queue("A", [{} for _ in range(40)])
    wait_for(lambda: len(bed.events("run")) >= 40)
    # Whatever was due before now has run or waits; from here on retries and B compete.
    with worker.paused():
        before = len(bed.events("run"))
        (result,) = app.plain.queue("B", [{}])
    wait_for(lambda: runs(bed, result.id))
    position = [event["id"] for event in bed.events("run")[before:]].index(result.id)
    assert position <= 3, position
    bed.drained()
    assert len(bed.events("run")) == 161


def test_retries_through_the_broker(bed: Bed) -> None:
    """0.1.0's way, if asked for: past the queue, in a message with an ETA."""
    app = bed.load(TASKS, retry_through="broker", sweep_interval=1)
    bed.worker(concurrency=2)
    (result,) = app.once.queue("u", [{"args": [6]}])
    wait_for(lambda: result.state == states.RETRY)
    wait_for(lambda: app.vtrr.find(result.id) is None)
    assert result.get(timeout=120) == 1
    (changed,) = app.changed.queue("u", [{"args": [1]}])
    assert changed.get(timeout=120) == [2, "CHANGED"]
    (exhausted,) = app.exhausted.queue("u", [{}])
    with pytest.raises(LookupError):
        exhausted.get(timeout=120)
    assert retries(bed, result.id) == [0, 1]
    assert retries(bed, exhausted.id) == [0, 1]
    bed.drained()

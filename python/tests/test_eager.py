"""`task_always_eager`: each task runs at `.queue()`, in order, as it would in a worker, without Redis."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import pytest
import redis
from celery import Celery, Task

from vtrr_queue import InvalidArgument, InvalidArgumentType, VTRRQueue

DAY = datetime.date(2024, 1, 31)


class NoRedis(redis.Redis):
    """A client that is not to be used."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        raise AssertionError(f"{args[:2]} was sent to Redis")


class Base(Task):  # type: ignore[misc]
    succeeded: list[Any] = []

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.succeeded.append(task_id)


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 cannot print the tracebacks of Celery 5.2, and pytest makes that an error."""
    monkeypatch.setattr(logging.getLogger("celery.app.trace"), "disabled", True)


@pytest.fixture
def app() -> Celery:
    # A broker that is not there.
    app = Celery("eager", broker="redis://127.0.0.1:1/0", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True)
    return app


@pytest.fixture
def vtrr(app: Celery) -> VTRRQueue:
    return VTRRQueue(redis_client=NoRedis(), celery_app=app, name="eager")


def test_each_task_runs_at_its_call_in_order(vtrr: VTRRQueue) -> None:
    ran: list[int] = []

    @vtrr.task
    def work(self: Any, n: int) -> int:
        ran.append(n)
        return n * 2

    results = work.queue("u", [{"args": [1]}, {"args": [2]}])
    assert ran == [1, 2]
    assert ([result.get() for result in results], results.duplicates) == ([2, 4], [])
    assert all(result.successful() and result.state == "SUCCESS" for result in results)
    work.queue("u", [{"args": [3]}])
    assert ran == [1, 2, 3]
    # One after the other, not within each other.
    assert len(work.queue("u", [{"args": [n]} for n in range(4, 5004)])) == 5000
    assert ran == list(range(1, 5004))
    assert work.queue("u", []) == []


def test_arguments_are_encoded_and_checked_as_usual(vtrr: VTRRQueue) -> None:
    seen: list[Any] = []

    @vtrr.task
    def work(self: Any, *args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    @vtrr.task
    def one(self: Any, key: str) -> None:
        seen.append(key)

    given = [1, 2]
    work.queue("u", [{"args": [(1, 2), {1: "a"}, DAY, given], "kwargs": {"b": (3,)}}])
    assert seen == [(([1, 2], {"1": "a"}, DAY, [1, 2]), {"b": [3]})]
    assert seen[0][0][3] is not given
    for partition, tasks, kind in [
        ("u", [{"args": [{1}]}], InvalidArgumentType),
        ("u", [{}, {"weight": 0}], InvalidArgument),
        ("", [{}], InvalidArgument),
    ]:
        with pytest.raises(kind):
            work.queue(partition, tasks)
    with pytest.raises(InvalidArgumentType, match="does not fit"):
        one.queue("u", [{"args": ["fine"]}, {}])
    assert len(seen) == 1


def test_the_id_is_the_tasks_own(vtrr: VTRRQueue) -> None:
    seen: list[str] = []

    @vtrr.task
    def work(self: Any, *args: Any) -> None:
        seen.append(self.request.id)

    @vtrr.task
    def readme(self: Any, task_id: str, key: str) -> tuple[str, str]:
        return task_id, key

    results = work.queue("u", [{"id": "mine"}, {}, {"id": 5}])
    assert [result.id for result in results] == seen
    assert (seen[0], seen[2]) == ("mine", "5")
    twice = work.queue("u", [{"id": "x"}, {"id": "x"}])
    assert ([result.id for result in twice], twice.duplicates, seen[3:]) == (["x", "x"], ["x"], ["x"])
    (result,) = readme.queue("u", [{"id": "t", "args": ["k"]}])
    assert tuple(result.get()) == ("t", "k")


def test_errors_propagate_only_if_asked_for(app: Celery, vtrr: VTRRQueue) -> None:
    ran: list[int] = []

    @vtrr.task
    def work(self: Any, n: int) -> None:
        ran.append(n)
        if n == 1:
            raise ZeroDivisionError("one")

    results = work.queue("u", [{"args": [n]} for n in range(3)])
    assert [result.state for result in results] == ["SUCCESS", "FAILURE", "SUCCESS"]
    assert ran == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="one"):
        results[1].get()
    app.conf.task_eager_propagates = True
    ran.clear()
    with pytest.raises(ZeroDivisionError, match="one"):
        work.queue("u", [{"args": [n]} for n in range(3)])
    assert ran == [0, 1]


def test_retries_run_at_once(vtrr: VTRRQueue) -> None:
    seen: list[Any] = []

    @vtrr.task(max_retries=3)
    def by_hand(self: Any, n: int, word: str = "") -> Any:
        seen.append((self.request.retries, word))
        if self.request.retries < n:
            raise self.retry(args=[n, "changed"], kwargs={}, countdown=60)
        return self.request.retries

    @vtrr.task(autoretry_for=(KeyError,), max_retries=2, retry_backoff=60)
    def by_itself(self: Any, n: int) -> Any:
        if self.request.retries < n:
            raise KeyError(n)
        return self.request.retries

    (result,) = by_hand.queue("u", [{"id": "r", "args": [2]}])
    assert result.id == "r"
    assert seen == [(0, ""), (1, "changed"), (2, "changed")]
    assert result.get() == 2
    (result,) = by_itself.queue("u", [{"args": [2]}])
    assert result.get() == 2
    (result,) = by_itself.queue("u", [{"args": [9]}])
    assert (result.state, type(result.result)) == ("FAILURE", KeyError)


def test_retries_with_propagation_are_as_celery_has_them(app: Celery, vtrr: VTRRQueue) -> None:
    app.conf.task_eager_propagates = True
    seen: list[Any] = []

    def body(self: Any, n: int) -> Any:
        seen.append((self.name, self.request.retries))
        if self.request.retries < n:
            raise self.retry(countdown=60, exc=KeyError(n))

    plain = app.task(bind=True, name="plain", max_retries=2)(body)
    fair = vtrr.task(name="fair", max_retries=2)(body)
    for n in (1, 9):
        outcomes = []
        for call in (lambda n=n: plain.delay(n), lambda n=n: fair.queue("u", [{"args": [n]}])):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever Celery raises
                call()
            outcomes.append((type(raised.value), str(raised.value)))
        assert outcomes[0] == outcomes[1]
    assert [n for name, n in seen if name == "fair"] == [n for name, n in seen if name == "plain"]


def test_hooks_and_plain_calls(vtrr: VTRRQueue) -> None:
    Base.succeeded.clear()

    @vtrr.task(base=Base, ignore_result=True)
    def work(self: Any, n: int) -> int:
        return n + 1

    work.queue("u", [{"id": "hook", "args": [1]}])
    assert Base.succeeded == ["hook"]
    assert work.delay(1).get() == 2
    assert work.apply_async([2]).get() == 3
    assert work.s(3).apply().get() == 4
    assert work(5) == 6


def test_tasks_that_queue_tasks(vtrr: VTRRQueue) -> None:
    ran: list[int] = []

    @vtrr.task
    def tree(self: Any, depth: int) -> None:
        ran.append(depth)
        if depth:
            tree.queue("u", [{"args": [depth - 1]}] * 2)

    tree.queue("u", [{"args": [5]}])
    assert len(ran) == 63

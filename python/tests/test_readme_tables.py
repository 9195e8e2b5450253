"""The tables of 0.1.0's README: parameters, defaults, options."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import redis
from celery import Celery, Task

import reference
from vtrr_queue import VTRRQueue, VTRRTask


@pytest.fixture
def queue() -> VTRRQueue:
    """A queue that nothing is asked of."""
    return VTRRQueue(redis.Redis(), Celery("options", broker="memory://", set_as_current=False), name="options")


def test_parameters_of_the_queue_have_the_defaults_of_the_table() -> None:
    parameters = inspect.signature(VTRRQueue).parameters
    rows = reference.table("VTRRQueue parameters")
    assert len(rows) == 5
    for name, _type, default, _ in rows:
        expected = inspect.Parameter.empty if default == "required" else eval(default.strip("`"))
        assert parameters[name.strip("`")].default == expected
    # Positional as in 0.1.0, and whatever else there is has a default.
    positional = [name for name, at in parameters.items() if at.kind is at.POSITIONAL_OR_KEYWORD]
    assert positional == ["redis_client", "celery_app"]
    known = {name.strip("`") for name, *_ in rows}
    assert all(at.default is not at.empty for name, at in parameters.items() if name not in known)
    assert parameters["max_concurrency"].default == VTRRQueue.DEFAULT_MAX_CONCURRENCY


def test_parameters_of_the_call_are_those_of_the_table() -> None:
    parameters = dict(inspect.signature(VTRRTask.queue).parameters)
    del parameters["self"]
    rows = reference.table(".queue() parameters")
    assert [name.strip("`") for name, *_ in rows] == list(parameters)[: len(rows)] == ["partition_key", "tasks"]
    assert all(at.default is not at.empty for at in list(parameters.values())[len(rows) :])


def test_the_ten_options_reach_celery(queue: VTRRQueue) -> None:
    class Base(Task):  # type: ignore[misc]
        abstract = True

    values: dict[str, Any] = {
        "base": Base,
        "max_retries": 7,
        "default_retry_delay": 8,
        "autoretry_for": (KeyError,),
        "retry_backoff": 2,
        "retry_backoff_max": 9,
        "retry_jitter": False,
        "retry_kwargs": {"countdown": 10},
        "soft_time_limit": 11,
        "time_limit": 12,
    }
    assert {option.strip("`") for option, _ in reference.table("Celery task options")} == set(values)

    @queue.task(**values)
    def work(self: Any) -> None: ...

    assert isinstance(work, Base)
    assert isinstance(work, VTRRTask)
    for option in set(values) - {"base"}:
        assert getattr(work, option) == values[option], option
    for option, value in values.items():
        queue.task(**{option: value})(lambda self: None)

    @queue.task
    def plain(self: Any) -> None: ...

    assert plain.default_retry_delay == 180  # as the table says
    assert plain.max_retries == 3  # Celery's


OTHERS = ["acks_late", "queue", "rate_limit", "priority", "serializer", "expires", "acks_on_failure_or_timeout"]
OTHERS += ["store_errors_even_if_ignored", "send_events", "shared", "run", "max_retry", "Strategy", "compression"]


@pytest.mark.parametrize("option", OTHERS)
def test_other_options_are_a_type_error_at_decoration(queue: VTRRQueue, option: str) -> None:
    with pytest.raises(TypeError, match=rf"@vtrr.task does not support option\(s\): {option}"):
        queue.task(**{option: None, "max_retries": 1})(lambda self: None)
    assert not queue.tasks


def test_it_is_always_bound(queue: VTRRQueue) -> None:
    @queue.task(bind=True)
    def work(self: Any, number: int) -> Any:
        return self, number

    task, number = work(3)
    assert (task.name, number) == (work.name, 3)
    with pytest.raises(TypeError, match="bind must be True"):
        queue.task(bind=False)(lambda self: None)

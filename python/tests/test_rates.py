"""What Celery's remote control and annotations say of rates and times: rates hold no tickets, limits reach the task."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from bed import Bed, letter_of
from servers import wait_for

TASKS = """
@vtrr.task
def rated(self, seconds=0):
    note("end", self)
    return self.request.id

@vtrr.task(time_limit=60)
def rated_and_limited(self):
    return self.request.id

@vtrr.task
def free(self, seconds=0):
    time.sleep(seconds)
    return self.request.id
"""


def load(bed: Bed, tasks: str, **conf: Any) -> ModuleType:
    return bed.load(tasks, conf={"task_default_queue": f"{bed.name}_plain", **conf}, sweep_interval=0.5)


def tell(app: ModuleType, what: str, task: Any, *args: Any, **kwargs: Any) -> None:
    """Remote control, until the worker has answered."""
    wait_for(lambda: getattr(app.app.control, what)(task.name, *args, reply=True, **kwargs))


def warnings_of(bed: Bed, name: str) -> list[str]:
    return [line for line in bed.workers[0].log().splitlines() if "WARNING" in line and "rate" in line and name in line]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_rate_limits_hold_calls_and_no_tickets(bed: Bed, pool: str) -> None:
    """A ticket has the name of some task, and takes whatever is next: others' tasks, too."""
    rate = {"rate_limit": "1/h"}
    app = load(bed, TASKS, task_annotations={f"{bed.name}.{name}": rate for name in ("rated", "rated_and_limited")})
    bed.worker(pool, 2, queues=f"{bed.celery_queue},{bed.name}_plain")
    first, second = app.rated.delay(), app.rated.delay()
    first.get(timeout=120)
    results = [result for task in (app.rated, app.rated_and_limited, app.free) for result in task.queue(task.name, [{}] * 5)]
    assert [result.get(timeout=120) for result in results] == [result.id for result in results]
    bed.drained()
    assert not second.ready(), "the calls are Celery's, and are limited by it"


def test_a_rate_limit_is_warned_of_once_by_name(bed: Bed) -> None:
    """Whether it was configured or set by remote control: it does not limit what is queued."""
    app = load(bed, TASKS, task_annotations={f"{bed.name}.rated": {"rate_limit": "1/h"}})
    bed.worker(concurrency=1)
    (warning,) = wait_for(lambda: warnings_of(bed, app.rated.name))
    assert "1/h" in warning
    assert ".queue()" in warning
    assert "a VTRRQueue of their own" in warning
    tell(app, "rate_limit", app.free, "2/h")
    results = app.free.queue("u", [{}] * 5)
    assert [result.get(timeout=120) for result in results] == [result.id for result in results]
    wait_for(lambda: warnings_of(bed, app.free.name))
    # Several turns later it is still one line for each.
    key, turns = app.vtrr._core.sweeper_key, set[int]()
    wait_for(lambda: turns.add(bed.store.pttl(key)) or len(turns) > 5)
    assert len(warnings_of(bed, app.rated.name)) == len(warnings_of(bed, app.free.name)) == 1
    assert not warnings_of(bed, app.rated_and_limited.name)


TIMES = """
@vtrr.task
def slow(self, seconds):
    note("start", self)
    time.sleep(seconds)
    return "ended"

@vtrr.task(time_limit=1)
def strict(self, seconds):
    note("start", self)
    time.sleep(seconds)
    return "ended"

@vtrr.task
def steady(self, seconds):
    note("start", self)
    time.sleep(seconds)
    return "ended"

@vtrr.task
def other(self):
    return self.request.id
"""


def test_time_limits_by_remote_control_reach_tasks(bed: Bed) -> None:
    """Celery tells the main process alone; tasks are taken by its children, some forked before that."""
    app = load(bed, TIMES)
    bed.worker(concurrency=1)
    (before,) = app.slow.queue("u", [{"args": [1.5]}])
    assert before.get(timeout=120) == "ended"
    tell(app, "time_limit", app.slow, hard=1)
    (hard,), others = app.slow.queue("u", [{"args": [60]}]), app.other.queue("v", [{}] * 3)
    with pytest.raises(TimeLimitExceeded):
        hard.get(timeout=120)
    assert "TimeLimitExceeded" in wait_for(lambda: letter_of(app, hard.id)).error
    assert [result.get(timeout=120) for result in others] == [result.id for result in others]
    tell(app, "time_limit", app.slow, soft=1)
    (soft,) = app.slow.queue("u", [{"args": [60]}])
    with pytest.raises(SoftTimeLimitExceeded):
        soft.get(timeout=120)
    tell(app, "time_limit", app.slow)
    (unlimited,) = app.slow.queue("u", [{"args": [3]}])
    assert unlimited.get(timeout=120) == "ended"


def test_a_time_limit_of_the_task_itself_can_be_changed_and_lifted(bed: Bed) -> None:
    app = load(bed, TIMES)
    bed.worker(concurrency=1)
    for limits in ({"hard": 30}, {}):
        tell(app, "time_limit", app.strict, **limits)
        results = [*app.strict.queue("u", [{"args": [2.5]}]), *app.other.queue("v", [{}])]
        assert [result.get(timeout=120) for result in results] == ["ended", results[1].id]
    tell(app, "time_limit", app.strict, hard=1)
    (result,) = app.strict.queue("u", [{"args": [60]}])
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=120)


def test_time_limits_by_remote_control_reach_calls(bed: Bed) -> None:
    app = load(bed, TIMES)
    bed.worker(queues=f"{bed.celery_queue},{bed.name}_plain", concurrency=1)
    tell(app, "time_limit", app.slow, hard=1)
    with pytest.raises(TimeLimitExceeded):
        app.slow.delay(60).get(timeout=120)


def test_a_new_limit_is_not_lent_by_tickets_that_wait(bed: Bed) -> None:
    """They were received before it; what they take is another's task."""
    app = load(bed, TIMES)
    bed.worker(concurrency=1)
    (busy,) = app.steady.queue("u", [{"args": [1]}])
    wait_for(lambda: bed.events("start"))
    app.vtrr.cancel([result.id for result in app.slow.queue("v", [{"args": [0]}] * 3)])
    tell(app, "time_limit", app.slow, hard=1)
    (long,) = app.steady.queue("w", [{"args": [3]}])
    assert [busy.get(timeout=120), long.get(timeout=120)] == ["ended", "ended"]

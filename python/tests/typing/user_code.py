"""Code as users write it, for mypy: what is wrong says so at the end of its line."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery
from typing_extensions import assert_type

from vtrr_queue import DeadLetter, Found, Purged, Results, Stats, TaskResult, Unfinished, VTRRQueue, VTRRTask

app = Celery("app", broker="redis://localhost/0")
vtrr = VTRRQueue(redis_client=redis.Redis(), celery_app=app, name="files", max_concurrency=8, lease=60)


@vtrr.task
def work(self: VTRRTask[Any, Any], key: str, count: int = 1) -> float:
    self.update_state(state="BUSY")
    return len(key) * float(count)


@vtrr.task(max_retries=3, soft_time_limit=60, autoretry_for=(OSError,))
def with_options(self: Any, key: str, *, fast: bool = False) -> None:
    if fast:
        raise self.retry(countdown=5)


@vtrr.task()
def bare(self: Any) -> str:
    return str(self.request.id)


# As tasks are called.
assert_type(work("x"), float)
assert_type(work("x", 2), float)
assert_type(work("x", count=2), float)
with_options("x", fast=True)
assert_type(bare(), str)
work.delay("x", 2)
work.apply_async(["x"], countdown=5)
work.s("x")
work.si("x", count=2)

work("x", 1, 2)  # E: call-arg
work(1)  # E: arg-type
work()  # E: call-arg
work("x", conut=1)  # E: call-arg
work.delay("x", "y")  # E: arg-type
work.delay()  # E: call-arg
with_options("x", True)  # E: call-arg
bare("x")  # E: call-arg

# As they are queued.
results = work.queue("user-1", [{"args": ["x"], "weight": 2}, {"kwargs": {"key": "y"}, "id": "mine"}])
assert_type(results, Results)
assert_type(results[0], TaskResult)
assert_type(results.duplicates, list[str])
work.queue(5, ({"args": (key,)} for key in "abc"), request="r")
bare.queue_on_commit("user-1", [{}], using="default")
results[0].revoke()

work.queue("user-1")  # E: call-arg
work.queue("user-1", [1])  # E: list-item
work.queue("user-1", [{}], countdown=5)  # E: call-arg
work.queue("user-1", [{}], request=5)  # E: arg-type

# What the queue answers.
assert_type(vtrr.stats(), Stats)
assert_type(vtrr.stats().next_due, float | None)
assert_type(vtrr.find("x"), Found | None)
assert_type(vtrr.purge(), Purged)
assert_type(vtrr.cancel(["x", 1]), dict[str, str])
assert_type(vtrr.dead_letters(limit=10), list[DeadLetter])
assert_type(vtrr.redrive(letter.id for letter in vtrr.dead_letters()), list[bool])
assert_type(len(vtrr), int)
vtrr.set_share("user-1", 2.5)

print(vtrr.find("x").state)  # E: union-attr
vtrr.set_share("user-1", "2")  # E: arg-type
VTRRQueue(redis.Redis(), app)  # E: call-arg
VTRRQueue(redis.Redis(), app, name="x", leese=5)  # E: call-arg


def finish(error: redis.RedisError) -> list[str]:
    unfinished: Unfinished = error.unfinished  # type: ignore[attr-defined]
    return unfinished.ids

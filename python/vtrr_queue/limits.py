"""Limits that Celery enforces on whole messages, of tasks and of the worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery.exceptions import WorkerShutdown, WorkerTerminate

if TYPE_CHECKING:
    from .queue import VTRRQueue

# The attributes of a task; remote control gives them to the task of the main process, and to that alone.
NAMES = ("time_limit", "soft_time_limit")

# The worker's own, noted by its main process before it forks: no task shows them.
_worker: dict[str, Any] = {}


def note_worker(worker: Any) -> None:
    """Notes time limits, tasks and memory per child of a worker."""
    _worker.update(
        time=bool(getattr(worker, "time_limit", None) or getattr(worker, "soft_time_limit", None)),
        hard=bool(getattr(worker, "time_limit", None)),
        timeouts=getattr(worker.pool_cls, "__module__", "") == "celery.concurrency.gevent",
        child=bool(getattr(worker, "max_tasks_per_child", None) or getattr(worker, "max_memory_per_child", None)),
    )


def of_worker() -> bool:
    """Whether the worker limits the time of every message."""
    return bool(_worker.get("time"))


def of_child() -> bool:
    """Whether the worker replaces its processes after some messages or some memory."""
    return bool(_worker.get("child"))


def of_task(task: Any) -> bool:
    """Whether a task has a time limit, its own or the app's."""
    if getattr(task, "time_limit", None) or getattr(task, "soft_time_limit", None):
        return True
    limits: bool = task.app.__dict__.get("vtrr_limits")
    if limits is None:
        # A look into the configuration costs as much as a short task.
        conf = task.app.conf
        limits = task.app.vtrr_limits = bool(conf.task_time_limit or conf.task_soft_time_limit)
    return limits


@contextmanager
def aside(task: Any) -> Iterator[None]:
    """Meanwhile the task seems to have no limits. Celery looks once, when it begins to consume; ours are looked at when a
    message goes to the pool, so that `control.time_limit` has an effect."""
    own = {name: task.__dict__[name] for name in NAMES if name in task.__dict__}
    task.__dict__.update(dict.fromkeys(NAMES))
    try:
        yield
    finally:
        for name in NAMES:
            del task.__dict__[name]
        task.__dict__.update(own)


def changed(vtrr: VTRRQueue) -> dict[str, tuple[Any, Any]]:
    """The limits, hard and soft, that remote control has given to tasks of a queue."""
    own = vtrr.celery_app.tasks
    tasks = [(name, own[name]) for name in list(vtrr.tasks) if name in own]
    return {name: (task.time_limit, task.soft_time_limit) for name, task in tasks if not task.__dict__.keys().isdisjoint(NAMES)}


def learn(app: Any, limits: dict[str, tuple[Any, Any]]) -> None:
    """Takes on what ``changed`` has answered in the worker's main process."""
    for name, (hard, soft) in limits.items():
        task = app.tasks.get(name)
        if task is not None and (task.time_limit, task.soft_time_limit) != (hard, soft):
            task.time_limit, task.soft_time_limit = hard, soft


def same(one: Any, other: Any) -> bool:
    """Whether Celery enforces the same limits on messages of either task."""
    return (one.time_limit, one.soft_time_limit) == (other.time_limit, other.soft_time_limit)


def is_timeout(error: BaseException, task: Any) -> bool:
    """Whether it is how the gevent pool ends what passes its hard limit; the task's own use of `Timeout` aside."""
    kind = getattr(sys.modules.get("gevent"), "Timeout", None)
    if kind is None or not isinstance(error, kind) or not _worker.get("timeouts"):
        return False
    return bool(_worker.get("hard") or task.time_limit or task.app.conf.task_time_limit)


def is_stop(error: BaseException) -> bool:
    """Whether it is how a worker is stopped, rather than something that a task has raised."""
    killed = getattr(sys.modules.get("greenlet"), "GreenletExit", WorkerTerminate)
    return isinstance(error, (WorkerShutdown, WorkerTerminate, KeyboardInterrupt, killed))

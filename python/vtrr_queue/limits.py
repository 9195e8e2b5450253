"""Limits that Celery enforces on messages, of tasks and of the worker."""

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

# No limit, where that must be said: seconds.
NEVER = 10 * 365 * 86400.0

# The worker's own, noted by its main process before it forks: no task shows them.
_worker: dict[str, Any] = {}


def note_worker(worker: Any) -> None:
    """Notes time limits, tasks and memory per child of a worker."""
    _worker.update(
        hard=getattr(worker, "time_limit", None),
        soft=getattr(worker, "soft_time_limit", None),
        processes=bool(getattr(worker.pool_cls, "uses_semaphore", False)),
        greenlets=getattr(worker.pool_cls, "__module__", "") == "celery.concurrency.gevent",
        child=bool(getattr(worker, "max_tasks_per_child", None) or getattr(worker, "max_memory_per_child", None)),
    )


def are_of_processes() -> bool:
    """Whether the pool runs tasks in processes, and enforces both limits."""
    return bool(_worker.get("processes"))


def are_of_greenlets() -> bool:
    """Whether the pool is gevent's, which enforces hard limits."""
    return bool(_worker.get("greenlets"))


def of_worker() -> bool:
    """Whether the worker limits the time of every task, itself or by the app's configuration; as far as the pool enforces
    that."""
    hard, soft = _worker.get("hard"), _worker.get("soft")
    return bool((hard or soft) if are_of_processes() else hard and are_of_greenlets())


def of_child() -> bool:
    """Whether the worker replaces its processes after some messages or some memory."""
    return bool(_worker.get("child"))


def of_task(task: Any) -> bool:
    """Whether a task has a time limit that the pool enforces, its own or the worker's."""
    if are_of_processes():
        return of_worker() or bool(task.time_limit or task.soft_time_limit)
    return are_of_greenlets() and (of_worker() or bool(task.time_limit))


def apply_to(task: Any, vtrr: VTRRQueue) -> bool:
    """Whether a task that was dequeued needs a message of its own. What is not of its queue has none."""
    of = getattr(task, "vtrr", None)
    return of is not None and of.name == vtrr.name and of_task(task)


def of_any(vtrr: VTRRQueue) -> bool:
    """Whether any task of a queue is under a limit."""
    own = vtrr.celery_app.tasks
    return of_worker() or any(of_task(own[name]) for name in list(vtrr.tasks) if name in own)


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


def is_timeout(error: BaseException, task: Any) -> bool:
    """Whether it is how the gevent pool ends what passes its hard limit; the task's own use of `Timeout` aside."""
    kind = getattr(sys.modules.get("gevent"), "Timeout", None)
    return kind is not None and isinstance(error, kind) and are_of_greenlets() and of_task(task)


def greenlet_exit() -> type[BaseException]:
    """What is raised in a greenlet that is killed."""
    kind: type[BaseException] = getattr(sys.modules.get("greenlet"), "GreenletExit", WorkerTerminate)
    return kind


def is_stop(error: BaseException) -> bool:
    """Whether it is how a worker is stopped, rather than something that a task has raised."""
    return isinstance(error, (WorkerShutdown, WorkerTerminate, KeyboardInterrupt, greenlet_exit()))

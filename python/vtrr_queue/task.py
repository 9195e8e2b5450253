"""The task class that is woven into every ``@vtrr.task``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar

from celery import Task
from celery.utils.imports import symbol_by_name

from . import tickets
from .results import Results

if TYPE_CHECKING:
    from .queue import VTRRQueue

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["VTRRTask"]

# The mark of a plain message.
CALL = {tickets.MARK: tickets.CALL}


class VTRRTask(Task, Generic[P, R]):  # type: ignore[misc]
    """A Celery task with ``.queue()``.

    Everything else is Celery's: ``.delay``, ``.apply_async``, ``.s``, ``.si`` send plain messages past the fair order.
    """

    abstract = True
    vtrr: ClassVar[VTRRQueue]
    takes_id: ClassVar[bool] = False
    """Whether the parameter after ``self`` is named ``task_id``: then it gets the task's id, if the arguments leave it
    out."""

    if TYPE_CHECKING:
        name: str
        app: Any
        _exec_options: dict[str, Any] | None

        # Celery's; never defined here, or on 5.2 and 5.4 the body would lose its request.
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

        def delay(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    def queue(self, partition_key: object, tasks: Iterable[Mapping[str, Any]], *, request: str | None = None) -> Results:
        """Queues tasks of one partition, in order; returns one ``AsyncResult`` each.

        ``partition_key`` is text, an int or a UUID. Each task is a dict with ``args``, ``kwargs``, ``weight`` (1 to
        1,000,000) and ``id``, all optional. Up to 1,000 tasks are stored all or nothing; longer calls go in such
        pieces.

        ``InvalidArgument`` (a ``ValueError``) or ``InvalidArgumentType`` (a ``TypeError``) before anything is stored;
        ``IdConflict`` for an id that is alive in another partition. ``QueueFull`` if the call would pass a bound of the
        VTRRQueue: nothing was stored. An error of the Redis client has the attribute
        ``unfinished``: repeat the call with its ids and ``request`` to store the rest. If the broker does not answer
        within 5 s the tasks are stored all the same, and the sweep makes them run.
        """
        prepared = self.vtrr._prepare(self, partition_key, tasks)
        return self.vtrr._queue(self, prepared, request)

    def queue_on_commit(self, partition_key: object, tasks: Iterable[Mapping[str, Any]], *, using: str | None = None) -> None:
        """For Django: as ``queue``, once the transaction commits (at once if there is none); not at all if it rolls
        back.

        Arguments are checked and encoded now, bounds after the commit: ``QueueFull`` comes too late to roll back.
        ``using`` names the database.
        """
        from django.db import transaction

        prepared = self.vtrr._prepare(self, partition_key, tasks)
        transaction.on_commit(partial(self.vtrr._queue, self, prepared, None), using=using)

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: Any = None, *more: Any, **options: Any) -> Any:
        request = self.request_stack.top
        if request is not None and task_id is not None and task_id == request.id:
            retry = request.get("vtrr_retry")
            if retry is not None and options.get("retries") == (request.retries or 0) + 1:
                # However a task retries itself, it ends here.
                return retry(self, args, kwargs, task_id, options)
        if options.get("headers"):
            options["headers"] = {**options["headers"], **CALL}
        # What the caller gave, as Celery itself passes it on: the user's base class may take no more than that.
        if more:
            return super().apply_async(args, kwargs, task_id, *more, **options)
        if task_id is not None:
            options["task_id"] = task_id
        return super().apply_async(args, kwargs, **options)

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        from . import strategy

        return strategy.start(self, super().start_strategy, app, consumer, **options)

    def _get_exec_options(self) -> dict[str, Any]:
        # Celery reads a task's attribute `queue` as the name of a Celery queue; ours is a method. Without a mark, a
        # message without arguments may be a ticket of 0.1.0.
        if self._exec_options is None:
            self._exec_options = {**super()._get_exec_options(), "queue": None}
        return {**self._exec_options, "headers": dict(CALL)}

    # Celery gives every task its tracer. Ours stands around it, so that a ticket's own run is seen by no hook, signal
    # or result, and tasks of the queue run through Celery's own, as themselves.

    @property
    def __trace__(self) -> Any:
        return self.__dict__.get("_vtrr_trace")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        from .messages import run

        self.__dict__["_vtrr_tracer"] = tracer
        self.__dict__["_vtrr_trace"] = None if tracer is None else partial(run, self)

    @property
    def Request(self) -> Any:
        from .requests import request_class

        return request_class(symbol_by_name(super().Request))


def weave(base: type | None) -> type:
    """The user's base class with ours in front of it."""
    if base is None:
        return VTRRTask
    if issubclass(base, VTRRTask):
        return base
    return type(f"VTRR{base.__name__}", (VTRRTask, base), {"abstract": True, "__module__": base.__module__})

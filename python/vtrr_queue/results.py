"""What ``.queue()`` returns."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult
from vine import promise

if TYPE_CHECKING:
    from .queue import VTRRQueue

__all__ = ["Results", "TaskResult"]


class TaskResult(AsyncResult):  # type: ignore[misc]
    """The result of one queued task: Celery's, and ``revoke`` takes the task out of the queue."""

    def __init__(self, id: str, vtrr: VTRRQueue, backend: Any) -> None:
        # As Celery's, but for the promise, which is half of the cost and seldom asked for.
        self.id = id
        self.vtrr = vtrr
        self.app = vtrr.celery_app
        self.backend = backend
        self.parent = None
        self._cache = None
        self._ignored = False
        self._waited = False

    def get(self, *args: Any, **kwargs: Any) -> Any:
        self._waited = True
        return super().get(*args, **kwargs)

    wait = get

    def then(self, *args: Any, **kwargs: Any) -> Any:
        self._waited = True
        return super().then(*args, **kwargs)

    def __del__(self) -> None:
        # Celery's unsubscribes from every result that goes, whether it was waited for or not; from within the garbage
        # collector, which may run inside another call of the same client: on Celery 5.4 that was a deadlock.
        if getattr(self, "_waited", False) and self._cache is None:
            super().__del__()

    @cached_property
    def on_ready(self) -> Any:
        return promise(self._on_fulfilled, weak=True)

    def __copy__(self) -> TaskResult:
        return TaskResult(self.id, self.vtrr, self.backend)

    def __reduce__(self) -> Any:
        # Elsewhere it is Celery's: clients of Redis cannot be pickled.
        return AsyncResult, self.__reduce_args__()

    def revoke(self, *args: Any, **kwargs: Any) -> None:
        """Cancels the task if it still waits, in the store, so for good; else tells the workers, as Celery does: one that
        runs goes on, to its own end, and a retry of it is taken out by the next sweep that finds it waiting.

        Celery's ``terminate=True`` reaches a running task only if it has a time limit: then it runs in a message of its
        own.
        """
        if self.vtrr.cancel([self.id])[self.id] != "done":
            super().revoke(*args, **kwargs)


class Results(list["TaskResult"]):
    """One result per task of the call, in order."""

    duplicates: list[str]
    """The ids of those that were queued, delayed or running already, and were left as they are."""

    def __init__(self, results: Iterable[Any] = (), duplicates: Iterable[str] = ()) -> None:
        super().__init__(results)
        self.duplicates = list(duplicates)

"""A message in the worker's main process: what becomes of the tasks in its hands when its process is lost, its time is
up or it is revoked. The children only run tasks; what ends them is seen here."""

from __future__ import annotations

import itertools
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.state import task_ready

from . import connections, keeper, limits, strategy, tickets
from .messages import kind_of
from .run import in_words, storable

if TYPE_CHECKING:
    from .queue import VTRRQueue

logger = logging.getLogger(__name__)

_numbers = itertools.count(1)


class TicketRequest:
    """Stands in front of the user's (or Celery's) request class; leaves plain calls to it."""

    if TYPE_CHECKING:
        id: str
        task: Any
        time_start: float | None
        _request_dict: dict[str, Any]
        acknowledge: Any
        _already_revoked: bool
        _already_cancelled: bool
        _terminate_on_ack: Any

    # Hard and soft, of the message.
    _times: tuple[float | None, float | None] = (None, None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        request = self._request_dict
        self.vtrr: VTRRQueue = self.task.vtrr
        self.vtrr_kind = kind_of(self.task, request, request.get("args"), request.get("kwargs"))
        if self.vtrr_kind in (tickets.TICKET, tickets.BOUND):
            # Two messages may have the same id, and two workers the same name.
            self.vtrr_owner = request[tickets.OWNER] = f"{keeper.nonce()}/{next(_numbers)}"
            request[tickets.MARK] = self.vtrr_kind
            keeper.register(self)
            strategy.received(self)

    @property
    def time_limits(self) -> tuple[float | None, float | None]:
        """As they are when the pool gets the message."""
        hard, soft = self._times
        return hard or self.task.time_limit, soft or self.task.soft_time_limit

    @time_limits.setter
    def time_limits(self, times: tuple[float | None, float | None]) -> None:
        self._times = times

    @property
    def request_dict(self) -> dict[str, Any]:
        """What the pool gets. Its processes do not hear of limits that are changed by remote control, and a ticket must know
        which tasks are under one."""
        request: dict[str, Any] = super().request_dict  # type: ignore[misc]
        if (self._is_ticket or self._is_bound) and (changed := limits.changed(self.vtrr)):
            request[tickets.LIMITS] = changed
        return request

    @property
    def _is_ticket(self) -> bool:
        return self.vtrr_kind == tickets.TICKET

    @property
    def _is_bound(self) -> bool:
        return self.vtrr_kind == tickets.BOUND

    @property
    def _runs_limited(self) -> bool:
        """Whether tasks under a limit run inside this ticket."""
        return self._is_ticket and self.vtrr.tagging == "all"

    def revoked(self) -> bool:
        if self._is_bound:
            # Celery's ids of revoked tasks outlive these. A task that is revoked is taken out, so that its message finds
            # nothing to claim.
            return bool(self._already_revoked)
        return bool(super().revoked())  # type: ignore[misc]

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]
        strategy.begun(self)
        if self._is_ticket or self._is_bound:
            # Its threads may have ended since, where a worker stops.
            keeper.register(self)
            # Whatever `acks_late` says: a message that came again would take, and perhaps kill, task after task.
            self.acknowledge()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        if not (self._is_ticket or self._is_bound):
            return super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]
        error = unwrapped(exc_info)
        lost = isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt))
        # With `return_ok` the message ran to its end, and what it was for is settled. What is no `Exception` ends it
        # before that.
        broken = not return_ok and not isinstance(error, (Terminated, TimeLimitExceeded))
        if self._runs_limited and isinstance(error, TimeLimitExceeded):
            keeper.fail(self, "timeout", f"TimeLimitExceeded: {error}")
        if self._is_ticket or broken:
            task_ready(self)
            self.acknowledge()
            if broken:
                what = "a worker process was lost while it ran" if lost else "an error ended"
                logger.error("%s: %s %s: %r", self.vtrr, what, self.id, error)
            keeper.release(self, storable(f"worker lost: {error}") if lost or error is None or not broken else in_words(error))
            return None
        if isinstance(error, TimeLimitExceeded):
            keeper.fail(self, "timeout", f"TimeLimitExceeded: {error}")
        elif isinstance(error, Terminated):
            if self._terminate_on_ack is None and not self._already_revoked and not self._already_cancelled:
                # Nobody did: the process that had been sent it was lost, and the pool found its id among the revoked. Its
                # task comes back by itself.
                task_ready(self)
                self.acknowledge()
                return None
            keeper.fail(self, "revoked", "revoked: terminated")
        with connections.renewed():
            return super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft and self._is_bound:
            # Before the process is killed, and its lease could look lost.
            keeper.fail(self, "timeout", f"TimeLimitExceeded: {timeout} s")
        elif not soft and self._is_ticket:
            task_ready(self)
            if self._runs_limited:
                keeper.fail(self, "timeout", f"TimeLimitExceeded: {timeout} s")
            keeper.release(self, f"hard time limit of {timeout} s")
            return
        with connections.renewed():
            super().on_timeout(soft, timeout)  # type: ignore[misc]

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        if not (self._is_ticket or self._is_bound):
            super().cancel(*args, **kwargs)  # type: ignore[misc]
            return
        try:
            super().cancel(*args, **kwargs)  # type: ignore[misc]
        except Exception as error:
            # The solo pool cannot; the task goes on, or ends with the process.
            logger.info("%s: %s was not cancelled: %r", self.vtrr, self.id, error)

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        if not (self._is_ticket or self._is_bound):
            super()._announce_cancelled(*args, **kwargs)  # type: ignore[misc]
            return
        task_ready(self)
        self._already_cancelled = True
        keeper.stop(self)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if self._is_ticket:
            # What waits is not lost with a ticket: the sweep sends another.
            task_ready(self)
            self.acknowledge()
            self._already_revoked = True
            if terminated:
                keeper.release(self, "the ticket was terminated")
            return
        with connections.renewed():
            super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        if self._is_bound:
            if terminated:
                keeper.fail(self, "revoked", "revoked: terminated")
            else:
                keeper.cancel(self)


def unwrapped(exc_info: Any) -> BaseException | None:
    """The exception itself: billiard 4 wraps it."""
    error = exc_info.exception if isinstance(exc_info, ExceptionInfo) else exc_info
    error = getattr(error, "exception", error)
    inner: BaseException | None = getattr(error, "exc", None) or error
    return inner


@cache
def request_class(base: type) -> type:
    """The user's request class with ours in front of it."""
    return type(f"VTRR{base.__name__}", (TicketRequest, base), {})

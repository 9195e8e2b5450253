"""A message in the worker's main process: what becomes of the tasks in its hands when its process is lost, its time is
up or it is revoked. The children only run tasks; what ends them is seen here."""

from __future__ import annotations

import itertools
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.state import task_ready

from . import connections, keeper, limits, strategy, tickets
from .messages import kind_of
from .run import in_words, storable, unwrapped

if TYPE_CHECKING:
    from ._core import Delivery
    from .dispatch import Dispatch
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
        _message: Any
        execute_using_pool: Any
        acknowledge: Any
        _already_revoked: bool
        _already_cancelled: bool
        _terminate_on_ack: Any

    vtrr_dispatch: Dispatch | None = None
    # Whether a task was dequeued for it, which it has until it has ended.
    vtrr_holds = False
    # Hard and soft, of the message.
    _times: tuple[float | None, float | None] = (None, None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        request = self._request_dict
        self.vtrr: VTRRQueue = self.task.vtrr
        self.vtrr_kind = kind_of(self.task, request, request.get("args"), request.get("kwargs"))
        if self.vtrr_kind == tickets.BOUND:
            self.hold(request[tickets.OWNER], request[tickets.DELIVERY])
        elif self.vtrr_kind == tickets.TICKET:
            # Two messages may have the same id, and two workers the same name.
            self.vtrr_owner = request[tickets.OWNER] = f"{keeper.nonce()}/{next(_numbers)}"
            request[tickets.MARK] = self.vtrr_kind
            keeper.register(self)
            strategy.received(self)

    def hold(self, owner: str, delivery: Delivery) -> None:
        """A task was dequeued for this message."""
        self.vtrr_owner = self._request_dict[tickets.OWNER] = owner
        self._request_dict[tickets.DELIVERY] = delivery
        self.vtrr_holds = True
        keeper.register(self)

    @property
    def time_limits(self) -> tuple[float | None, float | None]:
        """As they are when the pool gets the message. A ticket has none: it takes whatever is next."""
        if self._is_ticket:
            # The gevent pool puts the worker's in the place of none.
            return (limits.NEVER if limits.are_of_greenlets() else None), None
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

    def revoked(self) -> bool:
        if self._is_bound:
            # Celery's ids of revoked tasks outlive these. A task that is revoked while it waits is taken out.
            return bool(self._already_revoked)
        return bool(super().revoked())  # type: ignore[misc]

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]
        strategy.begun(self)
        self.begun()
        if self._is_ticket or self._is_bound:
            # Its threads may have ended since, where a worker stops.
            keeper.register(self)
            # Whatever `acks_late` says: a message that came again would take, and perhaps kill, task after task.
            self.acknowledge()

    def begun(self) -> None:
        """A process has begun with it, or never will."""
        if self.vtrr_dispatch is not None:
            self.vtrr_dispatch.begun(self)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        if not (self._is_ticket or self._is_bound):
            return super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]
        error = unwrapped(exc_info)
        lost = isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt))
        # With `return_ok` the message ran to its end, and what it was for is settled. What is no `Exception` ends it
        # before that.
        broken = not return_ok and not isinstance(error, (Terminated, TimeLimitExceeded))
        if self._is_ticket or broken:
            task_ready(self)
            self.acknowledge()
            if self.vtrr_holds and not self.time_start:
                # Its process was lost before it began: what it was to run goes back, and nobody is to blame.
                logger.warning("%s: %s goes back, it has not begun: %r", self.vtrr, self.id, error)
                self.begun()
                keeper.give_back(self.vtrr, self.vtrr_owner)
                return None
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


@cache
def request_class(base: type) -> type:
    """The user's request class with ours in front of it."""
    return type(f"VTRR{base.__name__}", (TicketRequest, base), {})

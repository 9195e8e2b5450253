"""The run of one task of the queue as itself, by Celery's own tracer; and how to settle it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.exceptions import Reject, SoftTimeLimitExceeded

from . import backend, events
from ._core import Delivery
from .legacy import retry_by_broker
from .refusals import guard
from .retries import again, delay_of
from .tracing import fill_in, tracer_of

if TYPE_CHECKING:
    from .hand import Settling
    from .queue import VTRRQueue

logger = logging.getLogger(__name__)

# How long a task has waited for the result backend, as a field of its payload: seconds.
WAITED = "waited_for_backend"
# What cannot be run now is given back for so long, doubling.
PAUSE_SECONDS, PAUSE_MOST = 5.0, 60.0
# What a task's request has of its message's. Other headers are those of whoever queued when the ticket was sent.
KEPT = ("lang", "timelimit", "origin", "hostname", "delivery_info", "is_eager", "utc", "loglevel", "logfile")


class Run:
    """A delivery whose payload names the task ``own``. The message is the task's, or it is a ticket."""

    def __init__(
        self,
        vtrr: VTRRQueue,
        message: dict[str, Any],
        delivery: Delivery,
        payload: dict[str, Any],
        own: Any,
        *,
        is_message: bool,
    ) -> None:
        self.vtrr = vtrr
        self.delivery = delivery
        self.payload = payload
        self.own = own
        self.is_message = is_message
        # Celery itself sends the events of a message.
        self.shown = vtrr.task_events and not is_message and own.send_events
        # What Celery's tracer has answered.
        self.result: Any = None
        # The last retry that was asked for: seconds and body.
        self.again: tuple[float, bytes] | None = None
        args, kwargs = fill_in(own, delivery.id, payload["args"], payload["kwargs"])
        self.request = {
            **{key: message[key] for key in KEPT if key in message},
            "id": delivery.id,
            "task": own.name,
            "args": args,
            "kwargs": kwargs,
            "retries": payload["retries"],
            "root_id": payload.get("root_id") or delivery.id,
            "parent_id": payload.get("parent_id"),
            "reply_to": payload.get("reply_to"),
            "correlation_id": delivery.id,
            "ignore_result": own.ignore_result,
            "shadow": None,
            # Not None: Celery would make custom headers of what it does not know, and these travel with retries.
            "headers": {},
            "delivery_info": {
                **(message.get("delivery_info") or {}),
                "redelivered": delivery.losses > 0,
            },
            "vtrr_retry": self.retry,
            "vtrr_partition": delivery.partition,
        }

    def settling(self) -> Settling:
        """Runs the task and answers how to settle it."""
        if self.shown:
            events.begun(self.own, self.request)
        try:
            guard(self.own.backend)
            tracer = tracer_of(self.own)
            self.result = tracer(self.delivery.id, self.request["args"], self.request["kwargs"], self.request)
        except (SoftTimeLimitExceeded, MemoryError):
            raise
        except Exception as error:
            return self.retried() or self.escaped(error)
        if (unbegun := failed_to_begin(self.result)) is not None:
            raise unbegun
        if self.shown:
            events.ended(self.own, self.request, self.result)
        info = self.result.info
        return self.outcome(states.SUCCESS, None) if info is None else self.outcome(info.state, info.retval)

    def retry(self, task: Any, args: Any, kwargs: Any, task_id: str, options: dict[str, Any]) -> Any:
        """Stands in for `apply_async` where a task asks to be run again."""
        if self.vtrr.retry_through == "broker":
            return retry_by_broker(task, args, kwargs, task_id, options)
        delay, body = delay_of(options), again(task, self.payload, options["retries"], args, kwargs)
        # What cannot be stored is refused here, where Celery makes a failure of the task of it.
        self.vtrr._core.settle([self.end("retry", delay, body)])
        self.again = delay, body
        return task.AsyncResult(task_id)

    def end(self, outcome: str, delay: float = 0.0, text: bytes | None = None) -> Settling:
        return (self.delivery.id, self.delivery.token, outcome, delay, text)

    def retried(self) -> Settling | None:
        """A retry counts whatever the task did after it had asked for it: Celery would have sent the message by
        then."""
        return self.end("retry", *self.again) if self.again else None

    def outcome(self, state: str, error: Any) -> Settling:
        if state == states.REJECTED and getattr(error, "requeue", False):
            # It ran: else a task that gives itself back again and again would be free, and starve everybody.
            return self.end("ran")
        if (retried := self.retried()) is not None:
            return retried
        if state == states.REJECTED:
            backend.store_rejection(self.own, self.request, error, is_message=self.is_message)
        if state in (states.FAILURE, states.REJECTED):
            return self.end("failed" if state == states.FAILURE else "rejected", text=in_words(error).encode())
        return self.end("ack")

    def escaped(self, error: Exception) -> Settling:
        """After an error that left Celery's tracer: one of a hook, when the state was stored already, or of a backend
        that could not store it. The latter is not the task's fault."""
        if isinstance(error, Reject) and error.requeue:
            return self.outcome(states.REJECTED, error)
        if not backend.has_failed(error):
            logger.error("%s: a hook of %s failed: %r", self.vtrr, self.delivery.id, error)
            return self.outcome(states.FAILURE, error)
        state, result = backend.stored(self.own, self.delivery.id)
        if state in states.READY_STATES:
            logger.error("%s: the state of %s was stored, and then: %r", self.vtrr, self.delivery.id, error)
            # What the task has failed with, not what came after it.
            return self.outcome(str(state), result if isinstance(result, Exception) else error)
        if (refused := backend.refusal(error)) is not None:
            logger.error("%s: %s is set aside, it has run: %s", self.vtrr, self.delivery.id, refused)
            return self.end("backend", text=in_words(refused).encode())
        return self.unstored(error)

    def unstored(self, error: Exception) -> Settling:
        """The result backend is away: the task runs again, after growing pauses, and is charged for it, for at most
        `result_patience`."""
        # What it has waited before; a dead letter that was redriven begins anew.
        waited = float(self.payload.get(WAITED) or 0.0) if self.delivery.deliveries > 1 else 0.0
        delay = min(waited + PAUSE_SECONDS, PAUSE_MOST)
        what = f"no state of {self.delivery.id} could be stored: {in_words(error)}"
        if waited + delay > self.vtrr.result_patience:
            logger.error("%s: %s; set aside after %g s of waiting", self.vtrr, what, waited)
            return self.end("backend", text=storable(f"{what}, after {waited:g} s of waiting").encode())
        logger.error("%s: %s; given back for %g s", self.vtrr, what, delay)
        payload = self.payload
        body = again(self.own, payload, payload["retries"], payload["args"], payload["kwargs"], **{WAITED: waited + delay})
        return self.end("retry", delay, body)


def failed_to_begin(result: Any) -> BaseException | None:
    """Why Celery's tracer has not begun with a task. To Celery, that is no failure: it would drop the task."""
    if result.info is None and result.retstr is None and isinstance(result.retval, ExceptionInfo):
        return unwrapped(result.retval)
    return None


def unwrapped(exc_info: Any) -> BaseException | None:
    """The exception itself: billiard 4 wraps it."""
    error = exc_info.exception if isinstance(exc_info, ExceptionInfo) else exc_info
    error = getattr(error, "exception", error)
    inner: BaseException | None = getattr(error, "exc", None) or error
    return inner


def pause_before(delivery: Delivery) -> float:
    """Seconds until a task that cannot be run now is delivered again: twice as long each time."""
    return doubled(PAUSE_SECONDS, delivery.deliveries - 1, PAUSE_MOST)


def doubled(seconds: float, times: int, most: float) -> float:
    return min(seconds * 2.0 ** min(times, 32), most)


def in_words(error: BaseException) -> str:
    """What an error says, as it can be stored."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}: (its text cannot be had)"
    return storable(text)


def storable(text: str) -> str:
    """Without the lone surrogates of file names that are no UTF-8."""
    return text.encode(errors="replace").decode()

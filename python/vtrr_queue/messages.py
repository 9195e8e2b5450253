"""What a worker does with a message: runs a ticket's loop, a task of the queue as itself, or a plain call."""

from __future__ import annotations

import inspect
import json
import logging
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app import trace
from celery.exceptions import SoftTimeLimitExceeded
from kombu.utils.json import dumps, loads
from redis.exceptions import RedisError

from . import limits, tickets
from ._core import Delivery, Queue, encode_call
from .hand import MOST, SHORT_SECONDS, Hand, Settling

if TYPE_CHECKING:
    from .queue import VTRRQueue
    from .task import VTRRTask

logger = logging.getLogger(__name__)

DONE = trace.trace_ok_t(None, None, 0.0, "None")
# An unknown task name is given back for so long, doubling.
UNKNOWN_SECONDS, UNKNOWN_MOST = 5.0, 60.0


def kind_of(task: VTRRTask[Any, Any], request: dict[str, Any], args: Any, kwargs: Any) -> str:
    """What a message is: a ticket, bound to one task of the queue, 0.1.0's retry of a task (``legacy``), or a call."""
    mark = request.get(tickets.MARK)
    if not args and kwargs and set(kwargs) <= {"is_start", "task_payload"}:
        # 0.1.0's. Ours have none of these, and where 0.1.0 took one of ours for its own the retry carries on our mark.
        is_call = fits(task, (), kwargs) if mark == tickets.CALL else mark is None and names(task, kwargs)
        if not is_call:
            return "legacy" if kwargs.get("task_payload") else tickets.TICKET
    if mark in (tickets.TICKET, tickets.BOUND, tickets.CALL):
        return str(mark)
    if args or kwargs:
        return tickets.CALL
    return tickets.TICKET if task.vtrr.tagging == "all" or not fits(task, (), {}) else tickets.CALL


def names(task: VTRRTask[Any, Any], kwargs: Any) -> bool:
    """Whether the function has parameters of these names, other than by ``**``."""
    return set(kwargs) <= set(inspect.signature(task.run).parameters)


def fits(task: VTRRTask[Any, Any], args: Any, kwargs: Any) -> bool:
    try:
        task.__header__(*args, **kwargs)
    except TypeError:
        return False
    return True


def run(task: VTRRTask[Any, Any], id: str, args: Any, kwargs: Any, request: dict[str, Any]) -> Any:
    """Stands in the place of the tracer of every task of ours."""
    kind = kind_of(task, request, args, kwargs)
    if kind == tickets.CALL:
        return tracer_of(task)(id, args, kwargs, request)
    if kind == "legacy":
        return run_legacy(task, id, kwargs["task_payload"], request)
    return Ticket(task, id, request, request.get(tickets.TOKEN) if kind == tickets.BOUND else None).run()


def tracer_of(task: Any) -> Any:
    """Celery's tracer of a task; made by `celery.app.trace` as it is now, since instrumentation patches it."""
    tracer = task.__dict__.get("_vtrr_tracer") or getattr(task, "__trace__", None)
    return tracer or trace.build_tracer(task.name, task, app=task.app)


def run_legacy(task: VTRRTask[Any, Any], id: str, payload: dict[str, Any], request: dict[str, Any]) -> Any:
    """A retry that 0.1.0 (or ``retry_through="broker"``) sent: one task, outside the queue."""
    own = task.app.tasks.get(payload["task_name"])
    if own is None:
        logger.error("%s: 0.1.0's retry of %r is dropped: no such task here", task.vtrr, payload["task_name"])
        return DONE
    args, kwargs = fill_in(own, id, payload["args"], payload["kwargs"])
    ours = {"args": args, "kwargs": kwargs, "headers": {}, "shadow": None, "vtrr_retry": retry_by_broker}
    return tracer_of(own)(id, args, kwargs, {**request, **ours})


def retry_by_broker(task: VTRRTask[Any, Any], args: Any, kwargs: Any, task_id: str, options: dict[str, Any]) -> Any:
    """Sends a retry as 0.1.0 does, so that its workers understand it."""
    request = task.request_stack.top
    payload = {
        "task_name": task.name,
        "args": list(request.args if args is None else args),
        "kwargs": dict(request.kwargs if kwargs is None else kwargs),
    }
    options = {key: options.get(key) for key in ("countdown", "eta", "retries", "root_id", "parent_id", "reply_to")}
    return task.app.send_task(
        task.name,
        (),
        {"task_payload": payload},
        task_id=task_id,
        task_type=task,
        queue=task.vtrr.celery_queue,
        add_to_parent=False,
        **options,
    )


def fill_in(task: Any, id: str, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments, with the task's id in front where the function takes it and the caller left it out."""
    if getattr(task, "takes_id", False) and not fits(task, args, kwargs):
        return [id, *args], kwargs
    return list(args), kwargs


class Ticket:
    """The run of one ticket, or of a bound message, which is a ticket that begins with one task in its hands."""

    def __init__(self, task: VTRRTask[Any, Any], id: str, request: dict[str, Any], token: str | None) -> None:
        self.task = task
        self.vtrr: VTRRQueue = task.vtrr
        self.id = id
        self.request = request
        self.token = token
        self.owner: str = request.get(tickets.OWNER) or Queue.fresh()
        self.result: Any = DONE
        self.hand = Hand(self.vtrr)
        # Whether Celery limits the time of every message, or of this one.
        self.limited = limits.of_worker() or limits.of_task(self.task)

    def run(self) -> Any:
        try:
            if self.token is not None:
                self.run_bound()
            if self.drain():
                self.follow_up()
        except SoftTimeLimitExceeded:
            # It fired in our own code: the task has ended, or has not begun.
            self.settle()
            self.run_safely("give back", self.vtrr._core.release_owner(self.owner))
        except BaseException:
            # The process ends. That of the task that ran is seen by the main process.
            self.hand.put_back()
            raise
        return self.result

    def run_bound(self) -> None:
        claim = self.vtrr._core.claim(self.id, str(self.token), self.owner, self.vtrr.lease)
        try:
            delivery = self.vtrr._run(claim)
        except RedisError as error:
            logger.warning("%s: %s could not be claimed, it will come back: %r", self.vtrr, self.id, error)
            return
        if delivery is None:
            logger.info("%s: %s is not to be run by this message any more", self.vtrr, self.id)
            return
        self.hand.end(self.run_delivery(delivery, bound=True))

    def drain(self) -> bool:
        """Runs tasks one after the other: one, or as many as begin within the burst. Answers whether to send a ticket
        for those that still wait."""
        burst = 0.0 if self.limited or self.token is not None or limits.of_child() else self.vtrr.burst
        end = time.monotonic() + burst
        n, empty = 1, 0
        while True:
            try:
                deliveries, _, _, more = self.vtrr._run(self.next(n))
            except RedisError as error:
                logger.warning("%s: nothing could be dequeued, the sweep will try again: %r", self.vtrr, error)
                self.settle()
                return False
            self.announce()
            self.hand.hold(deliveries)
            if not deliveries:
                empty += 1
                if more and empty < 100:
                    continue
                return bool(more)
            began, ran = time.monotonic(), 0
            while (delivery := self.hand.begin()) is not None:
                settling = self.take(delivery)
                if settling is None:
                    return False
                self.hand.end(settling)
                ran += 1
            now = time.monotonic()
            if now >= end:
                self.settle()
                return True
            each = (now - began) / max(ran, 1)
            n = max(1, min(2 * n, MOST, int((end - now) / each))) if each < SHORT_SECONDS else 1

    def next(self, n: int) -> Any:
        return self.vtrr._core.dequeue(
            n,
            owner=self.owner,
            lease=self.vtrr.lease,
            max_deliveries=self.vtrr.max_deliveries,
            settle=self.hand.collect(),
        )

    def take(self, delivery: Delivery) -> Settling | None:
        """Runs a task here; or sends it a message of its own, which takes this ticket's place: None."""
        try:
            payload = loads(delivery.payload)
            own = self.task.app.tasks.get(payload["task_name"])
        except Exception as error:
            logger.error("%s: %s is set aside, its payload is unreadable: %r", self.vtrr, delivery.id, error)
            return (delivery.id, delivery.token, "fail", 0.0, f"unreadable payload: {error}".encode())
        if own is None:
            delay = min(UNKNOWN_SECONDS * 2 ** (delivery.deliveries - 1), UNKNOWN_MOST)
            logger.warning("%s: no task %r here; given back for %g s", self.vtrr, payload["task_name"], delay)
            reason = f"no task {payload['task_name']!r} is registered"
            return (delivery.id, delivery.token, "release", delay, reason.encode())
        if self.limited or limits.of_task(own):
            self.hand_over(own, delivery)
            return None
        return self.run_delivery(delivery, payload=payload, own=own)

    def hand_over(self, own: VTRRTask[Any, Any], delivery: Delivery) -> None:
        """A task under a time limit runs in a message of its own. Until that arrives the task is set aside; it comes
        back by itself if the message is lost."""
        self.hand.put_back()
        self.hand.end((delivery.id, delivery.token, "release", self.vtrr.lease, None))
        if not self.settle():
            return
        try:
            tickets.publish_bound(own, delivery.id, delivery.token)
        except Exception as error:
            logger.warning("%s: no message could be sent for %s, it will come back: %r", self.vtrr, delivery.id, error)

    def run_delivery(
        self, delivery: Delivery, *, bound: bool = False, payload: dict[str, Any] | None = None, own: Any = None
    ) -> Settling:
        """Runs a task as itself and answers how to settle it."""
        if payload is None:
            payload = loads(delivery.payload)
            own = self.task.app.tasks.get(payload["task_name"]) or self.task
        args, kwargs = fill_in(own, delivery.id, payload.get("args") or [], payload.get("kwargs") or {})
        retries: list[tuple[float, bytes]] = []

        def retry(task: Any, args: Any, kwargs: Any, task_id: str, options: dict[str, Any]) -> Any:
            if self.vtrr.retry_through == "broker":
                return retry_by_broker(task, args, kwargs, task_id, options)
            retries.append((delay_of(options), again(task, payload, options["retries"], args, kwargs)))
            return task.AsyncResult(task_id)

        request = {
            **self.request,
            "id": delivery.id,
            "task": own.name,
            "args": args,
            "kwargs": kwargs,
            "retries": payload.get("retries", 0),
            "root_id": payload.get("root_id") or delivery.id,
            "parent_id": payload.get("parent_id"),
            "reply_to": payload.get("reply_to"),
            "correlation_id": delivery.id,
            "ignore_result": own.ignore_result,
            "shadow": None,
            # Not None: Celery would make custom headers of what it does not know, and these travel with retries.
            "headers": {},
            "delivery_info": {
                **(self.request.get("delivery_info") or {}),
                "redelivered": delivery.deliveries > 1,
            },
            "vtrr_retry": retry,
            "vtrr_partition": delivery.partition,
        }
        for ours in (tickets.MARK, tickets.TOKEN, tickets.OWNER):
            request.pop(ours, None)
        result = tracer_of(own)(delivery.id, args, kwargs, request)
        if bound:
            self.result = result
        return self.outcome(delivery, result.info, retries)

    def outcome(self, delivery: Delivery, info: Any, retries: list[tuple[float, bytes]]) -> Settling:
        state = info.state if info is not None else states.SUCCESS
        if state == states.RETRY and retries:
            delay, body = retries[-1]
            return (delivery.id, delivery.token, "retry", delay, body)
        if state == states.REJECTED and getattr(info.retval, "requeue", False):
            return (delivery.id, delivery.token, "release", 0.0, None)
        if state in (states.FAILURE, states.REJECTED):
            text = f"{type(info.retval).__name__}: {info.retval}"
            return (delivery.id, delivery.token, "fail", 0.0, text.encode(errors="replace"))
        return (delivery.id, delivery.token, "ack", 0.0, None)

    def settle(self) -> bool:
        """Stores how tasks ended, through an outage as long as a lease: else they would run again. False if one was
        lost."""
        settlings = self.hand.collect()
        if not settlings:
            return True
        end, pause = time.monotonic() + self.vtrr.lease, 0.1
        while True:
            try:
                answers = self.vtrr._run(self.vtrr._core.settle(settlings))
                break
            except RedisError as error:
                if time.monotonic() >= end:
                    logger.error("%s: how %s ended could not be stored: %r", self.vtrr, settlings[0][0], error)
                    return False
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
        for (id, *_), answer in zip(settlings, answers, strict=True):
            if answer == "lost":
                logger.warning("%s: the lease of %s was lost; it runs elsewhere", self.vtrr, id)
        self.announce()
        self.hand.hold([])
        return "lost" not in answers

    def announce(self) -> None:
        """Tells the sweep of tasks that are due before its next turn."""
        if any(0 < delay < self.vtrr.sweep_interval for _, _, _, delay, _ in self.hand.ended):
            try:
                self.vtrr.redis_client.publish(self.vtrr._core.wake_channel.encode(), b"")
            except RedisError as error:
                logger.debug("%s: the sweep was not told: %r", self.vtrr, error)

    def follow_up(self) -> None:
        """Sends the next ticket, if anything waits."""
        try:
            if self.vtrr._waits():
                tickets.publish(self.task)
        except Exception as error:
            logger.warning("%s: the next ticket could not be sent, the sweep will: %r", self.vtrr, error)

    def run_safely(self, what: str, command: Any) -> None:
        try:
            self.vtrr._run(command)
        except RedisError as error:
            logger.warning("%s: could not %s: %r", self.vtrr, what, error)


def delay_of(options: dict[str, Any]) -> float:
    """Seconds until a retry is due."""
    eta = options.get("eta")
    if eta is not None:
        if isinstance(eta, str):
            eta = datetime.fromisoformat(eta)
        now = datetime.now(timezone.utc) if eta.tzinfo else datetime.utcnow()
        return max(0.0, float((eta - now).total_seconds()))
    return max(0.0, float(options.get("countdown") or 0.0))


def again(task: Any, payload: dict[str, Any], retries: int, args: Any, kwargs: Any) -> bytes:
    """The body of a task's next run."""
    request = task.request_stack.top
    extra = {"retries": retries}
    for key in ("root_id", "parent_id", "reply_to"):
        if payload.get(key):
            extra[key] = payload[key]
    return encode_call(
        task.name,
        list(request.args if args is None else args),
        dict(request.kwargs if kwargs is None else kwargs),
        dumps,
        "," + json.dumps(extra, separators=(",", ":"))[1:-1],
    )

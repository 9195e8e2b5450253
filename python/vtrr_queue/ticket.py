"""The run of a ticket, in the process that runs tasks: dequeues, runs tasks as themselves, settles."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import SoftTimeLimitExceeded
from kombu.utils.json import loads
from redis.exceptions import RedisError

from . import events, limits, tickets
from ._core import Delivery, Queue
from .hand import MOST, SHORT_SECONDS, Hand, Settling
from .legacy import retry_by_broker
from .retries import again, delay_of
from .tracing import DONE, fill_in, tracer_of

if TYPE_CHECKING:
    from .queue import VTRRQueue
    from .task import VTRRTask

logger = logging.getLogger(__name__)

# An unknown task name is given back for so long, doubling.
UNKNOWN_SECONDS, UNKNOWN_MOST = 5.0, 60.0
# What a task's request has of its message's. Other headers are those of whoever queued when the ticket was sent.
KEPT = ("lang", "timelimit", "origin", "hostname", "delivery_info", "is_eager", "utc", "loglevel", "logfile")


class Ticket:
    """The run of one ticket, or of a message bound to one task."""

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
                # Nothing else: its limits, and whatever ends it, are its task's.
                self.run_bound()
                self.settle()
                self.follow_up()
            elif self.drain():
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
        self.hand.end(self.run_delivery(delivery, loads(delivery.payload), self.task))

    def drain(self) -> bool:
        """Runs tasks one after the other: one, or as many as begin within the burst. Answers whether to send a ticket
        for those that still wait."""
        burst = 0.0 if self.limited or limits.of_child() else self.vtrr.burst
        end = time.monotonic() + burst
        n, empty = 1, 0
        while True:
            try:
                deliveries, answers, _, more = self.vtrr._run(self.next(n))
            except RedisError as error:
                logger.warning("%s: nothing could be dequeued, the sweep will try again: %r", self.vtrr, error)
                self.settle()
                return False
            self.settled(answers)
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
            delay = min(doubled(UNKNOWN_SECONDS, delivery), UNKNOWN_MOST)
            logger.warning("%s: no task %r here; given back for %g s", self.vtrr, payload["task_name"], delay)
            reason = f"no task {payload['task_name']!r} is registered"
            return (delivery.id, delivery.token, "release", delay, reason.encode())
        # What is not of this queue has no messages of its own to run in.
        is_ours = getattr(own, "vtrr", None) is not None and own.vtrr.name == self.vtrr.name
        if is_ours and (self.limited or limits.of_task(own)) and not self.suits(own):
            self.hand_over(own, delivery)
            return None
        return self.run_delivery(delivery, payload, own)

    def suits(self, own: VTRRTask[Any, Any]) -> bool:
        """Whether a task under a time limit runs inside this ticket: where 0.1.0 may take any message for a ticket."""
        return self.vtrr.tagging == "all" and limits.same(own, self.task)

    def hand_over(self, own: VTRRTask[Any, Any], delivery: Delivery) -> None:
        """A task under a time limit runs in a message of its own. Until that arrives the task is set aside; it comes
        back by itself if the message is lost. Beside 0.1.0 it goes back at once, and its message is a ticket like any."""
        beside = self.vtrr.tagging == "all"
        # Longer each time that its message came too late.
        aside = 0.0 if beside else doubled(self.vtrr.lease, delivery)
        self.hand.put_back()
        self.hand.end((delivery.id, delivery.token, "release", aside, None))
        if not self.settle():
            return
        try:
            if beside:
                tickets.publish(own)
            else:
                tickets.publish_bound(own, delivery.id, delivery.token)
        except Exception as error:
            logger.warning("%s: no message could be sent for %s, it will come back: %r", self.vtrr, delivery.id, error)

    def run_delivery(self, delivery: Delivery, payload: dict[str, Any], own: Any) -> Settling:
        """Runs a task as itself and answers how to settle it."""
        args, kwargs = fill_in(own, delivery.id, payload.get("args") or [], payload.get("kwargs") or {})
        retries: list[tuple[float, bytes]] = []

        def retry(task: Any, args: Any, kwargs: Any, task_id: str, options: dict[str, Any]) -> Any:
            if self.vtrr.retry_through == "broker":
                return retry_by_broker(task, args, kwargs, task_id, options)
            retries.append((delay_of(options), again(task, payload, options["retries"], args, kwargs)))
            return task.AsyncResult(task_id)

        request = {
            **{key: self.request[key] for key in KEPT if key in self.request},
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
        # Celery itself sends those of a message.
        shown = self.vtrr.task_events and self.token is None and own.send_events
        if shown:
            events.begun(own, request)
        try:
            result = tracer_of(own)(delivery.id, args, kwargs, request)
        except (SoftTimeLimitExceeded, MemoryError):
            raise
        except Exception as error:
            # The tracer could not store the state, as while the result backend is down. That is not the task's fault.
            delay = min(doubled(UNKNOWN_SECONDS, delivery), UNKNOWN_MOST)
            logger.error("%s: no state could be stored for %s; given back for %g s: %r", self.vtrr, delivery.id, delay, error)
            return (delivery.id, delivery.token, "release", delay, None)
        if shown:
            events.ended(own, request, result)
        if self.token is not None:
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
            return (delivery.id, delivery.token, "fail", 0.0, in_words(info.retval).encode(errors="replace"))
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
        self.settled(answers)
        self.hand.hold([])
        return "lost" not in answers

    def settled(self, answers: list[str]) -> None:
        """Says which leases were lost, and tells the sweep of tasks that are due before its next turn."""
        for (id, *_), answer in zip(self.hand.ended, answers, strict=False):
            if answer == "lost":
                logger.warning("%s: the lease of %s was lost; it runs elsewhere", self.vtrr, id)
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


def doubled(seconds: float, delivery: Delivery) -> float:
    """Twice as long for each delivery before this one."""
    return seconds * 2.0 ** min(delivery.deliveries - 1, 10)


def in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: (its text cannot be had)"

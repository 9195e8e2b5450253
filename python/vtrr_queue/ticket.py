"""The run of a ticket, in the process that runs tasks: dequeues, runs tasks as themselves, settles."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from redis.exceptions import AuthenticationError, AuthorizationError, ConnectionError, MaxConnectionsError, TimeoutError

from . import keeper, limits, losses, tickets
from ._core import Delivery, Queue
from .body import read
from .client import ServerErrors
from .hand import MOST, SHORT_SECONDS, Hand, Settling
from .run import Run, in_words, pause_before, storable
from .tracing import DONE

if TYPE_CHECKING:
    from .queue import VTRRQueue
    from .task import VTRRTask

logger = logging.getLogger(__name__)

# What one delivery may cost in calls: some look at many partitions and hand out nothing.
MOST_CALLS = 100
# For so long a ticket tries to undo a dequeue whose reply was lost; and connection errors that say that there was none.
UNDO_SECONDS = 5.0
NOT_SENT = (AuthenticationError, AuthorizationError, MaxConnectionsError)


class Ticket:
    """The run of one ticket, or of a message bound to one task."""

    def __init__(self, task: VTRRTask[Any, Any], id: str, request: dict[str, Any], *, is_bound: bool) -> None:
        self.task = task
        self.vtrr: VTRRQueue = task.vtrr
        self.id = id
        self.request = request
        self.is_bound = is_bound
        # What the main process has dequeued for it.
        self.given: Delivery | None = request.get(tickets.DELIVERY)
        self.owner: str = request.get(tickets.OWNER) or Queue.fresh()
        self.result: Any = DONE
        # Whether to take no more tasks.
        self.is_over = False
        self.hand = Hand(self.vtrr)
        if tickets.LIMITS in request:
            limits.learn(task.app, request[tickets.LIMITS])

    def run(self) -> Any:
        try:
            if self.is_bound:
                # Nothing else: its limits, and whatever ends it, are its task's.
                assert self.given is not None
                self.hand.end(self.run_delivery(self.given, read(self.given.payload), self.task))
                self.settle()
            elif self.drain():
                self.follow_up()
        except SoftTimeLimitExceeded:
            # It fired in our own code: the task has ended, or has not begun.
            self.settle()
            self.give_back(None)
        except Exception as error:
            # An error of ours, or no memory: what a pool does with it differs, and some keep the message for ever.
            logger.exception("%s: %s ends", self.vtrr, self.id)
            self.hand.put_back()
            self.give_back(in_words(error))
        except BaseException as error:
            self.hand.put_back()
            # In a process of its own that ends with it, and the main process sees that. A limit's is seen there too.
            if not keeper.is_here() or (self.is_bound and limits.is_timeout(error, self.task)):
                raise
            stopped = limits.is_stop(error)
            if stopped:
                self.run_safely("give back", self.vtrr._core.stop_owner(self.owner))
                raise
            self.give_back(in_words(error))
            logger.error("%s: a task ended its ticket: %r", self.vtrr, error)
        return self.result

    def drain(self) -> bool:
        """Runs tasks one after the other: one, or as many as begin within the burst. Answers whether to send a ticket
        for those that still wait."""
        end = time.monotonic() + (0.0 if limits.of_child() else self.vtrr.burst)
        n, empty = 1, 0
        deliveries, more = [self.given] if self.given else [], True
        while True:
            if not deliveries:
                try:
                    deliveries, answers, _, more = self.vtrr._run(self.next(n))
                except ServerErrors as error:
                    logger.warning("%s: nothing could be dequeued, the sweep will try again: %r", self.vtrr, error)
                    if self.settle():
                        self.undo(error)
                    return False
                self.settled(answers)
            self.hand.hold(deliveries)
            if not deliveries:
                empty += 1
                if more and empty < MOST_CALLS:
                    continue
                return bool(more)
            began, ran, deliveries = time.monotonic(), 0, []
            while (delivery := self.hand.begin()) is not None:
                if (settling := self.take(delivery)) is not None:
                    self.hand.end(settling)
                if self.is_over:
                    return self.settle()
                ran += 1
            now = time.monotonic()
            if now >= end:
                self.settle()
                return True
            each = (now - began) / max(ran, 1)
            # Where one lost worker is the end, no task takes that risk for another.
            several = each < SHORT_SECONDS and self.vtrr.max_deliveries > 1
            n = max(1, min(2 * n, MOST, int((end - now) / each))) if several else 1

    def next(self, n: int) -> Any:
        return self.vtrr._core.dequeue(
            n,
            owner=self.owner,
            lease=self.vtrr.lease,
            max_deliveries=self.vtrr.max_deliveries,
            settle=self.hand.collect(),
        )

    def take(self, delivery: Delivery) -> Settling | None:
        """Runs a task here; or, under a limit, elsewhere: None."""
        try:
            payload = read(delivery.payload)
            own = self.task.app.tasks.get(payload["task_name"])
        except Exception as error:
            logger.error("%s: %s is set aside, its payload is unreadable: %r", self.vtrr, delivery.id, error)
            return (delivery.id, delivery.token, "unreadable", 0.0, storable(f"unreadable payload: {error}").encode())
        if own is None:
            delay = pause_before(delivery)
            name, of = payload["task_name"], f"{delivery.id} of partition {delivery.partition!r}"
            logger.warning("%s: no task %r here; %s is given back for %g s", self.vtrr, name, of, delay)
            reason = f"no task {payload['task_name']!r} is registered"
            return (delivery.id, delivery.token, "unknown", delay, reason.encode())
        # What the main process has found to be under none is under none.
        if delivery is not self.given and limits.apply_to(own, self.vtrr):
            self.pass_on(delivery, payload, own)
            return None
        return self.run_delivery(delivery, payload, own)

    def pass_on(self, delivery: Delivery, payload: dict[str, Any], own: VTRRTask[Any, Any]) -> None:
        """A task under a time limit runs in a message of its own. A greenlet of the main process can give it one. A process
        of the pool cannot: the task goes back, and the ticket ends, so that the main process takes it next."""
        begin = self.request.get(tickets.BEGIN)
        # What is in hand besides is of the same owner, and would share the task's fate.
        if begin is not None and self.hand.put_back():
            begin(self.owner, delivery, own, payload)
            return
        self.hand.end((delivery.id, delivery.token, "release", 0.0, None))
        self.hand.put_back()
        self.is_over = True

    def run_delivery(self, delivery: Delivery, payload: dict[str, Any], own: Any) -> Settling:
        """Runs a task as itself and answers how to settle it."""
        run = Run(self.vtrr, self.request, delivery, payload, own, is_message=self.is_bound)
        settling = run.settling()
        if self.is_bound and run.result is not None:
            self.result = run.result
        return settling

    def settle(self) -> bool:
        """Stores how tasks ended, through an outage as long as a lease: else they would run again. False if one was
        lost."""
        settlings = self.hand.collect()
        if not settlings:
            return True
        what = f"store how {settlings[0][0]} ended"
        answers = self.insist(what, lambda: self.vtrr._core.settle(settlings), self.vtrr.lease)
        if answers is None:
            return False
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
            except ServerErrors as error:
                logger.debug("%s: the sweep was not told: %r", self.vtrr, error)

    def follow_up(self) -> None:
        """Sends the next ticket, if anything waits."""
        try:
            if self.vtrr._waits():
                tickets.publish(self.task)
        except Exception as error:
            logger.warning("%s: the next ticket could not be sent, the sweep will: %s", self.vtrr, tickets.in_log(error))

    def give_back(self, reason: str | None) -> None:
        """Gives back what this message holds; with blame, if there is a reason."""
        ids = self.run_safely("give back", self.vtrr._core.release_owner(self.owner, reason))
        if reason is not None and ids:
            losses.report(self.vtrr, ids, reason)

    def undo(self, error: Exception) -> None:
        """Gives back what was taken if only the reply was lost. Nobody would extend the leases of it, and it would be
        blamed for their end."""
        if not isinstance(error, (ConnectionError, TimeoutError)) or isinstance(error, NOT_SENT):
            return
        seconds = min(self.vtrr.lease, UNDO_SECONDS)
        self.insist("give back", lambda: self.vtrr._core.release_owner(self.owner), seconds)

    def insist(self, what: str, command: Callable[[], Any], seconds: float) -> Any:
        """Runs a command through an outage; None if that took longer."""
        end, pause = time.monotonic() + seconds, 0.1
        while True:
            try:
                return self.vtrr._run(command())
            except ServerErrors as error:
                if time.monotonic() >= end:
                    logger.error("%s: could not %s within %g s: %r", self.vtrr, what, seconds, error)
                    return None
                time.sleep(pause)
                pause = min(2 * pause, 2.0)

    def run_safely(self, what: str, command: Any) -> Any:
        try:
            return self.vtrr._run(command)
        except Exception as error:
            logger.warning("%s: could not %s: %r", self.vtrr, what, error)
            return None

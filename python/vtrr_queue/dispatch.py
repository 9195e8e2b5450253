"""Tasks under a time limit, in the worker's main process. Celery enforces limits on messages, so each of these tasks gets one
that never was in the broker: a ticket takes the next task when a process is free, and no earlier."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import TaskRevokedError
from celery.worker.state import task_ready
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from . import forks, keeper, limits, strategy, tickets
from ._core import Delivery
from .body import read
from .bound import Here, message_of, nothing
from .ticket import MOST_CALLS

if TYPE_CHECKING:
    from .queue import VTRRQueue
    from .requests import TicketRequest

logger = logging.getLogger(__name__)

_numbers = itertools.count(1)


@dataclass(eq=False)
class Turn:
    """A ticket that has got a process, and what it takes."""

    ticket: TicketRequest
    owner: str
    delivery: Delivery | None = None


class Dispatch:
    """One per worker. Everything here is called by its event loop, unless it says otherwise."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.stopped = False
        # Threads that ask Redis, so that the loop waits for none, and what they were answered.
        self.askers: dict[VTRRQueue, Asker] = {}
        self.answers: deque[Turn] = deque()
        self.hub: Any = None
        self.reader, self.writer = socket.socketpair()
        self.reader.setblocking(False)
        self.writer.setblocking(False)
        # Stands in for a signal of the pool that a process is free, where there is none: one task at most waits in the pool, and
        # which that is.
        self.gate = LaxBoundedSemaphore(1)
        self.unbegun: set[TicketRequest] = set()

    @property
    def pool(self) -> Any:
        """What runs tasks under limits."""
        return Here(self.worker.pool) if limits.are_of_greenlets() else self.worker.pool

    # Where a process is free.

    @property
    def counts(self) -> bool:
        """Whether Celery itself counts free processes."""
        return bool(self.worker.process_task == self.worker._process_task_sem)

    @property
    def slots(self) -> Any:
        return self.worker.semaphore if self.counts else self.gate

    def attach(self, hub: Any) -> None:
        """The loop begins, or does so again after the connection to the broker was lost."""
        self.hub = hub
        hub.add_reader(self.reader, self.answered)
        # Celery forgets what its pool has not begun, and counts all processes as free; so do we.
        self.unbegun.clear()
        self.gate.clear()

    def enter(self, consumer: Any, request: TicketRequest) -> None:
        """Stands in for what Celery does with a request of ours."""
        request.vtrr_dispatch = self
        if request.vtrr_kind == tickets.BOUND:
            self.apply(request)
        elif not limits.are_of_processes() or not limits.of_any(request.vtrr):
            if limits.are_of_greenlets():
                # Its greenlet is one of the pool's, and runs the task under its limit itself.
                request._request_dict[tickets.BEGIN] = partial(self.begin, request)
            consumer.on_task_request(request)
        elif self.hub is None:
            # A transport that blocks. So does the pool then, until a process is free.
            self.take_here(request)
        else:
            self.slots.acquire(self.take, request)

    # A ticket's turn.

    def take(self, ticket: TicketRequest) -> None:
        strategy.begun(ticket)
        if self.stopped:
            return
        if ticket.revoked():
            self.slots.release()
            return
        if ticket.vtrr not in self.askers:
            self.askers[ticket.vtrr] = Asker(ticket.vtrr, self.answer)
        self.askers[ticket.vtrr].ask(Turn(ticket, owner()))

    def take_here(self, ticket: TicketRequest) -> None:
        strategy.begun(ticket)
        if not ticket.revoked():
            turn = Turn(ticket, owner())
            ask(turn)
            self.deliver(turn)

    def answer(self, turn: Turn) -> None:
        """Called by the threads."""
        self.answers.append(turn)
        if self.stopped:
            self.give_back()
        with contextlib.suppress(OSError):  # full, or closed
            self.writer.send(b".")

    def answered(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.reader.recv(4096)
        while self.answers:
            self.deliver(self.answers.popleft())

    def deliver(self, turn: Turn) -> None:
        ticket, delivery = turn.ticket, turn.delivery
        try:
            ticket.acknowledge()
        except Exception as error:
            # The loop will see that the connection is lost. If the ticket comes again, it is one more.
            logger.debug("%s: %s is not acknowledged: %r", ticket.vtrr, ticket.id, error)
        if delivery is None:
            self.end(ticket)
            return
        try:
            own = self.limited(ticket, delivery)
            if own is None:
                # The ticket itself goes on with it.
                self.hand_over(ticket, turn.owner, delivery)
                return
            self.begin(ticket, turn.owner, delivery, *own)
        except Exception:
            logger.exception("%s: %s could not be begun, it goes back", ticket.vtrr, delivery.id)
            keeper.give_back(ticket.vtrr, turn.owner)
            self.end(ticket)
            return
        self.again(ticket)

    def limited(self, ticket: TicketRequest, delivery: Delivery) -> tuple[Any, dict[str, Any]] | None:
        """The task and its payload, if it is under a limit; what cannot be run is for the ticket to say."""
        try:
            payload = read(delivery.payload)
        except Exception:
            return None
        own = self.worker.app.tasks.get(payload["task_name"])
        if own is None or not limits.apply_to(own, ticket.vtrr) or own.name not in self.worker.consumer.strategies:
            return None
        return own, payload

    def begin(self, ticket: TicketRequest, owner: str, delivery: Delivery, own: Any, payload: dict[str, Any]) -> None:
        """A message for one task of the queue. Its Celery id is the task's, so limits, revokes, states and results are
        Celery's own."""
        consumer = self.worker.consumer
        message = message_of(ticket, owner, delivery, own, payload)
        consumer.strategies[own.name](message, None, nothing, nothing, consumer.on_task_message)
        if not message.is_given:
            raise RuntimeError(f"the strategy of {own.name} did not pass it on")

    def apply(self, request: TicketRequest) -> None:
        """Gives the pool a task."""
        request._message.is_given = True
        self.unbegun.add(request)
        try:
            request.execute_using_pool(self.worker.pool)
        except BaseException:
            self.unbegun.discard(request)
            task_ready(request)
            raise

    def hand_over(self, ticket: TicketRequest, owner: str, delivery: Delivery) -> None:
        ticket.hold(owner, delivery)
        self.unbegun.add(ticket)
        try:
            ticket.execute_using_pool(self.worker.pool)
        except TaskRevokedError:
            self.unbegun.discard(ticket)
            keeper.give_back(ticket.vtrr, owner)
            self.slots.release()

    def again(self, ticket: TicketRequest) -> None:
        """The ticket waits for the next process that is free: as a next one would, without the way through the broker."""
        if self.hub is None:
            task_ready(ticket)
            ticket.vtrr._issuer.issue(ticket.task, 1)
        elif not self.stopped:
            strategy.received(ticket)
            self.slots.acquire(self.take, ticket)

    def end(self, ticket: TicketRequest) -> None:
        task_ready(ticket)
        self.slots.release()

    # A task in the pool.

    def begun(self, request: TicketRequest) -> None:
        """A process has begun with it, or never will."""
        if request in self.unbegun:
            self.unbegun.discard(request)
            if not self.counts:
                self.gate.release()

    # The end.

    def stop(self) -> None:
        self.stopped = True
        for asker in self.askers.values():
            asker.stop()
        self.give_back()
        if self.hub is not None:
            self.hub.remove_reader(self.reader)
        self.reader.close()
        self.writer.close()

    def give_back(self) -> None:
        """What was handed out and has not got to the pool."""
        while True:
            try:
                turn = self.answers.popleft()
            except IndexError:
                return
            if turn.delivery is not None:
                keeper.give_back(turn.ticket.vtrr, turn.owner).wait(keeper.WRITE_SECONDS)


class Asker:
    """Asks Redis for tasks of a queue, in a thread of its own."""

    def __init__(self, vtrr: VTRRQueue, answer: Callable[[Turn], None]) -> None:
        self.answer = answer
        self.turns: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        threading.Thread(target=self.run, name=f"vtrr-ask-{vtrr.name}", daemon=True).start()

    def ask(self, turn: Turn) -> None:
        self.turns.put(turn)

    def stop(self) -> None:
        self.turns.put(None)

    def run(self) -> None:
        while (turn := self.turns.get()) is not None:
            ask(turn)
            self.answer(turn)


def ask(turn: Turn) -> None:
    """Takes the next task for a ticket, if any waits."""
    vtrr = turn.ticket.vtrr
    command = vtrr._core.dequeue
    try:
        for _ in range(MOST_CALLS):
            with forks.quiet():
                deliveries, _, _, more = vtrr._run(
                    command(1, owner=turn.owner, lease=vtrr.lease, max_deliveries=vtrr.max_deliveries, settle=[])
                )
            if deliveries or not more:
                turn.delivery = next(iter(deliveries), None)
                return
    except Exception as error:
        logger.warning("%s: nothing could be dequeued, the sweep will try again: %r", vtrr, error)
        # Only the reply may have been lost.
        keeper.give_back(vtrr, turn.owner)


def owner() -> str:
    return f"{keeper.nonce()}/d{next(_numbers)}"

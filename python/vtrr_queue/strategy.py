"""What the worker's main process does with a message of ours before the pool gets it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery.worker.state import active_requests

from . import limits, tickets
from .messages import kind_of

if TYPE_CHECKING:
    from .dispatch import Dispatch
    from .queue import VTRRQueue
    from .requests import TicketRequest
    from .task import VTRRTask

logger = logging.getLogger(__name__)

# So many messages may wait for each process of a worker: what Celery fetches ahead, if not told otherwise.
AHEAD = 4

# What was received and has not begun. Whatever becomes of a message, it leaves by itself.
_waiting: defaultdict[VTRRQueue, WeakSet[TicketRequest]] = defaultdict(WeakSet)


def received(request: TicketRequest) -> None:
    _waiting[request.vtrr].add(request)


def begun(request: TicketRequest) -> None:
    _waiting[request.vtrr].discard(request)


def has_enough(vtrr: VTRRQueue, consumer: Any) -> bool:
    """Whether one more ticket would be of no use here: all processes are busy, and enough tickets wait for them. Without a
    bound, a worker that prefetches without one would take all that are sent, and others would be sent in their place."""
    processes = consumer.pool.num_processes or 1
    if len(_waiting[vtrr]) < max(vtrr.max_concurrency, AHEAD * processes):
        return False
    # Where tasks are under limits tickets wait for a process before they are in the pool, and one is as good as many.
    return len(active_requests) >= processes or limits.of_any(vtrr)


class Ours:
    """Stands in for the consumer where Celery makes the strategy for messages of ours: no rate limit holds them, and we say
    when the pool gets them."""

    disable_rate_limits = True

    def __init__(self, consumer: Any, pool: Any) -> None:
        self.consumer = consumer
        self.pool = pool
        self.dispatch: Dispatch = consumer.controller.vtrr_dispatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)

    def on_task_request(self, request: TicketRequest) -> None:
        self.dispatch.enter(self.consumer, request)


def start(task: VTRRTask[Any, Any], make: Callable[..., Any], app: Any, consumer: Any, **options: Any) -> Any:
    """Celery's strategy for messages of this task, made anew for each kind: a rate limit of the task holds its calls alone. A
    ticket has the name of some task and takes whatever is next; held back, it would hold back others. What is too many is
    thrown away."""
    with limits.aside(task):
        call = make(app, consumer, **options)
        ticket = make(app, Ours(consumer, consumer.pool), **options)
        bound = make(app, Ours(consumer, consumer.controller.vtrr_dispatch.pool), **options)
    strategies = {tickets.TICKET: ticket, tickets.BOUND: bound}

    def handle(message: Any, body: Any, ack: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        what = kind(task, message)
        if what == tickets.TICKET and has_enough(task.vtrr, consumer):
            return ack(logger, consumer.connection_errors)
        return strategies.get(what, call)(message, body, ack, *args, **kwargs)

    return handle


def kind(task: VTRRTask[Any, Any], message: Any) -> str:
    """What a message is; one that cannot be read is left to Celery, as a call."""
    try:
        body = message.payload
        if isinstance(body, dict):
            return kind_of(task, body, body.get("args"), body.get("kwargs"))
        return kind_of(task, message.headers, body[0], body[1])
    except Exception:
        return tickets.CALL

"""What the worker's main process does with a message of ours before the pool gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import limits, tickets
from .messages import kind_of

if TYPE_CHECKING:
    from .task import VTRRTask


def start(task: VTRRTask[Any, Any], make: Callable[..., Any], app: Any, consumer: Any, **options: Any) -> Any:
    """Celery's strategy for messages of this task, made twice: a rate limit of the task holds its calls alone. A ticket has
    the name of some task and takes whatever is next; held back, it would hold back others."""
    limited = consumer.disable_rate_limits
    with limits.aside(task):
        call = make(app, consumer, **options)
        try:
            consumer.disable_rate_limits = True
            ours = make(app, consumer, **options)
        finally:
            consumer.disable_rate_limits = limited

    def handle(message: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = ours if kind(task, message) in (tickets.TICKET, tickets.BOUND) else call
        return chosen(message, *args, **kwargs)

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

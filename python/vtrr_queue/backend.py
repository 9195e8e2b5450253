"""What the result backend is asked and told beside Celery's own tracer."""

from __future__ import annotations

import logging
from typing import Any

from celery import states
from celery.app.task import Context, Task
from celery.backends.base import Backend
from celery.signals import task_failure

from .refusals import STATELESS, StateRefused, guard, ours

logger = logging.getLogger(__name__)


def has_failed(error: BaseException) -> bool:
    """Whether an error that left Celery's tracer came out of a result backend, and not of a hook."""
    frame = error.__traceback__
    while frame is not None:
        who = frame.tb_frame.f_locals.get("self")
        if isinstance(who, Task):
            return False  # what a hook asks of a backend is its own affair
        if isinstance(who, Backend):
            return True
        frame = frame.tb_next
    return False


def refusal(error: BaseException) -> StateRefused | None:
    """The refusal that an error comes from, if it comes from one."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, StateRefused):
        at = at.__cause__ or at.__context__
    return at


def stored(task: Any, id: str) -> tuple[str | None, Any]:
    """The state of a task, and its result or its error, if there is a backend that keeps them and answers."""
    if isinstance(task.backend, STATELESS):
        return None, None
    try:
        meta = task.backend.get_task_meta(id)
        return str(meta["status"]), meta.get("result")
    except Exception as error:
        logger.debug("no state of %s: %r", id, error)
        return None, None


def store_rejection(task: Any, request: dict[str, Any], error: Exception, *, is_message: bool) -> None:
    """FAILURE for a task that rejected its message for good: somebody may wait for it. As the newest Celery does for
    messages."""
    context = Context(request)
    try:
        guard(task.backend).mark_as_failure(context.id, error, request=context, store_result=not task.ignore_result)
    except Exception as failure:
        logger.warning("no state could be stored for %s, the sweep will try again: %r", context.id, failure)
    if not is_message:
        task_failure.send(
            sender=task, task_id=context.id, exception=error,
            args=context.args, kwargs=context.kwargs, traceback=None, einfo=None,
        )  # fmt: skip


def reply_to(payload: dict[str, Any], id: str) -> Context:
    """The request that ``rpc://`` needs to find whoever waits."""
    return ours(id=id, correlation_id=id, reply_to=payload.get("reply_to"))


def store_failure(backend: Any, id: str, error: Exception, payload: dict[str, Any]) -> None:
    """FAILURE for a task that no run could give it."""
    if isinstance(backend, STATELESS) or backend.get_state(id) not in states.READY_STATES:
        guard(backend).mark_as_failure(id, error, request=reply_to(payload, id))


def store_revoked(backend: Any, id: str, payload: dict[str, Any]) -> bool:
    """REVOKED for a task that was taken out. That it is out counts: a backend that fails is only logged, and told
    of."""
    try:
        guard(backend).mark_as_revoked(id, "revoked", request=reply_to(payload, id))
    except Exception as error:
        logger.warning("the state of %s, which was cancelled, could not be stored: %r", id, error)
        return False
    return True

"""What the result backend is asked and told beside Celery's own tracer."""

from __future__ import annotations

import logging
from typing import Any

from celery import states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.signals import task_failure

logger = logging.getLogger(__name__)


def keeps_states(backend: Any) -> bool:
    """Whether the backend can be asked: that of ``rpc://`` only sends states on."""
    return not isinstance(backend, (DisabledBackend, RPCBackend))


def stored_state(task: Any, id: str) -> str | None:
    """The state of a task that is known to be stored, or what stands for it where none is kept; None if the backend
    does not answer."""
    if task.ignore_result or isinstance(task.backend, DisabledBackend):
        return str(states.FAILURE)
    if not keeps_states(task.backend):
        return str(states.PENDING)
    try:
        return str(task.backend.get_state(id))
    except Exception as error:
        logger.debug("no state of %s: %r", id, error)
        return None


def store_rejection(task: Any, request: dict[str, Any], error: Exception) -> None:
    """FAILURE for a task that rejected its message for good: somebody may wait for it. Celery itself stores it since
    5.6, for messages."""
    context = Context(request)
    try:
        task.backend.mark_as_failure(context.id, error, request=context, store_result=not task.ignore_result)
    except Exception as failure:
        logger.warning("no state could be stored for %s, the sweep will try again: %r", context.id, failure)
    task_failure.send(
        sender=task, task_id=context.id, exception=error, args=context.args, kwargs=context.kwargs, traceback=None, einfo=None
    )


def reply_to(payload: dict[str, Any], id: str) -> Context:
    """The request that ``rpc://`` needs to find whoever waits."""
    return Context(id=id, correlation_id=id, reply_to=payload.get("reply_to"))


def store_failure(backend: Any, id: str, error: Exception, payload: dict[str, Any]) -> None:
    """FAILURE for a task that no run could give it."""
    if not keeps_states(backend) or backend.get_state(id) not in states.READY_STATES:
        backend.mark_as_failure(id, error, request=reply_to(payload, id))


def store_revoked(backend: Any, id: str, payload: dict[str, Any]) -> None:
    """REVOKED for a task that was taken out; what the backend cannot take is logged, since the task is out."""
    try:
        backend.mark_as_revoked(id, "revoked", request=reply_to(payload, id))
    except Exception as error:
        logger.warning("the state of %s, which was cancelled, could not be stored: %r", id, error)

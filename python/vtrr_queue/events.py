"""Celery's events for tasks that run inside tickets, so that Flower and `celery events` list them. Celery sends events
for messages only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery import states
from celery.utils.saferepr import saferepr

logger = logging.getLogger(__name__)

# For so long no event is sent after one could not be.
DOWN_SECONDS = 30.0
_down_until = 0.0


def begun(task: Any, request: dict[str, Any]) -> None:
    """Says that a task is about to run."""
    _send(task, request, _beginning, task, request)


def ended(task: Any, request: dict[str, Any], result: Any) -> None:
    """Says how it has ended, by what its tracer answered."""
    _send(task, request, _end, result)


def lost(task: Any, request: dict[str, Any], error: Exception) -> None:
    """Says that it ended outside a run."""
    _send(task, request, lambda: {"task-failed": {"exception": saferepr(error), "traceback": ""}})


def _beginning(task: Any, request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    size = task.app.amqp.argsrepr_maxsize
    received = {
        "name": task.name,
        "args": saferepr(request["args"], size),
        "kwargs": saferepr(request["kwargs"], size),
        **{key: request[key] for key in ("retries", "root_id", "parent_id")},
    }
    return {"task-received": received, "task-started": {}}


def _end(result: Any) -> dict[str, dict[str, Any]]:
    info = result.info
    if info is None:
        return {"task-succeeded": {"result": result.retstr, "runtime": result.runtime}}
    if info.state == states.REJECTED and info.retval.requeue:
        return {"task-rejected": {"requeue": True}}
    if info.state not in (states.FAILURE, states.REJECTED, states.RETRY):
        return {}
    # A retry stands around what it is for.
    error = getattr(info.retval, "exc", None) if info.state == states.RETRY else info.retval
    what = "task-retried" if info.state == states.RETRY else "task-failed"
    return {what: {"exception": saferepr(error), "traceback": str(getattr(result.retval, "traceback", ""))}}


def _send(task: Any, request: dict[str, Any], events: Callable[..., dict[str, dict[str, Any]]], *of: Any) -> None:
    """What cannot be sent is dropped: a task does not depend on being watched."""
    global _down_until
    if time.monotonic() < _down_until:
        return
    try:
        with task.app.events.default_dispatcher(hostname=request.get("hostname")) as dispatcher:
            for what, fields in events(*of).items():
                dispatcher.send(what, uuid=request["id"], **fields)
    except Exception as error:
        # To find out takes seconds.
        _down_until = time.monotonic() + DOWN_SECONDS
        logger.debug("no event was sent for %s[%s]: %r", task.name, request["id"], error)

"""What is said of deliveries that were lost, and of tasks that ended outside a run of their own: in the log, and by the signals
that plain Celery sends."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from celery.app.task import Context
from celery.exceptions import NotRegistered

from . import events, forks
from .body import look, read
from .tracing import fill_in

if TYPE_CHECKING:
    from .queue import VTRRQueue

logger = logging.getLogger(__name__)

# The causes of dead letters that no run has told of; of the others the worker that ran the task has.
SILENT = ("poison", "unknown", "missing", "unreadable", "timeout")


def report(vtrr: VTRRQueue, ids: Iterable[str], why: str) -> None:
    """Says which deliveries were lost, and with what."""
    for id in ids:
        name, of = "", ""
        try:
            with forks.quiet():
                found = vtrr.find(id)
            if found is not None:
                name, of = name_in(look(found.payload)), f" of partition {found.partition!r} in delivery {found.deliveries}"
        except Exception as error:
            logger.debug("%s: what %s is could not be found out: %r", vtrr, id, error)
        logger.error("%s: task %s[%s]%s was lost: %s", vtrr, name, id, of, why)


def error_of(letter: dict[str, Any]) -> Exception:
    """What a dead letter comes to as a result."""
    if letter["cause"] == "unknown":
        unknown: Exception = NotRegistered(name_in(look(letter["payload"])))
        return unknown
    kind: type[Exception] = TimeLimitExceeded if letter["cause"] == "timeout" else WorkerLostError
    return kind(letter["error"])


def announce(vtrr: VTRRQueue, letter: dict[str, Any], consumer: Any) -> None:
    """Tells of a dead letter, once, as plain Celery would of its message."""
    if letter["cause"] not in SILENT:
        return
    payload = look(letter["payload"])
    name, id = name_in(payload), letter["id"]
    logger.error(
        "%s: task %s[%s] of partition %r is a dead letter (deliveries: %d): %s",
        vtrr, name, id, letter["partition"], letter["deliveries"], letter["error"],
    )  # fmt: skip
    error = error_of(letter)
    task = vtrr._task_of(payload)
    if letter["cause"] == "unknown":
        signals.task_unknown.send(sender=consumer, message=None, exc=error, name=name, id=id)
    elif task is not None and letter["cause"] == "poison":
        # Of hard limits, which are those of messages, Celery itself tells.
        signal_failure(vtrr, task, letter, error)


def signal_failure(vtrr: VTRRQueue, task: Any, letter: dict[str, Any], error: Exception) -> None:
    payload = read(letter["payload"])
    args, kwargs = fill_in(task, letter["id"], payload["args"], payload["kwargs"])
    request = {"id": letter["id"], "task": task.name, "args": args, "kwargs": kwargs, "retries": payload["retries"]}
    try:
        raise error
    except Exception:
        info = ExceptionInfo()
    task.request_stack.push(Context(request))
    try:
        signals.task_failure.send(
            sender=task, task_id=letter["id"], exception=error,
            args=args, kwargs=kwargs, traceback=info.traceback, einfo=info,
        )  # fmt: skip
    finally:
        task.request_stack.pop()
    if vtrr.task_events and task.send_events:
        events.lost(task, request, error)


def name_in(payload: dict[str, Any]) -> str:
    return str(payload.get("task_name") or "")

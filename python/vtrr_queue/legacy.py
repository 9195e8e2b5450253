"""0.1.0's retries: messages with one task in them, which is in no queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kombu.utils.json import dumps

from . import tickets
from ._core import Queue
from .body import next_arguments, tail
from .tracing import DONE, fill_in, tracer_of

if TYPE_CHECKING:
    from .task import VTRRTask

logger = logging.getLogger(__name__)

# Whose tasks these are, 0.1.0 does not say.
PARTITION = "0.1.0"


def run_legacy(task: VTRRTask[Any, Any], id: str, payload: dict[str, Any], request: dict[str, Any]) -> Any:
    """A retry that 0.1.0 (or ``retry_through="broker"``) sent: one task, outside the queue."""
    own = task.app.tasks.get(payload["task_name"])
    if own is None:
        # As a task of the queue it is given back while it is unknown, then a dead letter.
        logger.warning("%s: no task %r here; 0.1.0's retry of it is queued", task.vtrr, payload["task_name"])
        item = {"id": id, "args": payload["args"], "kwargs": payload["kwargs"]}
        extra = tail({"retries": int(request.get("retries") or 0)})
        prepared = Queue.prepare(PARTITION, [item], task_name=payload["task_name"], dumps=dumps, extra=extra)
        task.vtrr._run(task.vtrr._core.enqueue(prepared))
        return DONE
    args, kwargs = fill_in(own, id, payload["args"], payload["kwargs"])
    ours = {"args": args, "kwargs": kwargs, "headers": {}, "shadow": None, "vtrr_retry": retry_by_broker}
    return tracer_of(own)(id, args, kwargs, {**request, **ours})


def retry_by_broker(task: VTRRTask[Any, Any], args: Any, kwargs: Any, task_id: str, options: dict[str, Any]) -> Any:
    """Sends a retry as 0.1.0 does, so that its workers understand it."""
    args, kwargs = next_arguments(task, args, kwargs)
    payload = {"task_name": task.name, "args": args, "kwargs": kwargs}
    options = {key: options.get(key) for key in ("countdown", "eta", "retries", "root_id", "parent_id", "reply_to")}
    return tickets.send(task, {"task_payload": payload}, task_id=task_id, **options)

"""What a retry stores in place of the task."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from kombu.utils.json import dumps

from ._core import encode_call
from .body import next_arguments, tail


def delay_of(options: dict[str, Any]) -> float:
    """Seconds until a retry is due."""
    eta = options.get("eta")
    if eta is not None:
        if isinstance(eta, str):
            eta = datetime.fromisoformat(eta)
        now = datetime.now(timezone.utc) if eta.tzinfo else datetime.utcnow()
        return max(0.0, float((eta - now).total_seconds()))
    return max(0.0, float(options.get("countdown") or 0.0))


def again(task: Any, payload: dict[str, Any], retries: int, args: Any, kwargs: Any, **more: Any) -> bytes:
    """The body of a task's next run; `more` are fields beside the usual ones."""
    extra = {"retries": retries, **more}
    for key in ("root_id", "parent_id", "reply_to"):
        if payload.get(key):
            extra[key] = payload[key]
    return encode_call(task.name, *next_arguments(task, args, kwargs), dumps, tail(extra))

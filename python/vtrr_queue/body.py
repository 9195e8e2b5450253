"""A task as it is stored: what is read, what stands beside its name and arguments, and the arguments of its next
run."""

from __future__ import annotations

import json
from typing import Any

from kombu.utils.json import loads


def read(payload: bytes) -> dict[str, Any]:
    """What a payload holds, whoever stored it, with all that a run relies on; else an error that says what is wrong."""
    found = loads(payload)
    if not isinstance(found, dict):
        raise ValueError(f"it must be an object, not {found!r:.80}")
    for field, kind in (("task_name", str), ("args", list), ("kwargs", dict), ("retries", int)):
        if found.get(field) is None and field != "task_name":
            found[field] = kind()
        if not isinstance(found.get(field), kind):
            raise ValueError(f"{field} must be of type {kind.__name__}, not {found.get(field)!r:.80}")
    return found


def look(payload: bytes) -> dict[str, Any]:
    """What a payload says, without a decoder of the user's; nothing if that cannot be read: then the task is set aside
    when it is dequeued."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def tail(fields: dict[str, Any]) -> str:
    """The fields as they stand behind the arguments: `,"retries":1`, say; empty for none."""
    return "," + json.dumps(fields, separators=(",", ":"))[1:-1] if fields else ""


def next_arguments(task: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Those of a retry: the ones that it gives, else those of the run that is retried."""
    request = task.request_stack.top
    return list(request.args if args is None else args), dict(request.kwargs if kwargs is None else kwargs)

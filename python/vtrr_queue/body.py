"""What a stored task has beside its name and arguments, and the arguments of its next run."""

from __future__ import annotations

import json
from typing import Any


def tail(fields: dict[str, Any]) -> str:
    """The fields as they stand behind the arguments: `,"retries":1`, say; empty for none."""
    return "," + json.dumps(fields, separators=(",", ":"))[1:-1] if fields else ""


def next_arguments(task: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Those of a retry: the ones that it gives, else those of the run that is retried."""
    request = task.request_stack.top
    return list(request.args if args is None else args), dict(request.kwargs if kwargs is None else kwargs)

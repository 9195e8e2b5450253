"""Tasks and Celery's tracers, which run them."""

from __future__ import annotations

from typing import Any

from celery.app import trace

# What the run of a ticket itself comes to.
DONE = trace.trace_ok_t(None, None, 0.0, "None")


def tracer_of(task: Any) -> Any:
    """Celery's tracer of a task; made by `celery.app.trace` as it is now, since instrumentation patches it."""
    tracer = task.__dict__.get("_vtrr_tracer") or getattr(task, "__trace__", None)
    return tracer or trace.build_tracer(task.name, task, app=task.app)


def fits(task: Any, args: Any, kwargs: Any) -> bool:
    """Whether a task takes these arguments."""
    try:
        task.__header__(*args, **kwargs)
    except TypeError:
        return False
    return True


def fill_in(task: Any, id: str, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments, with the task's id in front where the function takes it and the caller left it out."""
    if getattr(task, "takes_id", False) and not fits(task, args, kwargs):
        return [id, *args], kwargs
    return list(args), kwargs

"""What a worker does with a message."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from . import tickets
from ._core import Delivery
from .legacy import run_legacy
from .ticket import Ticket
from .tracing import fits, tracer_of

if TYPE_CHECKING:
    from .task import VTRRTask

LEGACY = "legacy"


def kind_of(task: VTRRTask[Any, Any], request: dict[str, Any], args: Any, kwargs: Any) -> str:
    """What a message is: a ticket, bound to one task of the queue, 0.1.0's retry of a task (`LEGACY`), or a call."""
    mark = request.get(tickets.MARK)
    if not args and kwargs and set(kwargs) <= {"is_start", "task_payload"}:
        # 0.1.0's. Ours have none of these, and where 0.1.0 took one of ours for its own the retry carries on our mark.
        is_call = fits(task, (), kwargs) if mark == tickets.CALL else mark is None and names(task, kwargs)
        if not is_call:
            return LEGACY if kwargs.get("task_payload") else tickets.TICKET
    # Only the main process makes messages that are bound to a task; none comes from a broker.
    if mark in (tickets.TICKET, tickets.CALL) or (mark == tickets.BOUND and isinstance(request.get(tickets.DELIVERY), Delivery)):
        return str(mark)
    if args or kwargs:
        return tickets.CALL
    return tickets.TICKET if task.vtrr.tagging == "all" or not fits(task, (), {}) else tickets.CALL


def names(task: VTRRTask[Any, Any], kwargs: Any) -> bool:
    """Whether the function has parameters of these names, other than by ``**``."""
    return set(kwargs) <= set(inspect.signature(task.run).parameters)


def run(task: VTRRTask[Any, Any], id: str, args: Any, kwargs: Any, request: dict[str, Any]) -> Any:
    """Stands in the place of the tracer of every task of ours."""
    kind = kind_of(task, request, args, kwargs)
    if kind == tickets.CALL:
        return tracer_of(task)(id, args, kwargs, request)
    if kind == LEGACY:
        return run_legacy(task, id, kwargs["task_payload"], request)
    return Ticket(task, id, request, is_bound=kind == tickets.BOUND).run()

"""A fair task queue for Celery on Redis: tasks of different users are interleaved, so that no user can starve
another."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import __version__
    from .errors import (
        IdConflict,
        InvalidArgument,
        InvalidArgumentType,
        NewerFormat,
        ProtocolError,
        QueueFull,
        Unfinished,
        VtrrError,
        WrongMode,
    )
    from .queue import VTRRQueue
    from .results import Results, TaskResult
    from .task import VTRRTask
    from .views import DeadLetter, Found, Purged, Stats

__all__ = [
    "DeadLetter",
    "Found",
    "IdConflict",
    "InvalidArgument",
    "InvalidArgumentType",
    "NewerFormat",
    "ProtocolError",
    "Purged",
    "QueueFull",
    "Results",
    "Stats",
    "TaskResult",
    "Unfinished",
    "VTRRQueue",
    "VTRRTask",
    "VtrrError",
    "WrongMode",
    "__version__",
]

# Imported when asked for: `python -m vtrr_queue.health`, run every few seconds, must not wait for Celery.
_MODULES = {
    "_core": {"__version__"},
    "queue": {"VTRRQueue"},
    "results": {"Results", "TaskResult"},
    "task": {"VTRRTask"},
    "views": {"DeadLetter", "Found", "Purged", "Stats"},
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "errors")
    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

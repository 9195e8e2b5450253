"""A fair task queue for Celery on Redis: tasks of different users are interleaved, so that no user can starve
another."""

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

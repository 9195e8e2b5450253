"""The exceptions of this package. What a Redis client raises passes through as it is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "IdConflict",
    "InvalidArgument",
    "InvalidArgumentType",
    "NewerFormat",
    "ProtocolError",
    "QueueFull",
    "Unfinished",
    "VtrrError",
    "WrongMode",
]


class VtrrError(Exception):
    """Everything that this package itself raises."""


class InvalidArgument(VtrrError, ValueError):
    """An argument of a value that is not allowed; nothing was stored."""


class InvalidArgumentType(VtrrError, TypeError):
    """An argument of a type that is not allowed, or a call that does not fit; nothing was stored."""


class IdConflict(VtrrError, ValueError):
    """A task id is alive in another partition. Nothing was stored of a call of up to 1,000 tasks; of a longer one the
    pieces before, as its attribute ``unfinished`` says."""


class WrongMode(VtrrError):
    """The queue is in the other tagging mode; nothing was stored."""


class QueueFull(VtrrError):
    """The call would have passed ``max_queued`` or ``max_queued_per_partition``, whichever ``bound`` names; nothing of it was
    stored. The same call may be made again later."""

    bound: str


class NewerFormat(VtrrError):
    """The queue was written by a newer format of this package: upgrade this client."""


class ProtocolError(VtrrError):
    """The server's answer cannot be read."""


@dataclass(frozen=True)
class Unfinished:
    """How far a ``.queue()`` got that ended in an error of the Redis client, or in an ``IdConflict``: the attribute
    ``unfinished`` of that error.

    Repeated with ``request`` and these ids, within 60 s of when its pieces first came to the server, the call stores the rest
    and charges nothing twice. Later, tasks are known by their ids as long as they are alive.
    """

    request: str
    ids: list[str]
    stored: int

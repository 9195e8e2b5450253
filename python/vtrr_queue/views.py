"""What the queue answers when it is looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeadLetter", "Found", "Purged", "Stats"]


@dataclass(frozen=True)
class Stats:
    """The queue in numbers, exact at one moment."""

    tagging: str | None
    """``head`` or ``all``; None before the first task."""
    queued: int
    leased: int
    delayed: int
    dead: int
    partitions: int
    """Partitions with queued tasks."""
    virtual_time: float
    next_due: float | None
    """Seconds until the next lease runs out or delayed task is due."""
    totals: dict[str, int]
    """Counts since the queue was made: ``enqueued``, ``delivered``, ``acked`` and so on; without those that are 0."""


@dataclass(frozen=True)
class Found:
    """A task that is still known to the queue."""

    state: str
    """``waiting`` (in its lane), ``tagged`` (in the order), ``leased``, ``delayed`` or ``dead``."""
    deliveries: int
    partition: str | None
    weight: int
    payload: bytes
    start: float | None
    """Its start tag, when tagged."""
    left: float | None
    """Seconds until the lease runs out, or until it is due."""
    owner: str | None
    cause: str | None
    """What kind of end it came to, if it is dead: see ``DeadLetter``."""
    error: str | None
    """Why it is dead."""


@dataclass(frozen=True)
class Purged:
    """What a purge took out, and what it left alone in the same scope."""

    purged: int
    leased: int
    delayed: int
    dead: int


@dataclass(frozen=True)
class DeadLetter:
    """A task that failed for good."""

    id: str
    died_at: float
    """Seconds since 1970, by the server's clock."""
    deliveries: int
    cause: str
    """``failed`` (its own run failed for good), ``rejected``, ``timeout`` (its hard limit), ``revoked`` (terminated),
    ``poison`` (its workers were lost), ``unknown`` (nobody knew its name), ``missing`` (its payload), ``unreadable`` (its
    payload or arguments), or ``backend`` (it ran, but the result backend did not take its state)."""
    error: str
    partition: str | None
    payload: bytes

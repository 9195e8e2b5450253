"""A fork copies locks that other threads hold, and its child never gets them: the pool of redis-py has such locks,
kombu's too. So the threads that a worker's main process has of us use these only within `quiet`, and the process forks
between."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A fork waits no longer than this, since the event loop waits with it: a server may hang.
WAIT_SECONDS = 1.0

_condition = threading.Condition()
_busy = 0
_watched = False


@contextmanager
def quiet() -> Iterator[None]:
    """No fork happens within."""
    global _busy
    with _condition:
        _busy += 1
    try:
        yield
    finally:
        with _condition:
            _busy -= 1
            _condition.notify_all()


def watch() -> None:
    """Makes forks of this process wait for each `quiet`."""
    global _watched
    if not _watched:
        _watched = True
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)


def _before() -> None:
    _condition.acquire()
    _condition.wait_for(lambda: not _busy, WAIT_SECONDS)


def _after() -> None:
    _condition.release()


def _in_child() -> None:
    global _condition, _busy
    _condition, _busy = threading.Condition(), 0

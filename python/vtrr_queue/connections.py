"""Django keeps a thread's connections to databases and caches, and Celery closes them around each task: one that the server
has closed would else fail for ever. Around what we ask of a result backend outside of tasks, we do."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)


@contextmanager
def renewed() -> Iterator[None]:
    """Within, this thread's connections are new ones; none is kept."""
    close()
    try:
        yield
    finally:
        close()


def close() -> None:
    # Not imported: where the application has not, there is nothing to close.
    database, cache, conf = (sys.modules.get(name) for name in ("django.db", "django.core.cache", "django.conf"))
    if conf is None or not conf.settings.configured:
        return
    opened: list[Any] = []
    if database is not None:
        opened += database.connections.all(initialized_only=True)
    if cache is not None:
        opened += cache.caches.all(initialized_only=True)
    for connection in opened:
        try:
            connection.close()
        except Exception as error:
            # It is dropped all the same.
            logger.debug("a connection was not closed in good order: %r", error)

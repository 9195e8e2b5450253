"""What a worker tells the result backend on its own account. In a thread beside the sweep's, since a backend may hang."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError

from . import backend, connections, forks
from .body import look
from .refusals import StateRefused

if TYPE_CHECKING:
    from .queue import VTRRQueue

logger = logging.getLogger(__name__)

# The causes of dead letters whose state no run of the task has stored, or not surely; and how many letters a turn looks at.
UNTOLD = ("poison", "unknown", "missing", "unreadable", "timeout", "rejected", "backend")
MOST_LETTERS = 1000
# How often the state of one is tried to be stored: a backend may refuse just that.
MOST_TRIES = 100


class Teller(threading.Thread):
    """Takes its turn after each of the sweep's."""

    def __init__(self, vtrr: VTRRQueue) -> None:
        super().__init__(name=f"vtrr-tell-{vtrr.name}", daemon=True)
        self.vtrr = vtrr
        self.news = threading.Event()
        self.stopped = False
        # The queue's numbers, where this worker is the one that sweeps.
        self.stats: dict[str, Any] | None = None
        # How many of the dead letters that there have ever been were looked at.
        self.died = 0
        # Those of them that are to be told of, and how often that was tried.
        self.untold: deque[tuple[dict[str, Any], int]] = deque(maxlen=10_000)

    def turn(self, stats: dict[str, Any] | None) -> None:
        self.stats = stats
        self.news.set()

    def stop(self) -> None:
        self.stopped = True
        self.news.set()

    def run(self) -> None:
        while True:
            self.news.wait()
            if self.stopped:
                return
            self.news.clear()
            stats = self.stats
            try:
                if stats is not None:
                    with connections.renewed():
                        self.tell_of_the_dead(stats)
            except Exception as error:
                logger.warning("%s: states could not be stored, it will be tried again: %r", self.vtrr, error)

    def tell_of_the_dead(self, stats: dict[str, Any]) -> None:
        """Gives the state FAILURE to tasks that no run of theirs could give it: those that ended all their workers,
        say. Somebody may wait for the result."""
        died = stats["totals"].get("dead", 0)
        # What was redriven or discarded since is not looked for.
        new = min(died - self.died, stats["dead"])
        if new > 0:
            with forks.quiet():
                letters = self.vtrr._run(self.vtrr._core.dead_letters(stats["dead"] - new, min(new, MOST_LETTERS)))
            self.untold.extend((letter, 1) for letter in letters if letter["cause"] in UNTOLD)
            self.died = died - new + len(letters)
        failed = 0
        for _ in range(len(self.untold)):
            letter, tries = self.untold.popleft()
            try:
                self.tell_of(letter)
                failed = 0
            except StateRefused as error:
                logger.error("%s: %s", self.vtrr, error)
            except Exception as error:
                logger.warning("%s: no state could be stored for %s: %r", self.vtrr, letter["id"], error)
                failed += 1
                if tries < MOST_TRIES:
                    self.untold.append((letter, tries + 1))
                if failed == 2:
                    return  # the backend is down

    def tell_of(self, letter: dict[str, Any]) -> None:
        payload = look(letter["payload"])
        task = self.vtrr._task_of(payload)
        kind = TimeLimitExceeded if letter["cause"] == "timeout" else WorkerLostError
        if task is None or not task.ignore_result:
            with forks.quiet():
                backend.store_failure(self.vtrr.celery_app.backend, letter["id"], kind(letter["error"]), payload)

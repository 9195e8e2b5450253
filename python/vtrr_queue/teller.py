"""What a worker tells of tasks that ended outside a run of their own: the result backend, the log and signals. In a thread beside
the sweep's, since a backend may hang."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from . import backend, connections, forks, losses
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
# How many letters were told of is kept for as long as letters are. Where that is not known, as on a queue of an older version,
# those are new that died since so long before the worker began.
TOLD_SECONDS = 31 * 86_400
NEW_SECONDS = 60.0


class Teller(threading.Thread):
    """Takes its turn after each of the sweep's."""

    def __init__(self, vtrr: VTRRQueue, worker: Any) -> None:
        super().__init__(name=f"vtrr-tell-{vtrr.name}", daemon=True)
        self.vtrr = vtrr
        self.worker = worker
        self.since = time.time() - NEW_SECONDS
        self.news = threading.Event()
        self.stopped = False
        # The queue's numbers, where this worker is the one that sweeps.
        self.stats: dict[str, Any] | None = None
        # How many of the dead letters that there have ever been were looked at.
        self.died = 0
        # Those of them whose state is to be stored, how often that was tried, and whether nobody was told of them yet.
        self.untold: deque[tuple[dict[str, Any], int, bool]] = deque(maxlen=10_000)

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
                told = self.told()
            for number, letter in enumerate(letters, died - new + 1):
                if letter["cause"] in UNTOLD:
                    self.untold.append((letter, 1, letter["died_at"] > self.since if told is None else number > told))
            self.died = died - new + len(letters)
        self.tell_all()
        if new > 0:
            with forks.quiet():
                self.vtrr.redis_client.set(self.vtrr._core.told_key, self.died, ex=TOLD_SECONDS)

    def told(self) -> int | None:
        """Of how many of all dead letters anybody has told."""
        told = self.vtrr.redis_client.get(self.vtrr._core.told_key)
        return None if told is None else int(told)

    def tell_all(self) -> None:
        """States are stored, then those told of who were not."""
        failed = 0
        for _ in range(len(self.untold)):
            letter, tries, is_new = self.untold.popleft()
            try:
                if failed < 2:  # else the backend is down
                    self.tell_of(letter)
                    failed = 0
                else:
                    self.untold.append((letter, tries, False))
            except StateRefused as error:
                logger.error("%s: %s", self.vtrr, error)
            except Exception as error:
                logger.warning("%s: no state could be stored for %s: %r", self.vtrr, letter["id"], error)
                failed += 1
                if tries < MOST_TRIES:
                    self.untold.append((letter, tries + 1, False))
            if is_new:
                losses.announce(self.vtrr, letter, getattr(self.worker, "consumer", None))

    def tell_of(self, letter: dict[str, Any]) -> None:
        payload = look(letter["payload"])
        task = self.vtrr._task_of(payload)
        if task is None or not task.ignore_result:
            with forks.quiet():
                backend.store_failure(self.vtrr.celery_app.backend, letter["id"], losses.error_of(letter), payload)

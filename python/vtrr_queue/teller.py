"""What a worker tells the result backend on its own account, and what it hears of Celery's `revoke`. In a thread beside
the sweep's, since a backend may hang."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state

from . import backend, forks
from .body import read
from .errors import VtrrError

if TYPE_CHECKING:
    from .queue import VTRRQueue

logger = logging.getLogger(__name__)

# How the errors of dead letters begin that did not come from a run of the task; and how many letters a turn looks at.
UNTOLD = ("poison", "lost", "unreadable payload", "TimeLimitExceeded", "Reject:")
MOST_LETTERS = 1000


class Teller(threading.Thread):
    """Takes its turn after each of the sweep's."""

    def __init__(self, vtrr: VTRRQueue) -> None:
        super().__init__(name=f"vtrr-tell-{vtrr.name}", daemon=True)
        self.vtrr = vtrr
        self.news = threading.Event()
        # The queue's numbers, where this worker is the one that sweeps.
        self.stats: dict[str, Any] | None = None
        # How many of the dead letters that there have ever been were looked at.
        self.died = 0
        # Ids that Celery's own revoke had named at the last turn; Celery bounds their number.
        self.revoked: set[str] = set()

    def turn(self, stats: dict[str, Any] | None) -> None:
        self.stats = stats
        self.news.set()

    def run(self) -> None:
        while True:
            self.news.wait()
            self.news.clear()
            stats = self.stats
            try:
                self.cancel_revoked()
                if stats is not None:
                    self.tell_of_the_dead(stats)
            except Exception as error:
                logger.warning("%s: states could not be stored, it will be tried again: %r", self.vtrr, error)

    def cancel_revoked(self) -> None:
        """Takes tasks out whose ids were revoked by Celery's means: it knows of messages only."""
        revoked = set(state.revoked)
        new = [id for id in revoked - self.revoked if self.could_be_ours(id)]
        answers: dict[str, str] = {}
        if new:
            with forks.quiet():
                answers = self.vtrr.cancel(new)
        # One that runs is looked at again: it may ask for a retry.
        self.revoked = {id for id in revoked if answers.get(id) != "leased"}

    def could_be_ours(self, id: Any) -> bool:
        try:
            self.vtrr._core.find(id)
        except VtrrError:
            return False
        return True

    def tell_of_the_dead(self, stats: dict[str, Any]) -> None:
        """Gives the state FAILURE to tasks that no run of theirs could give it: those that ended all their workers,
        say. Somebody may wait for the result."""
        died = stats["totals"].get("dead", 0)
        new = min(died - self.died, stats["dead"])
        # What was redriven or discarded since is not looked for.
        self.died = died - max(new, 0)
        if new <= 0:
            return
        with forks.quiet():
            letters = self.vtrr._run(self.vtrr._core.dead_letters(stats["dead"] - new, min(new, MOST_LETTERS)))
        failed = False
        for number, letter in enumerate(letters, self.died):
            try:
                if letter["error"].startswith(UNTOLD):
                    self.tell_of(letter)
            except Exception as error:
                if failed:
                    raise  # two in a row: the backend is down, and the next turn goes on at the first of them
                failed = True
                logger.warning("%s: no state could be stored for %s: %r", self.vtrr, letter["id"], error)
            else:
                failed, self.died = False, number + 1

    def tell_of(self, letter: dict[str, Any]) -> None:
        payload = payload_of(letter["payload"])
        task = self.vtrr.tasks.get(payload.get("task_name", ""))
        kind = TimeLimitExceeded if letter["error"].startswith("TimeLimit") else WorkerLostError
        if task is None or not task.ignore_result:
            with forks.quiet():
                backend.store_failure(self.vtrr.celery_app.backend, letter["id"], kind(letter["error"]), payload)


def payload_of(payload: bytes) -> dict[str, Any]:
    """What is in a payload; nothing if it cannot be read: then it is set aside when it is dequeued."""
    try:
        return read(payload)
    except (ValueError, TypeError):
        return {}

"""The tasks that a ticket has taken at once. Where tasks are short, a worker takes several with one call, and stores
with the next one how they ended. Should one of them turn out not to be short, the others do not wait for it: what has
not begun goes back to the queue, and what has ended is stored."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Delivery
    from .queue import VTRRQueue

logger = logging.getLogger(__name__)

Settling = tuple[str, str, str, float, "bytes | None"]

# A task that runs for longer than this is not short.
SHORT_SECONDS = 0.005
# How long tasks in hand wait for one that is not.
PATIENCE_SECONDS = 0.05
# The thread that watches for that ends when there was nothing to watch for so long.
LINGER_SECONDS = 1.0
MOST = 16


class Hand:
    """What a ticket holds: tasks that have not begun, and how others ended."""

    def __init__(self, vtrr: VTRRQueue) -> None:
        self.vtrr = vtrr
        self.lock = threading.Lock()
        self.waiting: deque[Delivery] = deque()
        self.ended: list[Settling] = []
        # When the task that runs now began.
        self.since = 0.0

    def hold(self, deliveries: Iterable[Delivery]) -> None:
        """Takes what a call has delivered; what was handed to that call is settled."""
        with self.lock:
            self.ended = []
            self.waiting.extend(deliveries)
            self.since = time.monotonic()
        first = next((delivery for delivery in self.waiting if delivery.blames), None)
        if first is not None and len(self.waiting) > 1:
            # It ended a worker, or was beside one that did: it shall not take others with it.
            self.waiting.remove(first)
            self.put_back()
            self.waiting.append(first)
        if len(self.waiting) > 1:
            _watch.add(self)

    def begin(self) -> Delivery | None:
        """The next task to run."""
        with self.lock:
            self.since = time.monotonic()
            return self.waiting.popleft() if self.waiting else None

    def end(self, settling: Settling) -> None:
        """Notes how the task that ran has ended."""
        with self.lock:
            self.ended.append(settling)

    def collect(self) -> list[Settling]:
        """How tasks ended, to be stored by the caller, who has none left to begin."""
        _watch.discard(self)
        with self.lock:
            return self.ended

    def put_back(self) -> bool:
        """Gives back what has not begun and stores what has ended; False if that could not be done."""
        with self.lock:
            settlings = self.ended + [(it.id, it.token, "release", 0.0, None) for it in self.waiting]
            # From now on they are not ours, even if the call fails: then they come back with their lease.
            self.waiting.clear()
            if not settlings:
                return True
            try:
                self.vtrr._run(self.vtrr._core.settle(settlings))
            except Exception as error:
                logger.warning("%s: tasks in hand could not be given back yet: %r", self.vtrr, error)
                return False
            self.ended = []
            return True


class _Watch:
    """Looks after the hands of a process, in one thread that lives while there are any, and a little longer."""

    def __init__(self) -> None:
        self.hands: set[Hand] = set()
        self.some = threading.Event()
        # That of the process that has the thread; 0 for none.
        self.pid = 0

    def add(self, hand: Hand) -> None:
        with _starting:
            if self.pid != os.getpid():
                self.hands, self.some = set(), threading.Event()
                threading.Thread(target=self.run, name="vtrr-watch", daemon=True).start()
                self.pid = os.getpid()
            self.hands.add(hand)
            self.some.set()

    def discard(self, hand: Hand) -> None:
        self.hands.discard(hand)

    def run(self) -> None:
        pause = threading.Event()
        while True:
            if not self.some.wait(LINGER_SECONDS):
                with _starting:
                    if not self.some.is_set():
                        self.pid = 0
                        return
            if not self.hands:
                with _starting:
                    if not self.hands:
                        self.some.clear()
                continue
            pause.wait(PATIENCE_SECONDS / 2)
            for hand in list(self.hands):
                if time.monotonic() - hand.since > PATIENCE_SECONDS:
                    self.hands.discard(hand)
                    hand.put_back()


_starting = threading.Lock()
_watch = _Watch()

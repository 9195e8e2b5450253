"""Keeps the leases of a worker: extends them while their messages are worked on, and settles for processes that cannot
any more. In the worker's main process, in threads of its own, so that neither a task that holds the GIL of its process
nor a Redis that hangs stops anybody else."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import forks
from ._core import Queue

if TYPE_CHECKING:
    from .queue import VTRRQueue
    from .requests import TicketRequest

logger = logging.getLogger(__name__)

# How long the event loop waits for a hard time limit to be written.
WRITE_SECONDS = 1.0


class _Keeper:
    """One per worker process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.nonce = Queue.fresh()
        self.lock = threading.Lock()
        self.requests: weakref.WeakSet[TicketRequest] = weakref.WeakSet()
        self.jobs: queue.SimpleQueue[tuple[str, VTRRQueue, Any, threading.Event]] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        # Leases are extended so often, and from when a shorter one than all before is seen.
        self.period = 10.0
        self.shorter = threading.Event()

    def register(self, request: TicketRequest) -> None:
        with self.lock:
            self.requests.add(request)
            if request.vtrr.lease / 3 < self.period:
                self.period = request.vtrr.lease / 3
                self.shorter.set()
            if not self.threads:
                for target in (self.extend_leases, self.work):
                    thread = threading.Thread(target=target, name=f"vtrr-{target.__name__}", daemon=True)
                    self.threads.append(thread)
                    thread.start()

    def owners(self) -> list[tuple[VTRRQueue, str]]:
        """Who may hold leases: messages that a process has begun with."""
        with self.lock:
            return [(request.vtrr, request.vtrr_owner) for request in self.requests if request.time_start]

    def extend_leases(self) -> None:
        while True:
            self.shorter.wait(self.period)
            self.shorter.clear()
            down: set[VTRRQueue] = set()
            for vtrr, owner in self.owners():
                if vtrr in down:
                    continue
                try:
                    with forks.quiet():
                        vtrr._run(vtrr._core.extend_owner(owner, vtrr.lease))
                except Exception as error:
                    logger.warning("%s: leases could not be extended: %r", vtrr, error)
                    down.add(vtrr)

    def post(self, what: str, vtrr: VTRRQueue, command: Any) -> threading.Event:
        done = threading.Event()
        self.jobs.put((what, vtrr, command, done))
        return done

    def work(self) -> None:
        pause = threading.Event()
        while True:
            what, vtrr, command, done = self.jobs.get()
            # A task that is not settled comes back when its lease has run out: no need to try for longer.
            for seconds in (0.2, 0.5, 1.0, 2.0, None):
                try:
                    with forks.quiet():
                        vtrr._run(command)
                    break
                except Exception as error:
                    logger.warning("%s: could not %s: %r", vtrr, what, error)
                    if seconds is not None:
                        pause.wait(seconds)
            done.set()

    def at_exit(self) -> None:
        if os.getpid() != self.pid:
            return
        # The children are gone by now, and what they had not settled goes back at once.
        for vtrr, owner in self.owners():
            try:
                vtrr._run(vtrr._core.release_owner(owner))
            except Exception as error:
                logger.warning("%s: leases could not be given back: %r", vtrr, error)
                return


_current: _Keeper | None = None


def start() -> None:
    """Called by a worker's main process before it forks."""
    global _current
    if not is_here():
        _current = _Keeper()
        forks.watch()
        atexit.register(_current.at_exit)


def _keeper() -> _Keeper:
    start()
    assert _current is not None
    return _current


def is_here() -> bool:
    """Whether this is the main process of a worker: where pools without processes run tasks."""
    return _current is not None and _current.pid == os.getpid()


def nonce() -> str:
    """Names this process start; no other has it."""
    return _keeper().nonce


def register(request: TicketRequest) -> None:
    """Extends the leases of a message from when a process begins with it until it is gone."""
    _keeper().register(request)


def release(request: TicketRequest, reason: str | None) -> None:
    """Gives back what a message holds; with blame, if there is a reason."""
    core: Queue = request.vtrr._core
    _keeper().post("give tasks back", request.vtrr, core.release_owner(request.vtrr_owner, reason))


def fail(request: TicketRequest, error: str) -> None:
    """Makes dead letters of what a message holds; waits for it shortly."""
    core: Queue = request.vtrr._core
    _keeper().post("fail a task", request.vtrr, core.fail_owner(request.vtrr_owner, error)).wait(WRITE_SECONDS)


def cancel(request: TicketRequest) -> None:
    """Takes the task out of the queue that a bound message was for."""
    core: Queue = request.vtrr._core
    _keeper().post("cancel a task", request.vtrr, core.cancel([request.id]))

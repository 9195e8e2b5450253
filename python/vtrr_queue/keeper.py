"""Keeps the leases of a worker: extends them while their messages are worked on, and settles for processes that cannot
any more; tells by a file whether that works. In the worker's main process, in threads of its own, so that neither a task
that holds the GIL of its process nor a Redis that hangs stops anybody else."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import forks, losses
from ._core import Queue

if TYPE_CHECKING:
    from .health import HealthFile
    from .queue import VTRRQueue
    from .requests import TicketRequest

logger = logging.getLogger(__name__)

# How long the event loop waits for a hard time limit to be written.
WRITE_SECONDS = 1.0
# While the last tasks of a worker end, it is looked so often whether they have.
LAST_SECONDS = 1.0


@dataclass
class Job:
    """What is settled in a thread of ours."""

    what: str
    vtrr: VTRRQueue
    command: Any
    then: Callable[[Any], None] | None
    done: threading.Event = field(default_factory=threading.Event)


class _Keeper:
    """One per worker process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.nonce = Queue.fresh()
        self.lock = threading.Lock()
        self.requests: weakref.WeakSet[TicketRequest] = weakref.WeakSet()
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # By name. They end when no worker is left, nor anything to do; several may begin and end in one process.
        self.threads: dict[str, threading.Thread] = {}
        self.workers: set[Any] = set()
        # Where it is told for which queue that the worker is live, and whether it works on that, tasks in hand or not.
        self.files: dict[VTRRQueue, tuple[HealthFile, Callable[[], bool]]] = {}
        # Leases are extended so often. What wakes the thread: a shorter one than all before, or a worker's end.
        self.period = 10.0
        self.news = threading.Event()

    def enter(self, worker: Any) -> None:
        with self.lock:
            self.workers.add(worker)

    def leave(self, worker: Any) -> None:
        with self.lock:
            self.workers.discard(worker)
        self.news.set()
        self.jobs.put(None)

    def register(self, request: TicketRequest) -> None:
        with self.lock:
            self.requests.add(request)
            self.begin(request.vtrr.lease)

    def report(self, vtrr: VTRRQueue, file: HealthFile, works: Callable[[], bool]) -> None:
        with self.lock:
            self.files[vtrr] = (file, works)
            self.begin(vtrr.lease)

    def begin(self, lease: float) -> None:
        """With the lock."""
        if lease / 3 < self.period:
            self.period = lease / 3
            self.news.set()
        self.begin_thread("extend_leases", self.extend_leases)
        self.begin_thread("work", self.work)

    def begin_thread(self, name: str, target: Callable[[], None]) -> None:
        """With the lock."""
        if name not in self.threads:
            self.threads[name] = threading.Thread(target=target, name=f"vtrr-{name}", daemon=True)
            self.threads[name].start()

    def _holders(self) -> list[TicketRequest]:
        """What may hold leases: messages that a process has begun with, or for which a task was dequeued. With the lock."""
        return [request for request in self.requests if request.time_start or request.vtrr_holds]

    def askers(self) -> list[tuple[VTRRQueue, str]]:
        """Who extends leases, and for health nobody's: an owner that holds none."""
        with self.lock:
            owners = [(request.vtrr, request.vtrr_owner) for request in self._holders()]
            files = list(self.files.items())
        return [*owners, *((vtrr, f"{self.nonce}/0") for vtrr, (_, works) in files if works())]

    def extend_leases(self) -> None:
        while self.extends():
            self.news.wait(self.period if self.workers else min(self.period, LAST_SECONDS))
            self.news.clear()
            down: set[VTRRQueue] = set()
            answered: set[VTRRQueue] = set()
            for vtrr, owner in self.askers():
                if vtrr in down:
                    continue
                try:
                    with forks.quiet():
                        vtrr._run(vtrr._core.extend_owner(owner, vtrr.lease))
                    answered.add(vtrr)
                except Exception as error:
                    logger.warning("%s: leases could not be extended: %r", vtrr, error)
                    down.add(vtrr)
            for vtrr in answered & self.files.keys():
                self.beat(vtrr)

    def extends(self) -> bool:
        """False where the thread is to end: without a worker, as soon as its last task has ended."""
        with self.lock:
            if self.workers or self._holders():
                return True
            del self.threads["extend_leases"]
            files, self.files = self.files, {}
        for vtrr in files:
            self.end_file(vtrr, files[vtrr][0])
        return False

    def end_file(self, vtrr: VTRRQueue, file: HealthFile) -> None:
        try:
            file.end()
        except OSError as error:
            logger.warning("%s: the health_file %r could not be removed: %r", vtrr, file.path, error)

    def beat(self, vtrr: VTRRQueue) -> None:
        file, _ = self.files[vtrr]
        try:
            file.beat()
        except OSError as error:
            logger.warning("%s: the health_file %r could not be written: %r", vtrr, file.path, error)

    def post(self, what: str, vtrr: VTRRQueue, command: Any, then: Callable[[Any], None] | None = None) -> threading.Event:
        """Runs a command soon; and `then`, with its answer."""
        job = Job(what, vtrr, command, then)
        with self.lock:
            self.jobs.put(job)
            self.begin_thread("work", self.work)
        return job.done

    def next_job(self) -> Job | None:
        """None where the thread is to end."""
        while True:
            with self.lock:
                if not self.workers and self.jobs.empty():
                    del self.threads["work"]
                    return None
            if (job := self.jobs.get()) is not None:
                return job

    def work(self) -> None:
        pause = threading.Event()
        while (job := self.next_job()) is not None:
            # A task that is not settled comes back when its lease has run out: no need to try for longer.
            for seconds in (0.2, 0.5, 1.0, 2.0, None):
                try:
                    with forks.quiet():
                        answer = job.vtrr._run(job.command)
                    break
                except Exception as error:
                    logger.warning("%s: could not %s: %r", job.vtrr, job.what, error)
                    if seconds is not None:
                        pause.wait(seconds)
            else:
                answer = None
            job.done.set()
            if job.then is not None and answer is not None:
                job.then(answer)

    def at_exit(self) -> None:
        if os.getpid() != self.pid:
            return
        for vtrr, (file, _) in self.files.items():
            self.end_file(vtrr, file)
        with self.lock:
            requests = self._holders()
        # The children are gone by now, and what they had not settled goes back at once.
        for request in requests:
            core: Queue = request.vtrr._core
            give_back = core.stop_owner if request.time_start else core.release_owner
            try:
                request.vtrr._run(give_back(request.vtrr_owner))
            except Exception as error:
                logger.warning("%s: leases could not be given back: %r", request.vtrr, error)
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


def enter(worker: Any) -> None:
    """A worker has started in this process: until it leaves, and its last task has ended, our threads live."""
    _keeper().enter(worker)


def leave(worker: Any) -> None:
    """The worker ends."""
    _keeper().leave(worker)


def nonce() -> str:
    """Names this process start; no other has it."""
    return _keeper().nonce


def register(request: TicketRequest) -> None:
    """Extends the leases of a message from when a process begins with it until it is gone."""
    _keeper().register(request)


def report(vtrr: VTRRQueue, file: HealthFile, works: Callable[[], bool]) -> None:
    """From now on a file tells whether the worker is live: written whenever Redis has answered an extension, also one of
    no lease, made while ``works()``; removed when the worker has ended."""
    _keeper().report(vtrr, file, works)
    # It has a lease from now on until it must have been answered.
    _keeper().beat(vtrr)


def release(request: TicketRequest, reason: str) -> None:
    """Gives back what a message holds, with blame: these deliveries are lost."""
    vtrr = request.vtrr
    core: Queue = vtrr._core
    command = core.release_owner(request.vtrr_owner, reason)
    _keeper().post("give tasks back", vtrr, command, lambda ids: losses.report(vtrr, ids, reason))


def give_back(vtrr: VTRRQueue, owner: str) -> threading.Event:
    """Gives back what was dequeued in this name and has not begun."""
    core: Queue = vtrr._core
    return _keeper().post("give tasks back", vtrr, core.release_owner(owner))


def stop(request: TicketRequest) -> None:
    """Gives back what a message holds, since the worker stops."""
    core: Queue = request.vtrr._core
    _keeper().post("give tasks back", request.vtrr, core.stop_owner(request.vtrr_owner))


def fail(request: TicketRequest, cause: str, error: str) -> None:
    """Makes dead letters of what a message holds; waits for it shortly."""
    core: Queue = request.vtrr._core
    _keeper().post("fail a task", request.vtrr, core.fail_owner(request.vtrr_owner, cause, error)).wait(WRITE_SECONDS)


def cancel(request: TicketRequest) -> None:
    """Takes the task out of the queue that a bound message was for."""
    core: Queue = request.vtrr._core
    _keeper().post("cancel a task", request.vtrr, core.cancel([request.id]))

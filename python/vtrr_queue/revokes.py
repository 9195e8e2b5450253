"""Celery's `revoke`, as far as it is about tasks of the queue. Celery keeps the ids that it names, hands them on to workers
that join, and may store them; but ids are used again here. So a revoke acts on the store once, when a worker receives it,
and what Celery has kept is never looked at."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.task import Context
from celery.signals import task_revoked
from celery.utils.collections import AttributeDict
from celery.utils.functional import maybe_list
from celery.worker.control import Panel

from . import connections, forks
from .body import look
from .errors import InvalidArgument, InvalidArgumentType
from .refusals import STATELESS

if TYPE_CHECKING:
    from .queue import VTRRQueue
    from .views import Found

logger = logging.getLogger(__name__)

# For so long a revoke is tried to be applied, and so often. Later the id may be another task's.
TRY_SECONDS = 60.0
PAUSE_SECONDS = 0.5
# States in which the newest Celery marks what it is told to revoke, and has not.
MARKED = (states.PENDING, states.RECEIVED, states.RETRY, states.REJECTED)


def listen() -> None:
    """From now on the workers of this process hear of the revokes that they receive."""
    for name in ("revoke", "terminate"):
        command = Panel.data.get(name)
        if command is not None and not hasattr(command, "tells_vtrr"):
            Panel.data[name] = heard_by_us(command)


def heard_by_us(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command of Celery's remote control that tells us the ids. It marks no state itself: from 5.6 on it would do so for
    tasks that run inside tickets, which it takes for waiting ones."""

    @wraps(command)
    def hear(state: Any, task_id: Any = None, **options: Any) -> Any:
        revokes: Revokes | None = getattr(state.consumer.controller, "vtrr_revokes", None)
        if revokes is None:
            return command(state, task_id=task_id, **options)
        asked = Asked(state.app)
        answer = command(AttributeDict(state, app=asked), task_id=task_id, **options)
        revokes.hear(maybe_list(task_id) or [], asked.ids)
        return answer

    hear.tells_vtrr = True  # type: ignore[attr-defined]
    return hear


class Asked:
    """Stands in for an app whose result backend notes what it is to mark, and marks nothing."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.ids: list[str] = []
        self.backend = SimpleNamespace(get_state=self.get_state, mark_as_revoked=self.mark_as_revoked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)

    def get_state(self, id: str) -> str:
        self.ids.append(id)
        return str(states.REVOKED)

    def mark_as_revoked(self, id: str, *_: Any, **__: Any) -> None:
        self.ids.append(id)


@dataclass(eq=False)
class Heard:
    """A revoke that was received."""

    # Those that no queue has had so far.
    ids: set[Any]
    # Those that Celery would have marked.
    asked: list[str]
    # Where it was not applied yet.
    queues: list[VTRRQueue]
    until: float = field(default_factory=lambda: time.monotonic() + TRY_SECONDS)


class Revokes:
    """What a worker has heard; its thread lives while there is anything to do."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.lock = threading.Lock()
        self.news = threading.Event()
        self.thread: threading.Thread | None = None
        self.stopped = False
        self.heard: list[Heard] = []
        # Tasks that ran when they were revoked, by the serial of their payload: a retry of theirs is taken out.
        self.running: dict[tuple[VTRRQueue, str], Any] = {}

    def hear(self, ids: Iterable[Any], asked: list[str]) -> None:
        """Called by the event loop."""
        with self.lock:
            self.heard.append(Heard(set(ids), asked, list(self.app.vtrr_queues)))
            self.news.set()
            if self.thread is None and not self.stopped:
                self.thread = threading.Thread(target=self.run, name="vtrr-revokes", daemon=True)
                self.thread.start()

    def stop(self) -> None:
        self.stopped = True
        self.news.set()

    def run(self) -> None:
        while True:
            with self.lock:
                heard = self.heard[:]
                if self.stopped or not (heard or self.running):
                    self.thread = None
                    return
                self.news.clear()
            with connections.renewed():
                for revoke in heard:
                    self.apply(revoke)
                self.follow()
            with self.lock:
                self.heard = [revoke for revoke in self.heard if revoke not in heard or revoke.queues]
                pause = PAUSE_SECONDS if self.heard else self.pause()
            self.news.wait(pause)

    def pause(self) -> float:
        """Seconds until tasks that ran are looked at again."""
        return min((vtrr.sweep_interval for vtrr, _ in self.running), default=0.0)

    def apply(self, revoke: Heard) -> None:
        for vtrr in revoke.queues[:]:
            try:
                with forks.quiet():
                    self.apply_to(vtrr, revoke.ids)
                revoke.queues.remove(vtrr)
            except Exception as error:
                given_up = time.monotonic() > revoke.until
                logger.warning(
                    "%s: a revoke could not be applied, %s: %r",
                    vtrr, "and is given up" if given_up else "it will be tried again", error,
                )  # fmt: skip
                if given_up:
                    revoke.queues.clear()
                    return
        if not revoke.queues:
            self.mark(id for id in revoke.asked if id in revoke.ids)

    def apply_to(self, vtrr: VTRRQueue, ids: set[Any]) -> None:
        """Takes out what waits; notes what runs. Of the ids those stay that the queue does not have."""
        found = {id: it for id in ids if (it := find(vtrr, id)) is not None}
        answers = vtrr.cancel(found)
        for id, it in found.items():
            self.note(vtrr, str(id), it, answers[str(id)])
        ids.difference_update(found)

    def note(self, vtrr: VTRRQueue, id: str, found: Found, answer: str) -> None:
        if answer == "leased" and (vtrr, id) not in self.running:
            logger.info("%s: %s is revoked, but runs: it goes on", vtrr, id)
            self.running[vtrr, id] = serial(found)
        elif answer == "done":
            tell(vtrr, id, look(found.payload))

    def follow(self) -> None:
        """Takes out what was revoked while it ran, and waits again. That may take until the task ends; another one of its
        id is left alone."""
        for (vtrr, id), of in list(self.running.items()):
            try:
                with forks.quiet():
                    found = vtrr.find(id)
                    if found is not None and serial(found) == of:
                        answer = "leased" if found.state == "leased" else vtrr.cancel([id])[id]
                        self.note(vtrr, id, found, answer)
                        if answer == "leased":
                            continue
                del self.running[vtrr, id]
            except Exception as error:
                logger.warning("%s: whether %s waits again is not known: %r", vtrr, id, error)

    def mark(self, ids: Iterable[str]) -> None:
        """What is no task of a queue is marked as Celery does."""
        backend = self.app.backend
        if isinstance(backend, STATELESS):
            return
        for id in ids:
            try:
                with forks.quiet():
                    if backend.get_state(id) in MARKED:
                        backend.mark_as_revoked(id, reason="revoked", store_result=True)
            except Exception as error:
                logger.warning("%s could not be marked as revoked: %r", id, error)


def find(vtrr: VTRRQueue, id: Any) -> Found | None:
    try:
        return vtrr.find(id)
    except (InvalidArgument, InvalidArgumentType):
        return None  # no task can have it


def serial(found: Found) -> Any:
    """What a task has for life, and no other one of its id."""
    return look(found.payload).get("serial")


def tell(vtrr: VTRRQueue, id: str, payload: dict[str, Any]) -> None:
    """As Celery does where it drops the message of a revoked task."""
    logger.info("%s: revoked task %s[%s] was taken out", vtrr, payload.get("task_name"), id)
    task = vtrr._task_of(payload)
    if task is not None:
        request = Context(id=id, task=task.name, args=payload.get("args"), kwargs=payload.get("kwargs"))
        task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)

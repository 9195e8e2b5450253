"""A bed: an app in a module of its own, which this process imports as a producer and real workers import too."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import vtrr_queue
from servers import PATIENCE, RedisServer, wait_for

# Where a worker must look for the package: nowhere, if it is installed.
PACKAGE = Path(vtrr_queue.__file__).resolve().parents[1]
SOURCES = Path(__file__).resolve().parents[1]

HEADER = '''
import json, os, time
import redis
from celery import Celery
from vtrr_queue import VTRRQueue

NAME = {name!r}
app = Celery(NAME, broker={broker!r}, backend={backend!r})
app.conf.update({conf!r})
store = redis.Redis.from_url({store!r})
# redis-py gives up after 5 s by default.
gates = redis.Redis.from_url({store!r}, socket_timeout=None)
vtrr = VTRRQueue(redis_client=store, celery_app=app, name=NAME, celery_queue={celery_queue!r}, **{options!r})

def note(what, self, **more):
    """Adds to the list of what happened, for Bed.events()."""
    request = self.request
    more.update(what=what, id=request.id, task=self.name, retries=request.retries, pid=os.getpid(), at=time.time())
    store.rpush("events:" + NAME, json.dumps(more))
'''


POOLS = ["prefork", "threads", "gevent", "eventlet", "solo"]

# Tasks that many beds have.
WORK = """
@vtrr.task
def work(self, seconds=0):
    note("start", self)
    time.sleep(seconds)
    note("end", self)
"""
GATED = """
@vtrr.task
def gated(self):
    note("start", self)
    gates.blpop("gate:" + NAME, timeout=600)
    note("end", self)
"""


def starts(bed: Bed, id: str) -> list[dict[str, Any]]:
    return [event for event in bed.events("start") if event["id"] == id]


def ends(bed: Bed) -> list[str]:
    """The ids of what has ended, in that order."""
    return [event["id"] for event in bed.events("end")]


def waiting_tickets(bed: Bed) -> int:
    """How many messages wait in a broker without priorities."""
    return int(bed.server.client(0).llen(bed.celery_queue))


def letter_of(app: ModuleType, id: str) -> Any:
    """The dead letter of a task, if it is one."""
    return next((letter for letter in app.vtrr.dead_letters(limit=1000) if letter.id == id), None)


class Bed:
    """Use: `app = bed.load(source of tasks)`, `bed.worker()`, `app.work.queue(...)`, `bed.events("end")`, `bed.drained()`.

    Store in db 3 of the server, broker in db 0, results in db 1; names are the bed's own.
    """

    def __init__(self, server: RedisServer, folder: Path, name: str) -> None:
        self.server = server
        self.folder = folder
        self.name = name
        self.celery_queue = f"{name}_tickets"
        self.broker = server.url(0)
        self.backend = server.url(1)
        self.store = server.client(3)
        self.workers: list[Worker] = []

    def __enter__(self) -> Bed:
        # Up to Celery 5.4 a plain result that is collected within a call of the client of results waits for itself.
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        app = getattr(sys.modules.pop(self.name, None), "app", None)
        consumer = getattr(getattr(app, "backend", None), "result_consumer", None)
        if consumer is not None:
            # Else results that are collected later look for the backend's server, which may have stopped by then.
            consumer._pubsub = None
        gc.enable()
        gc.collect()
        self.store.close()

    def load(self, tasks: str, *, conf: dict[str, Any] | None = None, header: str = HEADER, **options: Any) -> ModuleType:
        """Writes the module and imports it here. `options` are those of VTRRQueue, `conf` those of the app."""
        header = header.format(
            name=self.name,
            broker=self.broker,
            backend=self.backend,
            store=self.server.url(3),
            celery_queue=self.celery_queue,
            options=options,
            conf=conf or {},
        )
        (self.folder / f"{self.name}.py").write_text(header + tasks)
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()
        sys.modules.pop(self.name, None)
        return importlib.import_module(self.name)

    def worker(self, pool: str = "prefork", concurrency: int = 4, *more: str, **options: Any) -> Worker:
        """Starts a worker and waits until it is ready."""
        worker = Worker(self, pool, concurrency, *more, **options)
        self.workers.append(worker)
        return worker

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        """What tasks have noted, in order."""
        events = [json.loads(event) for event in self.store.lrange(f"events:{self.name}", 0, -1)]
        return [event for event in events if what is None or event["what"] == what]

    def key(self, key: str) -> str:
        return f"vtrr:{self.name}:{key}"

    def state(self) -> dict[str, int]:
        """How many tasks are where, by the keys themselves, at one moment."""
        with self.store.pipeline() as at_once:
            at_once.hlen(self.key("waiting"))
            for key in ("queue", "lease", "delayed", "dead"):
                at_once.zcard(self.key(key))
            waiting, tagged, leased, delayed, dead = at_once.execute()
        return {"queued": waiting + tagged, "leased": leased, "delayed": delayed, "dead": dead}

    def waits_at_gate(self) -> bool:
        """A task has asked for its gate to be opened: what is pushed next is its."""
        return any(client["cmd"] == "blpop" for client in self.store.client_list())

    def unacknowledged(self) -> list[str]:
        """The messages of this bed that workers have, dead ones too, and have not acknowledged."""
        held = [message.decode() for message in self.server.client(0).hvals("unacked")]
        return [message for message in held if self.celery_queue in message]

    def drained(self, seconds: float = PATIENCE) -> None:
        """Waits until nothing is queued, leased or delayed."""

        def drained() -> bool:
            state = self.state()
            return state["queued"] + state["leased"] + state["delayed"] == 0

        try:
            wait_for(drained, seconds)
        except AssertionError:
            raise AssertionError(f"{self.state()} after {seconds} s; events: {self.events()[-5:]}; {self.logs()}") from None

    def logs(self) -> str:
        """The end of what each worker has said, for messages of failed tests."""
        return "\n".join(f"--- {worker.log_path.name}\n{worker.log()[-3000:]}" for worker in self.workers)


class Worker:
    """`celery worker` in a process group of its own. Its log is at debug level for our package only. It consumes the bed's
    `celery_queue`, or `queues`; where these are "" it is told of none."""

    def __init__(
        self,
        bed: Bed,
        pool: str,
        concurrency: int,
        *more: str,
        queues: str | None = None,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
        module: str | None = None,
        wait: bool = True,
    ) -> None:
        number = len(bed.workers) + 1
        self.log_path = bed.folder / f"worker{number}.log"
        words = [python, "-m", "celery", "-A", module or bed.name, "worker"]
        words += [] if queues == "" else ["-Q", queues or bed.celery_queue]
        words += ["-P", pool, "-c", str(concurrency), "-l", "info", "-n", f"{bed.name}-{number}@%h", *more]
        folders = [str(bed.folder), *([str(SOURCES)] if PACKAGE == SOURCES else []), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(folders).rstrip(os.pathsep)
        log = self.log_path.open("wb")
        self.process = subprocess.Popen(
            words,
            cwd=bed.folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        if wait:
            self.ready()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self, seconds: float = PATIENCE) -> None:
        """Waits until it consumes."""
        end = time.monotonic() + seconds
        while " ready." not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """To the main process."""
        self.process.send_signal(number)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within, none of its processes does anything."""
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9` of the whole process group, as the kernel does when memory is full."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """A warm shutdown; answers the exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Waits for the end of the main process; answers the exit code."""
        return self.process.wait(PATIENCE)

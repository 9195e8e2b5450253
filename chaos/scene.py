"""A row of the table as it runs: servers, workers and producers; faults one after the other; then the check."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from postgres import Postgres
from servers import RedisServer, wait_for
from vtrr_queue import client as runner
from vtrr_queue._core import Queue

from . import ledger
from .check import Findings, Left, Promise, check
from .processes import Process, command
from .stores import QUEUE, Store

LEASE, SWEEP = 2.0, 1.0
# Debian's package faketime. Processes of several threads need this one.
FAKETIME = next(map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), "")
# A task that waits for longer than this after the last fault is stuck.
DRAIN = 60.0


@dataclass
class Setting:
    """What a row changes."""

    workers: int = 2
    concurrency: int = 4
    max_deliveries: int = 50
    max_ms: int = 10
    partitions: int = 6
    # What workers do: `work`, or `hand` for Rust, a user's own loop around the core.
    role: str = "work"
    # Where Celery stores states, if anywhere: `redis` or `postgres`, a server of their own.
    results: str = ""
    # Whether the order is measured.
    fair: bool = False
    # Whether the processes' clocks are set by libfaketime.
    clocks: bool = False
    env: dict[str, str] = field(default_factory=dict)


class Watch:
    """What the ledgers have said so far: which bodies run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: dict[Path, int] = {}
        # By id: process and time of the start.
        self.running: dict[str, tuple[int, int]] = {}
        self.started: dict[str, int] = {}
        self.settled: dict[str, int] = {}
        self.last_start = 0

    def look(self) -> None:
        for path in self.folder.glob("*.ledger"):
            with path.open("rb") as file:
                file.seek(self.read.get(path, 0))
                whole, _, _ = file.read().rpartition(b"\n")
            if not whole:
                continue
            self.read[path] = self.read.get(path, 0) + len(whole) + 1
            # Not `ledger.parse`: three rows at once write faster than that reads on a busy machine.
            for line in whole.decode().split("\n"):
                if line.startswith("start "):
                    _, pid, at, id, *_ = line.split(" ", 4)
                    self.running[id] = (int(pid), int(at))
                    self.started[id] = max(int(at), self.started.get(id, 0))
                    self.last_start = max(self.last_start, int(at))
                elif line.startswith(("end ", "failed ", "settled ")):
                    _, _, at, id, *_ = line.split(" ", 4)
                    self.settled[id] = int(at)
                    self.running.pop(id, None)


class Scene:
    def __init__(self, folder: Path, kind: str, store: Store, seed: str, setting: Setting) -> None:
        self.folder, self.kind, self.store, self.setting = folder, kind, store, setting
        self.random = random.Random(seed)
        self.stack = ExitStack()
        self.workers: list[Process] = []
        self.producers: list[Process] = []
        self.names = 0
        self.promise = Promise(fair=setting.fair)
        # The processes that the fault hits; all of them, if it names none.
        self.hit: set[int] = set()
        self.recoveries: list[float] = []
        self.troubles: list[str] = []
        # Seconds until the queue was empty when nobody queued any more, and until the workers had stopped.
        self.drained = self.stopped = 0.0
        self.watch = Watch(folder)
        self.core = Queue(QUEUE, None)
        self.ours = ledger.Writer(folder / "harness.ledger")
        self.has_celery = kind.startswith("celery")

    def __enter__(self) -> Scene:
        try:
            self.stack.enter_context(self.store)
            if self.has_celery:
                (self.folder / "broker").mkdir()
                self.broker = self.stack.enter_context(RedisServer(self.folder / "broker"))
            if self.setting.results == "redis":
                (self.folder / "results").mkdir()
                self.results: RedisServer | Postgres = self.stack.enter_context(RedisServer(self.folder / "results"))
            elif self.setting.results:
                self.results = self.stack.enter_context(Postgres())
            workers = [self.add_worker() for _ in range(self.setting.workers)]
            self.add_producer()
            for worker in workers:
                worker.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, *self.producers]:
            process.kill()
        self.stack.close()

    # Processes.

    def environment(self) -> dict[str, str]:
        return {
            "CHAOS_STORE": self.store.address,
            "CHAOS_BROKER": self.broker.url(0) if self.has_celery else "",
            "CHAOS_QUEUE": QUEUE,
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_LEASE_MS": str(int(1000 * LEASE)),
            "CHAOS_SWEEP_MS": str(int(1000 * SWEEP)),
            "CHAOS_MAX_DELIVERIES": str(self.setting.max_deliveries),
            "CHAOS_CONCURRENCY": str(self.setting.concurrency),
            "CHAOS_PARTITIONS": str(self.setting.partitions),
            "CHAOS_MAX_MS": str(self.setting.max_ms),
            **self.setting.env,
        }

    def start(self, role: str, **env: str) -> Process:
        self.names += 1
        name = f"{role}{self.names}"
        extra = {"CHAOS_PRODUCER": name, "CHAOS_SEED": str(self.random.getrandbits(32))} if role == "produce" else {}
        words = command(self.kind, role, self.setting.concurrency)
        if self.setting.clocks:
            clock = self.folder / f"{name}.clock"
            clock.write_text("+0\n")
            extra |= {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(clock)}
            extra |= {"FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        return Process(name, self.folder, words, {**self.environment(), **extra, **env})

    def add_worker(self, **env: str) -> Process:
        if self.setting.results:
            url = self.results.url
            env["CHAOS_RESULTS"] = url if isinstance(url, str) else url()
        worker = self.start(self.setting.role, **env)
        self.workers.append(worker)
        return worker

    def add_producer(self) -> Process:
        producer = self.start("produce")
        self.producers.append(producer)
        return producer

    def any_worker(self) -> Process:
        return self.random.choice([worker for worker in self.workers if worker.is_alive])

    def remove(self, process: Process) -> None:
        (self.workers if process in self.workers else self.producers).remove(process)

    def supervise(self) -> None:
        """Starts workers again that ended by themselves, as whoever runs them does. Only Celery's may: where the broker
        goes, kombu fails on its own connection now and then, and ends the worker."""
        for worker in [worker for worker in self.workers if not worker.is_alive]:
            if "Unrecoverable error" not in worker.log.read_text(errors="replace"):
                self.troubles.append(f"{worker.name} ended by itself: {worker.tail()[-1000:]}")
            self.remove(worker)
            self.add_worker()

    # The queue, seen from outside.

    def ask(self, command: Any) -> Any:
        return runner.run(self.store.client(), command)

    def enqueue(self, task_name: str, count: int = 1, *, partition: str = "", **kwargs: int) -> list[str]:
        """Tasks of ours, beside those of the producers."""
        self.names += 1
        ids = [f"ours-{self.names}.{n}" for n in range(count)]
        self.enqueue_as(ids, task_name, partition or f"ours:{task_name}", **kwargs)
        return ids

    def enqueue_as(self, ids: list[str], task_name: str, partition: str, **kwargs: int) -> list[str]:
        """Tasks of given ids; answers which were there already."""
        self.names += 1
        call = f"ours-{self.names}"
        tasks = [{"id": id, "kwargs": {"ms": 0, **kwargs}} for id in ids]
        self.ours.note("offered", call, partition, ",".join(ids))
        prepared = Queue.prepare(partition, tasks, task_name=task_name, dumps=json.dumps)
        duplicates: list[str] = self.ask(self.core.enqueue(prepared))
        self.ours.note("accepted", call, *([",".join(duplicates)] if duplicates else []))
        return duplicates

    # Faults.

    def sleep(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))

    def busy(self) -> None:
        """Waits until tasks have been started just now."""
        now = time.monotonic_ns()

        def is_busy() -> bool:
            self.supervise()
            self.watch.look()
            return self.watch.last_start > now

        wait_for(is_busy, 90, 0.02)

    def inject(self, fault: Callable[[Scene], int]) -> None:
        """One fault at a random moment, then waits until all is as before: tasks start, also those that were in the
        hands of who is dead. A fault answers when it was over, in ns."""
        self.sleep(0, 0.4)
        self.busy()
        begin = time.monotonic_ns()
        over = fault(self)
        self.promise.faults.append(((begin, max(over, time.monotonic_ns())), self.hit))
        self.hit = set()
        self.watch.look()
        interrupted = {
            id: start
            for id, (pid, start) in self.watch.running.items()
            if start < over and id not in self.promise.doomed and not is_alive(pid)
        }

        def again(id: str) -> int:
            return max(self.watch.started[id], self.watch.settled.get(id, 0))

        def recovered() -> bool:
            self.supervise()
            self.watch.look()
            return self.watch.last_start > over and all(again(id) > start for id, start in interrupted.items())

        try:
            wait_for(recovered, DRAIN, 0.02)
        except AssertionError:
            self.troubles.append(f"not as before {DRAIN:g} s after fault {len(self.recoveries) + 1}")
        first = min((at for at in self.watch.started.values() if at > over), default=time.monotonic_ns())
        self.recoveries.append((max([first, *map(again, interrupted)]) - over) / 1e9)

    # The end.

    def finish(self) -> Findings:
        for producer in self.producers:
            producer.ready()
            if producer.stop(seconds=30) != 0:
                self.troubles.append(f"a producer did not stop: {producer.tail()[-500:]}")
        begin = time.monotonic()
        while self.unfinished() != 0 and time.monotonic() < begin + DRAIN:
            self.supervise()
            time.sleep(0.05)
        unfinished = self.unfinished()
        drained = time.monotonic()
        self.drained = drained - begin
        for worker in self.workers:
            if worker.is_alive and (code := worker.stop()) != 0:
                self.troubles.append(f"{worker.name} stopped with {code}: {worker.tail()[-1000:]}")
        self.stopped = time.monotonic() - drained
        findings = check(ledger.read(self.folder), self.left(unfinished or 0), self.promise)
        findings.wrong += self.troubles
        return findings

    def unfinished(self) -> int | None:
        try:
            stats = self.ask(self.core.stats())
        except (RedisError, RedisClusterException):
            return None
        return int(stats["queued"] + stats["leased"] + stats["delayed"])

    def left(self, unfinished: int) -> Left:
        stats = self.ask(self.core.stats())
        totals = dict(stats["totals"])
        dead: dict[str, str] = {}
        while letters := self.ask(self.core.dead_letters(0, 1000)):
            dead.update({letter["id"]: f"{letter['cause']}: {letter['error']}" for letter in letters})
            self.ask(self.core.discard([letter["id"] for letter in letters]))
        prefix = f"vtrr:{QUEUE}:"
        keys = {key.decode().removeprefix(prefix) for key in self.store.client().scan_iter(f"{prefix}*", count=1000)}
        forgets = bool(self.promise.forgets)
        return Left(
            unfinished=unfinished,
            dead=dead,
            keys=keys,
            acked=None if forgets else totals.get("acked", 0),
            buried=None if forgets else totals.get("dead", 0),
        )


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

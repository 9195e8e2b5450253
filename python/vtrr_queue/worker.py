"""The part of the queue that lives in Celery workers: the sweep."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.utils.nodenames import node_format

from . import forks, keeper, limits, revokes
from .body import look
from .dispatch import Dispatch
from .health import HealthFile
from .teller import Teller
from .tickets import PUBLISH_SECONDS, in_log

if TYPE_CHECKING:
    from .queue import VTRRQueue

logger = logging.getLogger(__name__)

# After a wake-up the producer gets so long to send its own tickets.
WAKE_SECONDS = 0.1
# What is due is brought back at once, but not more often than this.
DUE_SECONDS = 0.05
# While tickets are taken, new ones are sent so often.
RAMP_SECONDS = 0.2
# That is while something moves, and for so long after; then all processes seem to be busy.
STILL_SECONDS = 1.0
MAINTAIN_SECONDS = 1.0
# Where one call does not see all keys, the sweep's round is spread over so many calls per interval, or over several.
SWEEPS_PER_INTERVAL = 8
# The sweep, the leases, a task and its end may each want a connection at the same time.
SPARE = 5


class VTRRStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Part of every worker of the app; idle unless the worker consumes a queue of ours."""

    name = "vtrr"
    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.worker = worker
        self.sweepers: list[Sweeper] = []
        # Before the pool forks.
        keeper.start()
        limits.note_worker(worker)
        revokes.listen()
        worker.vtrr_revokes = revokes.Revokes(worker.app)
        worker.vtrr_dispatch = Dispatch(worker)

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Tasks under limits are dequeued beside the loop. And it looks for lost processes often: Celery looks when one has
        closed its files, which may be before the kernel counts it as ended, and after that every 5 s."""
        worker.vtrr_dispatch.attach(hub)
        maintain = getattr(getattr(worker.pool, "_pool", None), "maintain_pool", None)
        if maintain is not None:
            hub.call_repeatedly(MAINTAIN_SECONDS, maintain)

    def start(self, worker: Any) -> None:
        keeper.enter(self)
        self.sweepers = [Sweeper(vtrr, worker) for vtrr in getattr(worker.app, "vtrr_queues", [])]
        for sweeper in self.sweepers:
            sweeper.start()
            self.report(sweeper)
        self.tell({sweeper.vtrr.name: sweeper.vtrr for sweeper in self.sweepers}.values())

    def tell(self, queues: Iterable[VTRRQueue]) -> None:
        """Says whose tasks the worker takes. That it takes none of any is seldom meant, but does happen."""
        consumed = self.worker.app.amqp.queues.consume_from
        taken = [vtrr for vtrr in queues if vtrr.celery_queue in consumed]
        left = [vtrr for vtrr in queues if vtrr.celery_queue not in consumed]
        if taken:
            logger.info("this worker takes tasks of %s", ", ".join(f"{vtrr!r} (from {vtrr.celery_queue})" for vtrr in taken))
        if left:
            logger.log(
                logging.INFO if taken else logging.WARNING,
                "this worker takes no tasks of %s, whose celery_queue it does not consume; to do so it needs: -Q %s",
                ", ".join(map(repr, left)), ",".join([*(vtrr.celery_queue for vtrr in left), *consumed]),
            )  # fmt: skip

    def report(self, sweeper: Sweeper) -> None:
        """Tells by the queue's health file whether the worker is live, if it consumes the queue."""
        vtrr, worker = sweeper.vtrr, self.worker
        if vtrr.health_file is None or vtrr.celery_queue not in worker.app.amqp.queues.consume_from:
            return
        path = node_format(vtrr.health_file, worker.hostname)
        file = HealthFile(path, worker=worker.hostname, queue=vtrr.name, lease=vtrr.lease)
        keeper.report(vtrr, file, lambda: not sweeper.stopped.is_set() and sweeper.consumes())

    def stop(self, worker: Any) -> None:
        worker.vtrr_dispatch.stop()
        worker.vtrr_revokes.stop()
        keeper.leave(self)
        for sweeper in self.sweepers:
            sweeper.stop()

    terminate = stop


class Sweeper(threading.Thread):
    """Repairs one queue every ``sweep_interval`` seconds, if it is the one of all workers whose turn it is; and sees to
    it that there are tickets for what waits, also when somebody enqueues who cannot send any, as Rust producers do."""

    def __init__(self, vtrr: VTRRQueue, worker: Any) -> None:
        super().__init__(name=f"vtrr-sweep-{vtrr.name}", daemon=True)
        self.vtrr = vtrr
        self.worker = worker
        self.stopped = threading.Event()
        self.nonce = keeper.nonce()
        self.pubsub: Any = None
        self.leading = False
        # When the next turn is.
        self.due = 0.0
        self.teller = Teller(vtrr, worker)
        # What the queue had counted when it last moved, and when that was.
        self.totals: dict[str, int] = {}
        self.moved = 0.0
        # Tasks whose rate limits were warned of.
        self.rated: set[str] = set()

    def stop(self) -> None:
        self.stopped.set()
        self.teller.stop()

    def run(self) -> None:
        while not self.consumes():
            if self.stopped.wait(0.2):
                return
        try:
            self.work()
        finally:
            self.teller.stop()
            if self.pubsub is not None:
                self.pubsub.close()

    def work(self) -> None:
        self.warn_of_eviction()
        self.safely(self.teller.start)
        # A worker that has just started is free, whoever sweeps.
        self.safely(self.top_up)
        while not self.stopped.is_set():
            left = self.due - time.monotonic()
            if left <= 0:
                self.due = time.monotonic() + self.vtrr.sweep_interval
                if self.consumes():
                    self.safely(self.turn)
            elif self.wait(left) and self.leading and not self.stopped.wait(WAKE_SECONDS):
                self.safely(self.top_up)

    def warn_of_eviction(self) -> None:
        """A server that makes room by deleting any key would delete tasks."""
        try:
            with forks.quiet():
                policy = str(self.vtrr.redis_client.info("memory").get("maxmemory_policy"))
        except Exception as error:
            logger.debug("%s: whether the server evicts keys is not known: %r", self.vtrr, error)
            return
        if policy.startswith("allkeys"):
            logger.warning("%s: maxmemory-policy %s may delete tasks; set it to noeviction", self.vtrr, policy)

    def warn_of_rates(self) -> None:
        """Rate limits, of annotations or by remote control, hold messages: that is not what a user of ours means by them."""
        if self.worker.disable_rate_limits:
            return
        for name, task in list(self.vtrr.tasks.items()):
            if task.rate_limit and name not in self.rated:
                self.rated.add(name)
                logger.warning(
                    "%s: the rate limit %s of %s holds its plain calls only, and nothing that comes by .queue(); "
                    "to limit that, give such tasks a VTRRQueue of their own and a worker with few processes",
                    self.vtrr, task.rate_limit, name,
                )  # fmt: skip

    def consumes(self) -> bool:
        consumer = getattr(getattr(self.worker, "consumer", None), "task_consumer", None)
        try:
            return consumer is not None and bool(consumer.consuming_from(self.vtrr.celery_queue))
        except Exception:
            return False  # it is being set up again

    def safely(self, what: Any, *args: Any) -> None:
        try:
            what(*args)
        except Exception as error:
            why = in_log(error)
            logger.warning("%s: the sweep could not %s, it will try again: %s", self.vtrr, what.__name__, why)

    def turn(self) -> None:
        self.warn_of_rates()
        stats = None
        try:
            self.leading = self.sweep()
            if self.leading:
                stats = self.top_up()
        finally:
            self.teller.turn(stats)

    def run_command(self, command: Any) -> Any:
        with forks.quiet():
            return self.vtrr._run(command)

    def sweep(self) -> bool:
        """Takes back expired leases, brings back what is due, mends; answers whether this worker is the one that does. Another
        takes over when it has not done so for three periods."""
        interval = self.vtrr.sweep_interval
        swept: dict[str, Any] = {}
        for _ in range(1000):
            swept = self.run_command(self.vtrr._core.sweep(self.nonce, 3 * interval))
            if swept["reclaimed"]:
                logger.warning("%s: %d leases ran out; their tasks run again", self.vtrr, swept["reclaimed"])
            if not swept["more"] or self.stopped.is_set():
                break
        if swept["unfinished"]:
            self.due = min(self.due, time.monotonic() + interval / SWEEPS_PER_INTERVAL)
        return bool(swept["leading"])

    def top_up(self) -> dict[str, Any]:
        """Sends tickets for what waits, for the task that is next; answers the numbers that it saw. A broker that fails
        or hangs holds up neither what comes next nor the next turn."""
        stats: dict[str, Any] = self.run_command(self.vtrr._core.stats())
        if stats["next_due"] is not None:
            self.due = min(self.due, time.monotonic() + max(stats["next_due"], DUE_SECONDS))
        if stats["totals"] != self.totals:
            self.totals, self.moved = stats["totals"], time.monotonic()
        queued = stats["queued"]
        if not queued:
            return stats
        next_one = self.run_command(self.vtrr._core.peek(1))
        task = self.vtrr._task_of(look(next_one[0][3])) if next_one else None
        task = task or next(iter(self.vtrr.tasks.values()), None)
        if task is not None:
            try:
                sent = self.vtrr._issuer.top_up(task, queued, min(PUBLISH_SECONDS, self.vtrr.sweep_interval))
                if sent and time.monotonic() - self.moved < STILL_SECONDS:
                    # Workers that were free have them by then, and others may be.
                    self.due = min(self.due, time.monotonic() + RAMP_SECONDS)
            except Exception as error:
                logger.warning("%s: the sweep could not send tickets, it will try again: %s", self.vtrr, in_log(error))
        return stats

    def wait(self, seconds: float) -> bool:
        """Waits for tasks to be placed in the queue; answers whether any were."""
        end = time.monotonic() + seconds
        if not can_listen(self.vtrr.redis_client):
            self.stopped.wait(seconds)
            return False
        try:
            if self.pubsub is None:
                self.pubsub = self.vtrr.redis_client.pubsub(ignore_subscribe_messages=True)
                self.pubsub.subscribe(self.vtrr._core.wake_channel.encode())
            while (left := end - time.monotonic()) > 0 and not self.stopped.is_set():
                if self.pubsub.get_message(timeout=min(left, 0.5)) is not None:
                    while self.pubsub.get_message(timeout=0) is not None:
                        pass
                    return True
        except Exception as error:
            logger.debug("%s: not listening: %r", self.vtrr, error)
            self.pubsub = None
            self.stopped.wait(max(0.0, min(end - time.monotonic(), 1.0)))
        return False


def can_listen(client: Any) -> bool:
    """Whether the client has a connection to spare: listening keeps one for itself, and a small pool would then fail
    tasks."""
    pool = getattr(client, "connection_pool", None)
    return int(getattr(pool, "max_connections", None) or SPARE) >= SPARE

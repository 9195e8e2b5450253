"""``VTRRQueue``: a fair queue on Redis for the tasks of a Celery app."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from celery import Celery
from celery.backends.rpc import RPCBackend
from kombu.utils.json import dumps, loads

from . import backend
from . import client as redis_runner
from ._core import Prepared, Queue
from .body import look, tail
from .checks import (
    check_bound,
    check_choice,
    check_flag,
    check_function,
    check_ids,
    check_number,
    check_path,
    check_text,
    is_async,
    is_cluster,
    takes_id,
)
from .errors import InvalidArgument, InvalidArgumentType, QueueFull, Unfinished, VtrrError
from .results import Results, TaskResult
from .task import VTRRTask, weave
from .tickets import Issuer
from .tracing import fill_in
from .views import DeadLetter, Found, Purged, Stats

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

# The options of 0.1.0.
_OPTIONS = {
    "autoretry_for",
    "base",
    "default_retry_delay",
    "max_retries",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "retry_kwargs",
    "soft_time_limit",
    "time_limit",
}
# What else makes sense.
_MORE = {"bind", "dont_autoretry_for", "ignore_result", "name", "throws", "track_started", "typing"}
_REFUSED = {
    "acks_late": "leases do what it is for: a task is done when it has run",
    "expires": "cancel() takes tasks out",
    "priority": "the order is fair; give heavy tasks a weight",
    "queue": "give VTRRQueue a celery_queue",
    "rate_limit": "it would hold back tickets, not tasks",
    "reject_on_worker_lost": "leases do what it is for, see max_deliveries",
    "serializer": "tasks are stored as JSON",
}


class VTRRQueue:
    """A virtual-time fair queue for the tasks of a Celery app: ``@vtrr.task`` instead of ``@app.task``, ``.queue()``
    instead of ``.delay()``.

    redis_client
        Any client of redis-py: with TLS, a unix socket, Sentinel or ``decode_responses``, of django-redis or fakeredis.
        All that this object asks of Redis goes through it. A ``RedisCluster`` needs a name in braces.
    celery_app
        The app. Its workers must consume ``celery_queue``; its broker may be any.
    name
        Keys are ``vtrr:{name}:*``.
    celery_queue
        The Celery queue of the messages that make workers dequeue. One per VTRRQueue.
    max_concurrency
        How many such messages wait in the broker at once. The number of tasks that run at once is that of the workers'
        processes.
    lease
        Seconds without a sign of life from a worker until its tasks are given to others.
    max_deliveries
        A task that so many workers died of is set aside as a dead letter.
    sweep_interval
        Seconds between two repairs, by one of the workers.
    burst
        Seconds in which a worker takes one short task after another without asking the broker.
    tagging
        ``head``; or ``all``, for a queue that 0.1.0 works on too.
    retry_through
        ``queue``: retries wait their turn in the fair order. ``broker``: they go past it, as in 0.1.0.
    max_queued, max_queued_per_partition
        How many tasks may be queued in all, and of one partition: a ``.queue()`` that would pass it raises ``QueueFull``
        and stores nothing. None: any number.
    result_patience
        Seconds for which a task runs again, after pauses that grow up to a minute, while the result backend is away and its
        state cannot be stored; then it is a dead letter.
    task_events
        Whether Flower and ``celery events`` see each task, not only messages. Three messages per run.
    health_file
        A file in which each worker tells when Redis last answered it, for ``python -m vtrr_queue.health``; one per worker
        and queue: ``%n`` in it is the name of the worker's node.
    """

    DEFAULT_MAX_CONCURRENCY = 4

    def __init__(
        self,
        redis_client: Any,
        celery_app: Any,
        *,
        name: str,
        celery_queue: str = "vtrr_queue",
        max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
        lease: float = 30,
        max_deliveries: int = 5,
        sweep_interval: float = 5,
        burst: float = 0.1,
        tagging: str = "head",
        retry_through: str = "queue",
        max_queued: int | None = None,
        max_queued_per_partition: int | None = None,
        result_patience: float = 3600,
        task_events: bool = False,
        health_file: str | PathLike[str] | None = None,
    ) -> None:
        check_text("name", name)
        check_text("celery_queue", celery_queue)
        check_number("max_concurrency", max_concurrency, 1, 1_000_000, whole=True)
        check_number("lease", lease, 1, 86_400)
        check_number("max_deliveries", max_deliveries, 1, 1_000_000, whole=True)
        check_number("sweep_interval", sweep_interval, 0.1, 3_600)
        check_number("burst", burst, 0, 60)
        check_choice("tagging", tagging, "head", "all")
        check_choice("retry_through", retry_through, "queue", "broker")
        check_bound("max_queued", max_queued)
        check_bound("max_queued_per_partition", max_queued_per_partition)
        check_number("result_patience", result_patience, 0, 2_592_000)
        check_flag("task_events", task_events)
        health_path = check_path("health_file", health_file)
        if not callable(getattr(redis_client, "execute_command", None)) or is_async(redis_client):
            # Not shown: a URL, and the repr of some clients, hold a password.
            raise InvalidArgumentType(
                f"redis_client must be a client of redis-py that is not asyncio's, not of type {type(redis_client).__name__}"
            )
        if not isinstance(celery_app, Celery):
            raise InvalidArgumentType(f"celery_app must be a Celery app, not of type {type(celery_app).__name__}")
        self._core = Queue(name, tagging)
        if is_cluster(redis_client) and not self._core.is_one_slot:
            raise InvalidArgument(
                "name must be in braces on Redis Cluster, which keeps the queue's keys in one slot, "
                f'like "{{{name}}}", not {name!r}'
            )
        self.redis_client = redis_client
        self.celery_app = getattr(celery_app, "_get_current_object", lambda: celery_app)()
        self.name = name
        self.celery_queue = celery_queue
        self.max_concurrency = max_concurrency
        self.lease = float(lease)
        self.max_deliveries = max_deliveries
        self.sweep_interval = float(sweep_interval)
        self.burst = float(burst)
        self.tagging = tagging
        self.retry_through = retry_through
        self.max_queued = max_queued
        self.max_queued_per_partition = max_queued_per_partition
        self.result_patience = float(result_patience)
        self.task_events = task_events
        self.health_file = health_path
        self.tasks: dict[str, VTRRTask[Any, Any]] = {}
        self._issuer = Issuer()
        self._join_workers()

    def __repr__(self) -> str:
        return f"<VTRRQueue {self.name!r}>"

    @overload
    def task(self, fn: Callable[Concatenate[Any, P], R], /) -> VTRRTask[P, R]: ...

    @overload
    def task(self, **options: Any) -> Callable[[Callable[Concatenate[Any, P], R]], VTRRTask[P, R]]: ...

    def task(self, fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Makes a function a Celery task with ``.queue()``. The first parameter is the task itself, always.

        Options are those of ``app.task``: ``base``, ``max_retries``, ``default_retry_delay``, ``autoretry_for``,
        ``retry_backoff``, ``retry_backoff_max``, ``retry_jitter``, ``retry_kwargs``, ``soft_time_limit``,
        ``time_limit``; and ``name``, ``ignore_result``, ``throws``, ``dont_autoretry_for``, ``track_started``,
        ``typing``. Others are a ``TypeError``.
        """
        unknown = sorted(set(options) - _OPTIONS - _MORE)
        if unknown:
            why = "".join(f"; {option}: {_REFUSED[option]}" for option in unknown if option in _REFUSED)
            raise InvalidArgumentType(
                f"@vtrr.task does not support option(s): {', '.join(unknown)}{why}. "
                f"Allowed: {', '.join(sorted(_OPTIONS))}; also {', '.join(sorted(_MORE - {'bind'}))}"
            )
        options.pop("bind", None)
        base = weave(options.pop("base", None) or self.celery_app.Task)

        def decorate(fn: Callable[..., Any]) -> Any:
            check_function(fn)
            task = self.celery_app.task(bind=True, base=base, shared=False, vtrr=self, takes_id=takes_id(fn), **options)(fn)
            name = options.get("name") or self.celery_app.gen_task_name(fn.__name__, fn.__module__)
            self.tasks[name] = task
            return task

        return decorate if fn is None else decorate(fn)

    def cancel(self, ids: Iterable[object]) -> dict[str, str]:
        """Takes queued and delayed tasks out. Answers for each id ``done``, ``gone`` (no such task), ``leased`` (it is
        being worked on, and was left alone) or ``dead``. What did not run is not charged.

        The state of a task that was taken out becomes REVOKED, unless the result backend fails.
        """
        wanted = check_ids(ids)
        answers: dict[str, str] = {}
        # One that hangs would do so for each.
        answering = True
        for start in range(0, len(wanted), 1000):
            some = wanted[start : start + 1000]
            command = self._core.cancel(some)
            # Whoever waits on `rpc://` can be found only in what is about to go.
            known = {str(id): self._payload(id) for id in some} if isinstance(self.celery_app.backend, RPCBackend) else {}
            for id, answer in zip(map(str, some), self._run(command), strict=True):
                answers[id] = answer
                if answer == "done" and answering:
                    answering = backend.store_revoked(self.celery_app.backend, id, known.get(id) or {})
        return answers

    def purge(self, partition_key: object | None = None) -> Purged:
        """Takes all queued tasks out, of one partition or of all. Leased, delayed and dead ones stay and are
        counted."""
        return Purged(**self._run(self._core.purge(partition_key)))

    def stats(self) -> Stats:
        """The queue in numbers, at O(1)."""
        return Stats(**self._run(self._core.stats()))

    def _task_of(self, payload: Mapping[str, Any]) -> VTRRTask[Any, Any] | None:
        """The task that a payload names, which may be anything, if it is one of this queue."""
        return self.tasks.get(str(payload.get("task_name")))

    def _payload(self, id: object) -> dict[str, Any]:
        found = self.find(id)
        return look(found.payload) if found else {}

    def find(self, id: object) -> Found | None:
        """Where a task is; None if it is done, cancelled or was never there."""
        found = self._run(self._core.find(id))
        return None if found is None else Found(**found)

    def __len__(self) -> int:
        """How many tasks are queued: those that could run now."""
        return self.stats().queued

    def __bool__(self) -> bool:
        return True

    def dead_letters(self, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Tasks that failed for good, oldest first; ``limit`` from 1 to 1,000. 10,000 are kept, for 30 days."""
        check_number("offset", offset, 0, 1_000_000_000, whole=True)
        check_number("limit", limit, 1, 1_000, whole=True)
        return [DeadLetter(**letter) for letter in self._run(self._core.dead_letters(offset, limit))]

    def redrive(self, ids: Iterable[object]) -> list[bool]:
        """Puts up to 1,000 dead letters back into the queue; answers which there were."""
        wanted = check_ids(ids)
        flags: list[bool] = self._run(self._core.redrive(wanted)) if wanted else []
        return flags

    def discard(self, ids: Iterable[object]) -> list[bool]:
        """Deletes up to 1,000 dead letters; answers which there were."""
        wanted = check_ids(ids)
        flags: list[bool] = self._run(self._core.discard(wanted)) if wanted else []
        return flags

    def set_share(self, partition_key: object, share: float = 1) -> None:
        """What a partition is entitled to, relative to others: from 0.001 to 1,000."""
        check_number("share", share, 0.001, 1_000)
        self._run(self._core.set_share(partition_key, share))

    def flatten(self) -> dict[str, int]:
        """Goes back to 0.1.0: tags everything that waits. Answers how many tasks are ``in_lanes`` and ``leased``; 0.1.0
        may take over when both are 0."""
        answer: dict[str, int] = self._run(self._core.flatten())
        return answer

    def unflatten(self) -> None:
        """Switches from mode ``all``, and from 0.1.0's tags, to ``head``; tags that were given stay until they are used up."""
        self._run(self._core.unflatten())

    # What tasks and workers need of the queue.

    def _run(self, command: Any) -> Any:
        return redis_runner.run(self.redis_client, command)

    def _waits(self) -> bool:
        """Whether any task is queued."""
        return bool(self.redis_client.exists(self._core.keys[0]))

    def _prepare(self, task: VTRRTask[Any, Any], partition_key: object, tasks: Iterable[Mapping[str, Any]]) -> Prepared:
        extra = {}
        if isinstance(self.celery_app.backend, RPCBackend):
            extra["reply_to"] = self.celery_app.thread_oid
        parent = self.celery_app.current_worker_task
        if parent is not None and parent.request.id:
            extra["root_id"] = parent.request.root_id or parent.request.id
            extra["parent_id"] = parent.request.id
        return Queue.prepare(
            partition_key,
            tasks,
            task_name=task.name,
            dumps=dumps,
            check=task.__header__ if task.typing else None,
            takes_id=task.takes_id,
            extra=tail(extra),
        )

    def _queue(self, task: VTRRTask[Any, Any], prepared: Prepared, request: str | None) -> Results:
        if request is not None:
            check_text("request", request)
        if not len(prepared):
            return Results()
        if self.celery_app.conf.task_always_eager:
            return self._run_eagerly(task, prepared)
        command = self._core.enqueue(
            prepared, request, max_queued=self.max_queued, max_queued_per_partition=self.max_queued_per_partition
        )
        results = self.celery_app.backend
        if isinstance(results, RPCBackend):
            # The queue of replies must be there before the first reply. Once is enough.
            with self.celery_app.producer_or_acquire() as producer:
                results.on_task_call(producer, command.ids[0])
        try:
            duplicates = self._run(command)
        except Exception as error:
            request, stored = command.unfinished or ("", 0)
            error.unfinished = Unfinished(request, command.ids, stored)  # type: ignore[attr-defined]
            if stored and isinstance(error, VtrrError) and not isinstance(error, QueueFull):
                self._issuer.issue(task, stored)
            raise
        self._issuer.issue(task, len(prepared) - len(duplicates))
        return Results([TaskResult(id, self, results) for id in command.ids], duplicates)

    def _run_eagerly(self, task: VTRRTask[Any, Any], prepared: Prepared) -> Results:
        results, done = Results(), dict[str, Any]()
        for id, body in prepared.items():
            payload = loads(body)
            id = id or Queue.fresh()
            if id in done:
                results.append(done[id])
                results.duplicates.append(id)
                continue
            args, kwargs = fill_in(task, id, payload["args"], payload["kwargs"])
            done[id] = task.apply(args, kwargs, task_id=id)
            results.append(done[id])
        return results

    def _join_workers(self) -> None:
        from .worker import VTRRStep

        app = self.celery_app
        if not hasattr(app, "vtrr_queues"):
            app.vtrr_queues = []
        for other in app.vtrr_queues:
            if self.health_file is not None and other.health_file == self.health_file and other.name != self.name:
                raise InvalidArgument(f"health_file must be another one than that of {other!r}, not {self.health_file!r}")
            if other.celery_queue == self.celery_queue and other.name != self.name:
                logger.warning(
                    "%r and %r share the celery_queue %r: the tickets of one keep the other from sending its own; give each one",
                    other, self, self.celery_queue,
                )  # fmt: skip
        app.vtrr_queues.append(self)
        app.steps["worker"].add(VTRRStep)

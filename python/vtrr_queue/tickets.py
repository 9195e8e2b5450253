"""Tickets: the Celery messages that make workers dequeue. They are disposable: losing any number of them loses and
blocks nothing, since the sweep issues new ones."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from celery.app.routes import Router
from kombu import pools
from kombu.transport.virtual import Channel as VirtualChannel

from . import forks
from .errors import VtrrError

if TYPE_CHECKING:
    from .queue import VTRRQueue
    from .task import VTRRTask

logger = logging.getLogger(__name__)

# What a message of ours is, as a top-level key of the raw request: 5.2 has no `request.headers`.
MARK = "vtrr"
TICKET, CALL, BOUND = "ticket", "call", "bound"
# The task that was dequeued for a message.
DELIVERY = "vtrr_delivery"
# In the gevent pool: what gives such a task a message of its own.
BEGIN = "vtrr_begin"
# Who holds the leases of a message: put there by the worker's main process.
OWNER = "vtrr_owner"
# Limits of tasks that remote control has changed there.
LIMITS = "vtrr_limits"

# How long a producer waits for tickets to be sent.
PUBLISH_SECONDS = 5.0
# How long a broker may take for one answer. Longer, so that of the calls in this time only the first one waits.
ANSWER_SECONDS = 15.0
# How often a producer looks whether any worker consumes.
UNTAKEN_SECONDS = 30.0
# What bounds that, by the kombu transport's `driver_name`; without, a broker that hangs holds its caller for ever.
TIMEOUTS = {"redis": ("socket_timeout", "socket_connect_timeout"), "py-amqp": ("read_timeout", "write_timeout")}


def producers(app: Any) -> Any:
    """A pool like the app's own of producers, for brokers that hang: their connections wait for an answer as the user's
    ``broker_transport_options`` say, or else for ``ANSWER_SECONDS``."""
    own = app.pool
    known, bounded = app.__dict__.get("vtrr_producers", (None, None))
    if known is not own:
        connection = app.connection_for_write()
        names = TIMEOUTS.get(connection.get_transport_cls().driver_name, ())
        timeouts = {name: ANSWER_SECONDS for name in names if name not in connection.transport_options}
        bounded = pools.producers[app.connection_for_write(transport_options=timeouts)]
        bounded.limit = own.limit
        # The app has another pool after a fork, and so have we.
        app.vtrr_producers = (own, bounded)
    return bounded


def count(app: Any, celery_queue: str) -> int:
    """How many messages the broker holds in this queue, by its own count; those in workers' hands aside."""
    with producers(app).connections.acquire(block=True) as connection:
        try:
            return count_on(connection, celery_queue)
        except Exception:
            # An answer that comes late would be taken for that of the next question.
            connection.collect()
            raise


def count_on(connection: Any, celery_queue: str) -> int:
    channel = connection.default_channel
    if isinstance(channel, VirtualChannel):
        # On virtual transports a passive declare answers 404 for an empty queue; this one does no harm.
        return int(channel.queue_declare(queue=celery_queue).message_count or 0)
    # On AMQP a failed passive declare closes its channel.
    fresh = connection.channel()
    try:
        number = int(fresh.queue_declare(queue=celery_queue, passive=True).message_count)
    except connection.channel_errors:
        number = 0
    if fresh.is_open:
        fresh.close()
    return number


def publish(task: VTRRTask[Any, Any], **options: Any) -> None:
    """Sends one ticket for this task."""
    options.setdefault("headers", {MARK: TICKET})
    options.setdefault("shadow", "vtrr.ticket")
    options.setdefault("ignore_result", True)
    # Not `apply_async`: that checks arguments and adds children to the running task.
    send(task, {}, **options)


def send(task: VTRRTask[Any, Any], kwargs: dict[str, Any], **options: Any) -> Any:
    """Sends a message to the Celery queue of the task's VTRRQueue, past all routes of the user: parts of one that
    matches, a routing key say, would lead it elsewhere."""
    app = task.app
    with producers(app).acquire(block=True) as producer:
        return app.send_task(
            task.name,
            (),
            kwargs,
            producer=producer,
            task_type=task,
            queue=task.vtrr.celery_queue,
            router=Router((), app.amqp.queues, app.conf.task_create_missing_queues, app=app),
            add_to_parent=False,
            **options,
        )


def top_up(task: VTRRTask[Any, Any], wanted: int) -> int:
    """Sends ``min(max_concurrency - tickets waiting in the broker, wanted)`` tickets; answers how many."""
    vtrr = task.vtrr
    room = vtrr.max_concurrency - count(task.app, vtrr.celery_queue)
    sent = max(0, min(room, wanted))
    for _ in range(sent):
        publish(task)
    return sent


def in_log(error: BaseException) -> str:
    """An error of the broker's client, as it may be logged: where a URL cannot be read, its parser quotes what it takes for
    the port, which may be a part of the password."""
    if isinstance(error, ValueError) and not isinstance(error, VtrrError):
        return f"{type(error).__name__}, not shown since it may quote the broker's URL"
    return repr(error)


class Issuer:
    """Sends tickets on behalf of those who must not hang because the broker does: a producer, whose tasks are stored
    already, and the sweep."""

    def __init__(self) -> None:
        self._busy: threading.Thread | None = None
        # When a producer looks again whether any worker consumes, and how often in a row none did.
        self._next_look: float | None = None
        self._alone = 0

    def issue(self, task: VTRRTask[Any, Any], wanted: int) -> None:
        """For a producer: never fails, and waits for at most ``PUBLISH_SECONDS``."""
        self.look(task.vtrr)
        try:
            self.top_up(task, wanted, PUBLISH_SECONDS)
        except Exception as error:
            logger.warning("%s: tickets could not be sent, the sweep will: %s", task.vtrr, in_log(error))

    def look(self, vtrr: VTRRQueue) -> None:
        """Warns, once, where no worker consumes the queue. One that does takes part in the sweep, however busy it is, and a key
        that expires tells of that."""
        now = time.monotonic()
        if self._next_look is None:
            self._next_look = now + UNTAKEN_SECONDS
        # Workers of 0.1.0 do not sweep.
        if now < self._next_look or vtrr.tagging == "all":
            return
        self._next_look = now + UNTAKEN_SECONDS
        try:
            consumed = vtrr.redis_client.exists(vtrr._core.sweeper_key.encode())
        except Exception as error:
            logger.debug("%s: whether a worker consumes is not known: %r", vtrr, error)
            return
        self._alone = 0 if consumed else self._alone + 1
        if self._alone == 2:
            logger.warning(
                "%s: no worker takes its tasks, none consumes the Celery queue %r; start one with: celery -A … worker -Q %s",
                vtrr, vtrr.celery_queue, vtrr.celery_queue,
            )  # fmt: skip

    def top_up(self, task: VTRRTask[Any, Any], wanted: int, seconds: float) -> int:
        """As the function; raises what it raises, and ``TimeoutError`` where that takes longer. Nor does it begin anew
        then until the broker has answered, or its connection has given up."""
        if self._busy is not None and self._busy.is_alive():
            raise TimeoutError("the broker still does not answer")
        sent: list[int] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                with forks.quiet():
                    sent.append(top_up(task, wanted))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="vtrr-tickets", daemon=True)
        # Fails where no threads are left, or the interpreter ends.
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._busy = thread
            raise TimeoutError(f"the broker does not answer within {seconds:g} s")
        if errors:
            raise errors[0]
        return sent[0]

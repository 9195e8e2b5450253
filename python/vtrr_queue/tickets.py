"""Tickets: the Celery messages that make workers dequeue. They are disposable: losing any number of them loses and
blocks nothing, since the sweep issues new ones."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from celery.app.routes import Router
from kombu.transport.virtual import Channel as VirtualChannel

from .errors import VtrrError

if TYPE_CHECKING:
    from .task import VTRRTask

logger = logging.getLogger(__name__)

# What a message of ours is, as a top-level key of the raw request: 5.2 has no `request.headers`.
MARK = "vtrr"
TICKET, CALL, BOUND = "ticket", "call", "bound"
# The token of the delivery that a bound message is for.
TOKEN = "vtrr_token"
# Who holds the leases of a message: put there by the worker's main process.
OWNER = "vtrr_owner"

PUBLISH_SECONDS = 5.0


def count(app: Any, celery_queue: str) -> int:
    """How many messages the broker holds in this queue, by its own count; those in workers' hands aside."""
    with app.pool.acquire(block=True) as connection:
        channel = connection.default_channel
        if isinstance(channel, VirtualChannel):
            # On virtual transports a passive declare answers 404 for an empty queue; this one does no harm.
            return int(channel.queue_declare(queue=celery_queue).message_count or 0)
        # On AMQP a failed passive declare closes its channel.
        fresh = connection.channel()
        try:
            return int(fresh.queue_declare(queue=celery_queue, passive=True).message_count)
        except connection.channel_errors:
            return 0
        finally:
            if fresh.is_open:
                fresh.close()


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
    return app.send_task(
        task.name,
        (),
        kwargs,
        task_type=task,
        queue=task.vtrr.celery_queue,
        router=Router((), app.amqp.queues, app.conf.task_create_missing_queues, app=app),
        add_to_parent=False,
        **options,
    )


def publish_bound(task: VTRRTask[Any, Any], id: str, token: str) -> None:
    """Sends a message for one task of the queue. Its Celery id is the task's, so limits, revokes, states and results
    are Celery's own."""
    publish(
        task,
        task_id=id,
        headers={MARK: BOUND, TOKEN: token},
        shadow=None,
        ignore_result=task.ignore_result,
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
    """Sends tickets on behalf of a producer, who must not hang because the broker does: the tasks are stored
    already."""

    def __init__(self) -> None:
        self._busy: threading.Thread | None = None

    def issue(self, task: VTRRTask[Any, Any], wanted: int) -> None:
        if self._busy is not None and self._busy.is_alive():
            logger.warning("%s: the broker does not answer; the sweep will send tickets for the new tasks", task.vtrr)
            return
        errors: list[BaseException] = []

        def run() -> None:
            try:
                top_up(task, wanted)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="vtrr-tickets", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # No threads left, or the interpreter ends. The tasks are stored: the caller must not queue them again.
            errors.append(error)
        else:
            thread.join(PUBLISH_SECONDS)
        if thread.is_alive():
            self._busy = thread
            errors.append(TimeoutError(f"no answer within {PUBLISH_SECONDS:.0f} s"))
        if errors:
            logger.warning("%s: tickets could not be sent, the sweep will: %s", task.vtrr, in_log(errors[0]))

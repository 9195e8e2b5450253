"""A pytest plugin that gives 0.1.0's own tests the private names they reach for, each by what does the same here.

Nothing of 0.1.0 is in it: every name ends in this package's queue, tickets or messages. `test_reference` says
which of their tests have no such name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

from kombu.transport.memory import Channel

import vtrr_queue.queue
from vtrr_queue import VTRRTask, messages, tickets
from vtrr_queue._core import Queue
from vtrr_queue.ticket import Ticket

# Read by their module and not used by any test.
vtrr_queue.queue._SCRIPTS_DIR = Path()  # type: ignore[attr-defined]


class Ran:
    """Stands for the Celery task under their `VTRRTask`: `apply` runs a message here, and then those that it sent."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.sent = 0

    def apply(self, kwargs: dict[str, Any]) -> None:
        self.run(kwargs)
        while self.sent:
            self.sent -= 1
            self.run({})

    def run(self, kwargs: dict[str, Any]) -> None:
        id = Queue.fresh()
        request = {"id": id, "task": self.task.name, "args": (), "kwargs": kwargs, "is_eager": False}
        messages.run(self.task, id, (), kwargs, request)

    def apply_async(self, **_: Any) -> None:
        self.sent += 1


class VTRRQueue(vtrr_queue.queue.VTRRQueue):
    """Tags as 0.1.0 does, and has its private names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, tagging="all", **kwargs)
        # They take eager mode for a worker; here it means that `.queue()` runs the task.
        self.celery_app.conf.task_always_eager = False
        # Their app is a new one for each test; kombu's broker in memory is one for all.
        Channel.queues.clear()
        self._redis = self.redis_client
        prefix = f"vtrr:{self.name}:"
        self._queue_key = prefix + "queue"
        self._task_key = prefix + "task"
        self._current_vt_key = prefix + "current_virtual_time"
        self._partitions_vt_key = prefix + "partition_virtual_time"
        self._enqueue_keys = self._dequeue_keys = None
        # `.queue()` calls `_issuer.issue` once its tasks are stored.
        self._issuer = self  # type: ignore[assignment]

    def issue(self, task: Any, wanted: int) -> None:
        self._schedule_workers(wanted, task)

    def task(self, fn: Any = None, **options: Any) -> Any:
        task = super().task(fn, **options)
        task._celery_task = Ran(task)
        return task

    def _enqueue_script(self, keys: None, args: list[Any]) -> None:
        for partition, id, weight, payload in zip(*[iter(args)] * 4, strict=True):
            call = json.loads(payload)
            item = {"id": id, "weight": weight, "args": call["args"], "kwargs": call["kwargs"]}
            prepared = Queue.prepare(partition, [item], task_name=call["task_name"], dumps=json.dumps)
            self._run(self._core.enqueue(prepared))

    def _dequeue_script(self, keys: None, args: list[Any]) -> list[bytes]:
        owner = Queue.fresh()
        deliveries, *_ = self._run(self._core.dequeue(1, owner=owner, lease=30, max_deliveries=5))
        if not deliveries:
            return []
        (delivery,) = deliveries
        self._run(self._core.settle([(delivery.id, delivery.token, "ack", 0.0, None)]))
        call = json.loads(delivery.payload)
        # What this package adds to the payload is aside; 0.1.0 does not read it.
        fields = {name: call[name] for name in ("task_name", "args", "kwargs")}
        return [delivery.id.encode(), json.dumps(fields).encode()]

    def _get_workers_scheduled(self) -> int:
        return count(self.celery_app, self.celery_queue)

    def _schedule_workers(self, num_tasks: int, dispatch_task: Any) -> None:
        """The formula of `tickets.top_up`, with their count; their task may be a mock."""
        dispatch_task.vtrr = self
        with mock.patch.object(tickets, "count", return_value=self._get_workers_scheduled()), sending():
            tickets.top_up(dispatch_task, num_tasks)

    def _schedule_next(self, current_celery_task: Any) -> None:
        """What a ticket does when it ends."""
        ticket = Ticket.__new__(Ticket)
        ticket.vtrr, ticket.task = self, current_celery_task
        with sending():
            follow_up(ticket)


def sending() -> Any:
    """While it lasts, the messages of what is no task of ours are sent by its `apply_async`."""

    def send(task: Any) -> None:
        if isinstance(task, VTRRTask):
            publish(task)
        else:
            task.apply_async()

    return mock.patch.object(tickets, "publish", send)


count, publish, follow_up = tickets.count, tickets.publish, Ticket.follow_up
# A ticket that ends sends the next one by the name that they replace.
Ticket.follow_up = lambda ticket: ticket.vtrr._schedule_next(ticket.task._celery_task)  # type: ignore
vtrr_queue.queue.VTRRQueue = VTRRQueue  # type: ignore[misc]

"""A message for one task of the queue, which never was in a broker; and what stands in for the gevent pool to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.saferepr import saferepr
from kombu.message import Message

from . import limits, tickets
from .run import KEPT

if TYPE_CHECKING:
    from ._core import Delivery
    from .requests import TicketRequest

# How much of its arguments an event and the log show, as Celery's producers have it.
SHOWN = 1024


class Own(Message):
    """A message for one task of the queue, which never was in a broker."""

    is_given = False


def message_of(ticket: TicketRequest, owner: str, delivery: Delivery, own: Any, payload: dict[str, Any]) -> Own:
    of = ticket._message
    message = Own(  # type: ignore[no-untyped-call]
        body=of.body,
        content_type=of.content_type,
        content_encoding=of.content_encoding,
        delivery_info={**of.delivery_info, "redelivered": delivery.losses > 0},
        properties={**of.properties, "correlation_id": delivery.id, "reply_to": payload.get("reply_to")},
        headers={
            # Others are those of whoever queued when the ticket was sent.
            **{key: of.headers[key] for key in KEPT if key in of.headers},
            "task": own.name,
            "id": delivery.id,
            "retries": payload["retries"],
            "root_id": payload.get("root_id") or delivery.id,
            "parent_id": payload.get("parent_id"),
            "argsrepr": saferepr(payload["args"], SHOWN),
            "kwargsrepr": saferepr(payload["kwargs"], SHOWN),
            "ignore_result": own.ignore_result,
            tickets.MARK: tickets.BOUND,
            tickets.OWNER: owner,
            tickets.DELIVERY: delivery,
        },
    )
    # What the request shows. The body stays that of the ticket: the process that runs the task reads the delivery.
    message._decoded_cache = (payload["args"], payload["kwargs"], {})
    return message


def nothing(*_: Any) -> None:
    """A message that no broker knows is neither acknowledged nor rejected."""


class Here:
    """Stands in for the gevent pool: what it gets runs in this greenlet, which is one of that pool's."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def apply_async(self, target: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None, **options: Any) -> None:
        from celery.concurrency import gevent

        killed = []

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return target(*args, **kwargs)
            except limits.greenlet_exit() as error:
                killed.append(error)
                return False, None, None

        # By which a greenlet is found to be killed; older Celery does not.
        own = {"getpid": self.pool.getpid} if hasattr(self.pool, "getpid") else {}
        gevent.apply_timeout(run, args, kwargs, timeout=timeout or self.pool.timeout, **own, **options)
        if killed:
            raise killed[0]

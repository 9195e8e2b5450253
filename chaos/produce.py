"""The Celery producer: calls of 1 to 40 tasks until SIGTERM, each repeated until it is accepted, as docs/production.md
says. ``python -m chaos.produce``, with settings from the environment."""

from __future__ import annotations

import os
import random
import select
import signal
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from .app import app, ledger, vtrr

# With so many queued it waits.
ENOUGH = 500


def main() -> None:
    name, partitions = os.environ["CHAOS_PRODUCER"], int(os.environ["CHAOS_PARTITIONS"])
    max_ms, chance = int(os.environ["CHAOS_MAX_MS"]), random.Random(int(os.environ["CHAOS_SEED"]))
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    app.finalize()
    ledger.note("ready")
    number = 0
    while not stopping:
        number += 1
        # Each producer has partitions of its own, so that the order in them is its own. One task per call has another
        # name: a call is of one.
        kind = chance.choices(["work", "flaky", "bad"], [90, 6, 4])[0]
        count = chance.randint(1, 40) if kind == "work" else chance.randint(1, 5)
        queue_surely(f"{name}-{number}", f"{name}:p{chance.randrange(partitions)}", kind, count, max_ms, chance)
        while not stopping and has_enough():
            pause(0.02)
    ledger.note("stopped")


def queue_surely(call: str, partition: str, kind: str, count: int, max_ms: int, chance: random.Random) -> None:
    """A call that has begun is brought to its end: what was offered is accounted for."""
    tasks: list[Any] = [{"id": f"{call}.{n}", "kwargs": {"ms": chance.randint(0, max_ms)}} for n in range(count)]
    ledger.note("offered", call, partition, ",".join(task["id"] for task in tasks))
    while True:
        try:
            vtrr.tasks[kind].queue(partition, tasks, request=f"request-{call}")
        except (RedisError, RedisClusterException) as error:
            ledger.note("refused", call, type(error).__name__)
            pause(0.1)
        else:
            ledger.note("accepted", call)
            return


def pause(seconds: float) -> None:
    """Not `time.sleep`, which fails under libfaketime."""
    select.select([], [], [], seconds)


def has_enough() -> bool:
    try:
        return vtrr.stats().queued > ENOUGH
    except (RedisError, RedisClusterException):
        return False


if __name__ == "__main__":
    main()

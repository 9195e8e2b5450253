"""How many tasks of others start before a newcomer's: the same with and without time limits."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from bed import Bed
from rabbitmq import RabbitMQ
from servers import wait_for

# What Celery lets limit a task, and nothing at all.
LIMITS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "none": ("", {}, []),
    "the task": ("(time_limit=600)", {}, []),
    "the task, softly": ("(soft_time_limit=600)", {}, []),
    "the app": ("", {"task_time_limit": 600}, []),
    "the worker": ("", {}, ["--time-limit", "600"]),
}
TASKS = """
@vtrr.task{limits}
def gated(self, user):
    note("start", self, user=user)
    # Not blpop: greenlets wait beside each other.
    while not gates.lpop("gate:" + NAME):
        time.sleep(0.01)
    note("end", self, user=user)
"""
# Of one partition, of weight and share 1: its share over the newcomer's, and one (DESIGN §3).
MOST_AHEAD = 2


def load(bed: Bed, whose: str) -> tuple[ModuleType, list[str]]:
    limits, conf, options = LIMITS[whose]
    return bed.load(TASKS.format(limits=limits), conf=conf), options


def ahead(bed: Bed, app: ModuleType, processes: int) -> int:
    """How many of A's tasks start after B's is queued and before it starts, one process at a time being free."""
    app.gated.queue("a", [{"args": ["a"]} for _ in range(40)])

    def started() -> list[str]:
        return [event["user"] for event in bed.events("start")]

    wait_for(lambda: len(started()) == processes)
    app.gated.queue("b", [{"args": ["b"]}])
    for count in range(processes + 1, 60):
        bed.store.rpush(f"gate:{bed.name}", 1)
        wait_for(lambda count=count: len(started()) == count)  # type: ignore[misc]
        if "b" in started():
            break
    bed.store.rpush(f"gate:{bed.name}", *range(60))
    bed.drained()
    assert len(started()) == 41
    return started().index("b") - processes


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("whose", LIMITS)
def test_a_newcomer_waits_no_longer_where_tasks_are_under_limits(bed: Bed, whose: str, processes: int) -> None:
    app, options = load(bed, whose)
    bed.worker("prefork", processes, *options)
    assert ahead(bed, app, processes) <= MOST_AHEAD


@pytest.mark.parametrize("processes", [1, 4])
def test_a_newcomer_waits_no_longer_with_rabbitmq(bed: Bed, rabbitmq: RabbitMQ, processes: int) -> None:
    bed.broker = rabbitmq.url
    app, _ = load(bed, "the task")
    bed.worker("prefork", processes)
    assert ahead(bed, app, processes) <= MOST_AHEAD


def test_a_newcomer_waits_no_longer_in_gevent(bed: Bed) -> None:
    """The only other pool that enforces a limit, the hard one."""
    app, options = load(bed, "the task")
    bed.worker("gevent", 2, *options)
    assert ahead(bed, app, 2) <= MOST_AHEAD


def test_a_newcomer_waits_no_longer_where_few_tasks_are_under_limits(bed: Bed) -> None:
    """A ticket that runs tasks without limits meets one under a limit, and passes it on."""
    app = bed.load(TASKS.format(limits="(time_limit=600)") + TASKS.replace("gated", "free").format(limits=""))
    app.free.queue("a", [{"args": ["a"]} for _ in range(5)])
    app.gated.queue("a", [{"args": ["a"]} for _ in range(5)])
    bed.store.rpush(f"gate:{bed.name}", *range(60))
    bed.worker("prefork", 2)
    bed.drained()
    assert len(bed.events("end")) == 10

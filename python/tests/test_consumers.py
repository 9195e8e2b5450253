"""Whether anybody takes the tasks: what a worker says when it starts, and what a producer notices."""

from __future__ import annotations

import logging
from types import ModuleType

import pytest

from bed import GATED, WORK, Bed
from servers import wait_for
from vtrr_queue import tickets

SECOND = """
second = VTRRQueue(redis_client=store, celery_app=app, name=NAME + "-second", celery_queue=NAME + "_second")
third = VTRRQueue(redis_client=store, celery_app=app, name=NAME + "-third", celery_queue=NAME + "_third")
"""


def load(bed: Bed, tasks: str) -> ModuleType:
    return bed.load(tasks, conf={"task_default_queue": f"{bed.name}_plain"}, sweep_interval=0.5)


def said(bed: Bed, level: str, text: str) -> list[str]:
    """What a worker has said of whose tasks it takes."""
    return [line for line in bed.workers[-1].log().splitlines() if f"{level}/MainProcess" in line and text in line]


@pytest.mark.parametrize("queues", ["", "{name}_plain"], ids=["all that Celery knows", "others"])
def test_a_worker_that_takes_no_tasks_of_ours_says_so_once_and_what_to_add(bed: Bed, queues: str) -> None:
    load(bed, WORK + SECOND)
    bed.worker("solo", 1, queues=queues.format(name=bed.name))
    (line,) = said(bed, "WARNING", "takes no tasks of")
    assert all(f"<VTRRQueue '{bed.name}{end}'>" in line for end in ("", "-second", "-third"))
    assert f"-Q {bed.name}_tickets,{bed.name}_second,{bed.name}_third,{bed.name}_plain" in line
    assert not said(bed, "INFO", "takes tasks of")


def test_a_worker_says_whose_tasks_it_takes_and_does_not_warn_of_others(bed: Bed) -> None:
    """In a big deployment each worker consumes some queues on purpose."""
    load(bed, WORK + SECOND)
    bed.worker("solo", 1, queues=f"{bed.name}_second,{bed.celery_queue}")
    (line,) = said(bed, "INFO", "takes tasks of")
    assert all(f"<VTRRQueue '{bed.name}{end}'>" in line for end in ("", "-second"))
    assert all(queue in line for queue in (bed.celery_queue, f"{bed.name}_second"))
    (line,) = said(bed, "INFO", "takes no tasks of")
    assert f"<VTRRQueue '{bed.name}-third'>" in line
    assert f"<VTRRQueue '{bed.name}-second'>" not in line
    assert not said(bed, "WARNING", "VTRRQueue")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "UNTAKEN_SECONDS", 0.5)


def test_a_producer_warns_once_where_no_worker_consumes(bed: Bed, impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    """With what to do. When a worker has come and gone, it is warned of anew."""
    app = load(bed, WORK)
    bed.worker("solo", 1, queues=f"{bed.name}_plain")

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "no worker takes" in record.getMessage()]

    def another(number: int) -> bool:
        """One more warning comes while tasks are queued."""
        app.work.queue("u", [{}])
        return len(warnings()) == number

    with caplog.at_level(logging.WARNING):
        wait_for(lambda: another(1))
        assert f"<VTRRQueue '{bed.name}'>" in warnings()[0]
        assert f"-Q {bed.celery_queue}" in warnings()[0]
        looks = [0]
        exists = app.vtrr.redis_client.exists
        app.vtrr.redis_client.exists = lambda *keys: looks.append(len(looks)) or exists(*keys)
        wait_for(lambda: another(1) and len(looks) > 3)
        worker = bed.worker(concurrency=1)
        bed.drained()
        wait_for(lambda: another(1) and bed.store.exists(app.vtrr._core.sweeper_key))
        before = len(looks)
        wait_for(lambda: another(1) and len(looks) > before + 1)
        worker.kill()
        wait_for(lambda: another(2))


def test_a_producer_does_not_warn_of_workers_that_are_busy(bed: Bed, impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    """All tickets wait and nothing is delivered for long: a worker consumes all the same."""
    app = load(bed, WORK + GATED)
    bed.worker(concurrency=1)
    app.gated.queue("u", [{}])
    wait_for(lambda: bed.events("start"))
    looks: list[int] = []
    exists = app.vtrr.redis_client.exists
    app.vtrr.redis_client.exists = lambda *keys: looks.append(exists(*keys)) or looks[-1]
    with caplog.at_level(logging.WARNING):
        wait_for(lambda: app.work.queue("v", [{}]) and len(looks) > 5)
    assert set(looks) == {1}
    assert not caplog.records
    bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()

"""Large payloads and large calls."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest
import redis

from bed import Bed
from vtrr_queue import InvalidArgument

TASKS = """
@vtrr.task
def work(self, *args, **kwargs): ...
"""


def dequeue(app: ModuleType, n: int = 1) -> Any:
    """Takes tasks out as a worker does."""
    core = app.vtrr._core
    return app.vtrr._run(core.dequeue(n, owner=core.fresh(), lease=30.0, max_deliveries=5))[0]


@pytest.fixture
def app(bed: Bed) -> ModuleType:
    bed.store.flushall()
    return bed.load(TASKS)


def test_too_large_a_payload_is_refused_before_anything_is_stored(app: Any, bed: Bed) -> None:
    for size, tasks in ((5 << 20, 200), (100 << 20, 1), (4 << 20, 1)):
        with pytest.raises(InvalidArgument) as raised:
            app.work.queue("u", [{}] + [{"args": ["x" * size]}] * tasks)
        message = str(raised.value)
        assert "tasks[1]" in message
        assert "at most 41" in message
        assert len(message) < 300
    assert [bed.server.client(db).keys() for db in (0, 1, 3)] == [[], [], []]


def test_too_large_a_payload_is_refused_in_one_sentence(app: Any) -> None:
    """The core says "body", which nobody who calls ``.queue()`` has ever written."""
    for tasks, at in (([{"args": ["x" * 5_000_000]}], 0), ([{}, {"kwargs": {"text": "x" * 5_000_000}}], 1)):
        with pytest.raises(InvalidArgument) as raised:
            app.work.queue("u", tasks)
        sentence = rf"tasks\[{at}\] must be at most 4191104 bytes of JSON, not 50000\d\d bytes"
        assert re.fullmatch(sentence, str(raised.value))


def test_a_call_of_many_large_tasks_is_stored(app: Any, bed: Bed) -> None:
    results = app.work.queue("u", [{"args": ["x" * (3 << 20)]}] * 10)
    assert app.vtrr.stats().queued == 10
    assert len(dequeue(app)[0].payload) > 3 << 20
    assert app.vtrr.cancel([result.id for result in results[1:]]) == {result.id: "done" for result in results[1:]}


class Metered(redis.Redis):
    """Notes how much of the server's processor each script takes, in seconds: so long a ping waits, whatever else the
    machine does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.took: list[float] = []

    def used(self) -> float:
        cpu = super().execute_command("INFO", "cpu")
        return float(cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"])

    def execute_command(self, *words: Any, **options: Any) -> Any:
        if words[0] != "EVALSHA":
            return super().execute_command(*words, **options)
        before = self.used()
        answer = super().execute_command(*words, **options)
        self.took.append(self.used() - before)
        return answer


@pytest.mark.parametrize("tagging", ["head", "all"])
def test_a_ping_beside_a_huge_call_answers_within_50_ms(bed: Bed, tagging: str) -> None:
    bed.store.flushall()
    app = bed.load(TASKS, tagging=tagging)
    count = 100_000
    client = app.vtrr.redis_client = Metered(port=bed.server.port, db=3)
    results = app.work.queue("u", ({"args": ["a" * 100]} for _ in range(count)))
    assert app.vtrr.stats().queued == len(results) == count
    # In pieces, between which the server answers others.
    assert len(client.took) >= count / 1000
    assert max(client.took) < 0.05
    assert [it.id for it in dequeue(app, 1000)] == [result.id for result in results[:1000]]
    bed.store.flushall()

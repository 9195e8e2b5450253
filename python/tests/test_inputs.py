"""Bad and odd input: what is refused names the argument, the value and what is allowed, and leaves nothing behind."""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from celery import Celery

from bed import Bed
from vtrr_queue import IdConflict, VtrrError, VTRRQueue
from vtrr_queue._core import Delivery

TASKS = """
@vtrr.task
def work(self, *args, **kwargs): ...

@vtrr.task
def one(self, file_key): ...

@vtrr.task(typing=False)
def untyped(self, file_key): ...
"""


class Number(enum.IntEnum):
    SEVEN = 7


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


@pytest.fixture
def app(bed: Bed) -> ModuleType:
    bed.store.flushall()
    return bed.load(TASKS)


@pytest.fixture
def refused(bed: Bed, app: ModuleType) -> Iterator[Callable[..., str]]:
    """Calls something that must be refused, with nothing stored and no ticket; answers the message."""

    def refused(kind: type[Exception] | tuple[type[Exception], ...], call: Callable[..., Any], *args: Any, **kw: Any) -> str:
        with pytest.raises(kind) as raised:
            call(*args, **kw)
        assert isinstance(raised.value, VtrrError)
        return str(raised.value)

    yield refused
    for db, what in ((3, "store"), (0, "broker"), (1, "results")):
        assert bed.server.client(db).keys() == [], what


def dequeue(app: ModuleType, n: int = 1, **options: Any) -> list[Delivery]:
    """Takes tasks out as a worker does."""
    core = app.vtrr._core
    command = core.dequeue(n, owner=core.fresh(), lease=30.0, max_deliveries=5, **options)
    deliveries: list[Delivery] = app.vtrr._run(command)[0]
    return deliveries


BAD_WEIGHTS = [
    0,
    -5,
    False,
    True,
    0.5,
    0.99,
    1.5,
    math.inf,
    -math.inf,
    math.nan,
    10**6 + 1,
    2**53,
    10**308,
    1e300,
    "x",
    "",
    "1.5",
]


@pytest.mark.parametrize("weight", BAD_WEIGHTS, ids=repr)
def test_a_weight_that_is_no_integer_from_1_to_1000000_is_refused(app: Any, refused: Any, weight: Any) -> None:
    message = refused(ValueError, app.work.queue, "u", [{}, {"weight": weight}])
    shown = repr(weight)[:40]
    assert 'tasks[1]["weight"]' in message
    assert "an integer from 1 to 1,000,000" in message
    assert shown in message


@pytest.mark.parametrize("weight", [None, [1], {}, b"1", 1j], ids=repr)
def test_a_weight_of_another_type_is_refused(app: Any, refused: Any, weight: Any) -> None:
    message = refused(TypeError, app.work.queue, "u", [{"weight": weight}])
    assert 'tasks[0]["weight"] must be an integer from 1 to 1,000,000' in message
    assert repr(weight) in message


def test_weights_that_are_accepted(app: Any, bed: Bed) -> None:
    given = [1, 10**6, 2.0, "3", Number.SEVEN]
    results = app.work.queue("u", [{"weight": weight} for weight in given])
    assert [app.vtrr.find(result.id).weight for result in results] == [1, 10**6, 2, 3, 7]


BAD_KEYS = [
    (None, TypeError), ("", ValueError), (True, TypeError), (1.5, TypeError), (math.nan, TypeError),
    (("t", 1), TypeError),
    (b"bb", TypeError), ("\ud800", ValueError), ("a\x00b", ValueError), ("k" * 10_240, ValueError),
    (10**600, ValueError),
    (10**5000, ValueError), ("ä" * 257, ValueError), ({}, TypeError), (object(), TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("key", "kind"), BAD_KEYS, ids=lambda value: ascii(value)[:20] if not isinstance(value, int) else "")
def test_a_bad_partition_key_is_refused_by_name(app: Any, refused: Any, key: Any, kind: type[Exception]) -> None:
    assert "partition_key must be text of 1 to 512 bytes without NUL" in refused(kind, app.work.queue, key, [{}])
    if key is not None:
        assert "partition_key must be text" in refused(kind, app.vtrr.purge, key)
    assert "partition_key must be text" in refused(kind, app.vtrr.set_share, key, 2)


def test_partition_keys_of_other_types_are_the_same_as_their_text(app: Any) -> None:
    some = uuid.uuid4()
    expected = {
        0: "0",
        5: "5",
        "5": "5",
        -1: "-1",
        some: str(some),
        "   ": "   ",
        "😀": "😀",
        Number.SEVEN: "7",
        Text("t"): "t",
    }
    for key, text in expected.items():
        (result,) = app.work.queue(key, [{}])
        assert app.vtrr.find(result.id).partition == text
    partitions = app.vtrr._run(app.vtrr._core.partitions())
    assert {it["partition"]: it["queued"] for it in partitions} == {
        "0": 1, "5": 2, "-1": 1, str(some): 1, "   ": 1, "😀": 1, "7": 1, "t": 1,
    }  # fmt: skip


SLIPS = [
    ([{"arg": [1]}], TypeError, "tasks[0] has the key 'arg'"),
    ([{}, {"args": [1], "wieght": 3}], TypeError, "tasks[1] has the key 'wieght'"),
    ([{1: 2}], TypeError, "tasks[0] has the key 1"),
    ([{"\ud800": 2}], TypeError, "tasks[0] has the key '\\ud800'"),
    ([{"args": "abc"}], TypeError, "tasks[0][\"args\"] must be a list or tuple, not 'abc' (str)"),
    ([{"args": None}], TypeError, 'tasks[0]["args"] must be a list or tuple, not None'),
    ([{"args": {1}}], TypeError, 'tasks[0]["args"] must be a list or tuple'),
    ([{"kwargs": None}], TypeError, 'tasks[0]["kwargs"] must be a dict with text as keys, not None'),
    ([{"kwargs": [("a", 1)]}], TypeError, 'tasks[0]["kwargs"] must be a dict with text as keys'),
    ([{"kwargs": {1: 1}}], TypeError, 'tasks[0]["kwargs"] must be a dict with text as keys'),
    ([None], TypeError, "tasks[0] must be a dict, not None"),
    ([{}, 5], TypeError, "tasks[1] must be a dict, not 5"),
    (None, TypeError, "tasks must be a list of dicts, not None"),
    (5, TypeError, "tasks must be a list of dicts, not 5"),
    ("abc", TypeError, "tasks must be a list of dicts, not 'abc'"),
    (b"abc", TypeError, "tasks must be a list of dicts, not b'abc'"),
    ({"args": [1]}, TypeError, "tasks must be a list of dicts, not {'args': [1]}"),
    ([{"id": ""}], ValueError, 'tasks[0]["id"] must be text of 1 to 512 bytes'),
    ([{"id": True}], TypeError, 'tasks[0]["id"] must be text of 1 to 512 bytes'),
    ([{"id": 1.0}], TypeError, 'tasks[0]["id"] must be text of 1 to 512 bytes'),
    ([{"id": "a\0"}], ValueError, 'tasks[0]["id"] must be text of 1 to 512 bytes'),
    ([{"id": "i" * 513}], ValueError, 'tasks[0]["id"] must be text of 1 to 512 bytes without NUL, not 513 bytes'),
    ([{"id": "\ud800"}], ValueError, 'tasks[0]["id"] must be text of 1 to 512 bytes'),
]


@pytest.mark.parametrize(("tasks", "kind", "expected"), SLIPS, ids=lambda value: ascii(value)[:30])
def test_a_slip_in_the_call_is_refused(app: Any, refused: Any, tasks: Any, kind: type[Exception], expected: str) -> None:
    assert expected in refused(kind, app.work.queue, "u", tasks)


def test_arguments_that_do_not_fit_the_function_are_refused_as_celery_does(app: Any, refused: Any, bed: Bed) -> None:
    for bad in ({}, {"args": [1, 2]}, {"kwargs": {"key": 1}}, {"args": [1], "kwargs": {"file_key": 1}}):
        with pytest.raises(TypeError):
            app.one.delay(*bad.get("args", ()), **bad.get("kwargs", {}))
        message = refused(TypeError, app.one.queue, "u", [{"args": [1]}, bad])
        assert message.startswith(f"tasks[1] does not fit {app.one.name}: ")


def test_a_generator_is_a_list_and_one_that_fails_stores_nothing(app: Any, refused: Any) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield {}
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        app.work.queue("u", failing())
    assert app.work.queue("u", []) == []
    assert app.vtrr.stats().queued == 0


def test_generators_mappings_and_untyped_tasks_are_accepted(app: Any) -> None:
    from types import MappingProxyType

    assert len(app.work.queue("u", ({"args": (i,)} for i in range(3)))) == 3
    assert len(app.work.queue("u", [MappingProxyType({"args": [1]})])) == 1
    assert len(app.untyped.queue("u", [{"args": [1, 2, 3]}])) == 1
    assert app.vtrr.stats().queued == 5


@pytest.mark.parametrize("tagging", ["head", "all"])
def test_an_id_twice_in_one_call_is_stored_and_charged_once(bed: Bed, tagging: str) -> None:
    bed.store.flushall()
    app = bed.load(TASKS, tagging=tagging)
    results = app.work.queue("u", [{"id": "x", "args": ["A1"]}, {"id": "x", "args": ["A2"]}, {"id": "y"}])
    assert [result.id for result in results] == ["x", "x", "y"]
    assert results.duplicates == ["x"]
    assert app.vtrr.stats().queued == 2
    assert b'"args":["A1"]' in app.vtrr.find("x").payload
    app.work.queue("control", [{"id": "x2"}, {"id": "y2"}])
    starts = {}
    for _ in range(4):
        (peeked,) = app.vtrr._run(app.vtrr._core.peek(1))
        starts[peeked[0]] = peeked[2]
        dequeue(app)
    assert starts["y"] == starts["y2"]


@pytest.mark.parametrize("tagging", ["head", "all"])
def test_an_id_that_is_alive_in_another_partition_is_refused(bed: Bed, tagging: str) -> None:
    bed.store.flushall()
    app = bed.load(TASKS, tagging=tagging)
    app.work.queue("A", [{"id": "x", "args": ["A"]}])
    before = app.vtrr.find("x"), bed.store.hgetall(bed.key("partition_virtual_time"))
    tickets = bed.server.client(0).llen(bed.celery_queue)
    with pytest.raises(IdConflict, match="x") as raised:
        app.work.queue("B", [{"id": "new"}, {"id": "x", "args": ["B"]}])
    assert isinstance(raised.value, ValueError)
    assert (app.vtrr.find("x"), bed.store.hgetall(bed.key("partition_virtual_time"))) == before
    assert app.vtrr.find("new") is None
    assert bed.server.client(0).llen(bed.celery_queue) == tickets
    again = app.work.queue("A", [{"id": "x", "args": ["A9"]}])
    assert again.duplicates == ["x"]
    assert app.vtrr.find("x") == before[0]


def test_no_id_is_a_new_id_and_an_int_is_its_text(app: Any) -> None:
    results = app.work.queue("u", [{"id": None}, {"id": None}, {}])
    assert len({result.id for result in results} | {"None"}) == 4
    results = app.work.queue("u", [{"id": 1}, {"id": "1"}, {"id": Number.SEVEN}, {"id": "None"}, {"id": Text("t")}])
    assert [result.id for result in results] == ["1", "1", "7", "None", "t"]
    assert results.duplicates == ["1"]
    assert app.vtrr.stats().queued == 7


def test_the_order_does_not_depend_on_ids(app: Any) -> None:
    app.work.queue("u", [{"id": id} for id in "zyxw"])
    assert [it.id for it in dequeue(app, 4)] == list("zyxw")
    app.work.queue("u", [{"id": "z2", "weight": 10**6}, {"id": "y2"}, {"id": "x2"}, {"id": "w2"}])
    assert [it.id for it in dequeue(app, 4)] == ["z2", "y2", "x2", "w2"]


def test_other_calls_refuse_bad_arguments(app: Any, refused: Any) -> None:
    vtrr = app.vtrr
    for call in (vtrr.cancel, vtrr.redrive, vtrr.discard):
        assert "ids must be a list of ids, not 'abc'" in refused(TypeError, call, "abc")
        assert "ids must be a list of ids, not 5" in refused(TypeError, call, 5)
        assert "ids must be a list of ids, not None" in refused(TypeError, call, None)
        assert "id must be text" in refused(TypeError, call, [None])
        assert "id must be text" in refused(ValueError, call, ["fine", ""])
    for call in (vtrr.redrive, vtrr.discard):
        assert "ids must be from 1 to 1000, not 1001" in refused(ValueError, call, map(str, range(1001)))
        assert call([]) == []
    assert vtrr.cancel([]) == {}
    assert "id must be text" in refused(TypeError, vtrr.find, None)
    assert "id must be text" in refused(ValueError, vtrr.find, "a\0")
    for share in (0, 0.0009, 1001, -1, math.nan, math.inf):
        message = refused(ValueError, vtrr.set_share, "u", share)
        assert message == f"share must be a number from 0.001 to 1,000, not {share!r}"
    for other in (True, "2", None, [1]):
        assert "share must be a number from 0.001 to 1,000" in refused(TypeError, vtrr.set_share, "u", other)
    for limit in (0, -1, 1001):
        assert "limit must be an integer from 1 to 1,000" in refused(ValueError, vtrr.dead_letters, limit=limit)
    assert "offset must be an integer from 0" in refused(ValueError, vtrr.dead_letters, -1)
    assert "offset must be an integer from 0" in refused(TypeError, vtrr.dead_letters, "0")
    for request in ("", "a\0b", "r" * 513, "\ud800"):
        assert "request must be text" in refused(ValueError, app.work.queue, "u", [{}], request=request)
    assert "request must be text" in refused(TypeError, app.work.queue, "u", [{}], request=5)


CONSTRUCTOR = [
    ("name", "", ValueError), ("name", 5, TypeError), ("name", None, TypeError), ("name", "a\0b", ValueError),
    ("name", "\ud800", ValueError), ("name", "n" * 513, ValueError), ("name", b"n", TypeError),
    ("celery_queue", "", ValueError), ("celery_queue", None, TypeError), ("celery_queue", "\ud800", ValueError),
    ("max_concurrency", 0, ValueError), ("max_concurrency", -1, ValueError), ("max_concurrency", True, TypeError),
    ("max_concurrency", 1.5, TypeError), ("max_concurrency", "4", TypeError), ("lease", 0, ValueError),
    ("lease", math.nan, ValueError), ("lease", math.inf, ValueError), ("lease", "30", TypeError),
    ("lease", True, TypeError),
    ("max_deliveries", 0, ValueError), ("max_deliveries", 2.0, TypeError), ("sweep_interval", 0, ValueError),
    ("sweep_interval", None, TypeError), ("burst", -0.1, ValueError), ("burst", "0", TypeError),
    ("tagging", "tail", ValueError), ("tagging", None, ValueError), ("tagging", ["head"], ValueError),
    ("retry_through", "celery", ValueError), ("retry_through", None, ValueError),
    ("max_queued", 0, ValueError), ("max_queued", -1, ValueError), ("max_queued", 10**30, ValueError),
    ("max_queued", True, TypeError), ("max_queued", 5.0, TypeError), ("max_queued_per_partition", 0, ValueError),
    ("max_queued_per_partition", "9", TypeError), ("max_queued_per_partition", [], TypeError),
    ("result_patience", -1, ValueError), ("result_patience", math.inf, ValueError), ("result_patience", None, TypeError),
    ("task_events", None, TypeError), ("task_events", 1, TypeError), ("task_events", "yes", TypeError),
    ("redis_client", None, TypeError), ("redis_client", "redis://localhost", TypeError),
    ("redis_client", redis.asyncio.Redis(), TypeError), ("redis_client", fakeredis.FakeAsyncRedis(), TypeError),
    ("celery_app", None, TypeError), ("celery_app", "app", TypeError), ("celery_app", Celery, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "value", "kind"), CONSTRUCTOR, ids=lambda value: ascii(value)[:25])
def test_the_constructor_refuses_by_name(argument: str, value: Any, kind: type[Exception]) -> None:
    arguments = {"redis_client": fakeredis.FakeRedis(), "celery_app": Celery("x", set_as_current=False), "name": "n"}
    VTRRQueue(**arguments)
    with pytest.raises(kind, match=f"^{argument} must be ") as raised:
        VTRRQueue(**{**arguments, argument: value})
    assert isinstance(raised.value, VtrrError)
    shown = "empty" if value == "" else "513 bytes" if value == "n" * 513 else str(value).encode("unicode_escape").decode()
    if argument in ("redis_client", "celery_app"):
        shown = type(value).__name__
    assert shown in str(raised.value).replace("\\0", "\\x00")

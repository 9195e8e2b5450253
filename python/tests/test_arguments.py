"""Arguments arrive as `.delay()` would bring them: equal and of the same types, under whichever kombu there is."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json
import math
import random
import sys
import uuid
from typing import Any

import fakeredis
import pytest
from celery import Celery
from kombu.utils.json import dumps, loads

from bed import Bed
from vtrr_queue import InvalidArgument, InvalidArgumentType, VTRRQueue
from vtrr_queue._core import encode_call

TASKS = """
def typed(value):
    if isinstance(value, dict):
        return {"dict": [[typed(key), typed(value)] for key, value in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [typed(item) for item in value]}
    return {type(value).__name__: repr(value)}

@vtrr.task
def fair(self, n, *args, **kwargs):
    note("fair", self, n=n, args=typed(args), kwargs=typed(kwargs))

@app.task(bind=True)
def plain(self, n, *args, **kwargs):
    note("plain", self, n=n, args=typed(args), kwargs=typed(kwargs))
"""


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    SEVEN = 7


class Word(str, enum.Enum):
    HELLO = "hello"


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


class Mapping(dict):  # type: ignore[type-arg]
    pass


class Items(list):  # type: ignore[type-arg]
    pass


class OwnJson:
    def __json__(self) -> Any:
        return {"mine": 1}


Point = collections.namedtuple("Point", "x y")
zone = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


def nested(depth: int) -> Any:
    value: Any = "deep"
    for i in range(depth):
        value = [value] if i % 2 else {"k": value}
    return value


VALUES: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70, 10**300, 0.0, -0.0, 0.1, 1e16, 1e-7,
    1e22,
    5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf, 123456789.123456789, 2.0,
    "", "text", "ünï 😀 \u2028\u2029", "\x00\x01\x1f\x7f\"\\/", "\ud800", "a\udfff\ud800b", "</script>", "x" * 70_000,
    [], {}, (), [[]], [{}], {"a": []}, (1, (2, (3,))), [1, [2, [3, [4]]]], {"a": {"b": {"c": None}}},
    {1: "a"}, {1.5: "a", None: "b", True: "c"}, {"": 0}, {"\ud800": 1}, {"ключ\n": [1]}, {"__type__": 1}, {1: "a",
    "1": "b"},
    datetime.date(2024, 1, 31), datetime.datetime(2024, 1, 31, 12, 30, 1, 5), datetime.datetime(2024, 1, 31,
    tzinfo=zone),
    datetime.datetime(2024, 1, 31, tzinfo=datetime.timezone.utc), datetime.time(1, 2, 3, 4), uuid.UUID(int=5),
    decimal.Decimal("1.10"), decimal.Decimal("NaN"), b"\x00\xff", b"", b"text", bytearray(b"x"), memoryview(b"x"),
    [decimal.Decimal("1.10"), 2**70, {"when": datetime.date(2024, 1, 31), 5: (b"\xff",)}],
    datetime.timedelta(seconds=1), {1, 2}, frozenset(), ValueError("no"), object(), 1j, range(3), len, Ellipsis,
    Colour.RED, Number.SEVEN, Word.HELLO, Text("t"), Whole(7), Real(1.5), Mapping(a=1), Items([1]), Point(1, 2),
    OwnJson(),
    [Text("t"), {Text("k"): Whole(1)}], {Word.HELLO: 1}, {Number.SEVEN: 1}, collections.OrderedDict(b=1, a=2),
    {"__type__": "decimal", "__value__": "1.5"}, nested(63), nested(64), nested(65), nested(200), {(1, 2): 3},
]  # fmt: skip


def test_arguments_arrive_as_those_of_delay_do(bed: Bed) -> None:
    bed.store.flushall()
    app: Any = bed.load(TASKS)
    bed.worker("solo", 1, queues=f"{bed.celery_queue},celery")
    expected = 0
    for n, value in enumerate(VALUES):
        for args, kwargs in (([n, value, [value]], {}), ([n], {"given": value, "ключ": {"a": value}})):
            try:
                app.plain.delay(*args, **kwargs)
            except Exception:
                # Refused by Celery: refused here, and nothing is stored.
                with pytest.raises((InvalidArgument, InvalidArgumentType), match=r'^tasks\[0\]\["k?w?args"\] must be '):
                    app.fair.queue("u", [{"args": args, "kwargs": kwargs}])
            else:
                app.fair.queue("u", [{"args": args, "kwargs": kwargs}])
                expected += 1
    assert expected > 150
    app.plain.apply_async(["last"]).get(timeout=120)
    app.fair.queue("u", [{"args": ["last"]}])[0].get(timeout=120)
    bed.drained()
    seen = {what: [(it["n"], it["args"], it["kwargs"]) for it in bed.events(what)] for what in ("plain", "fair")}
    assert len(seen["plain"]) == expected + 1
    for plain, fair in zip(seen["plain"], seen["fair"], strict=True):
        assert fair == plain
    assert app.vtrr.stats().totals["acked"] == expected + 1
    assert app.vtrr.stats().dead == 0


@pytest.fixture
def work() -> Any:
    app = Celery("arguments", broker="memory://", backend="cache+memory://", set_as_current=False)
    vtrr = VTRRQueue(redis_client=fakeredis.FakeRedis(), celery_app=app, name="q")

    @vtrr.task
    def work(self: Any, *args: Any, **kwargs: Any) -> None: ...

    return work


def test_what_json_does_not_take_is_refused_by_name(work: Any) -> None:
    circular: list[Any] = []
    circular.append(circular)
    loop: dict[str, Any] = {}
    loop["loop"] = [loop]
    refused: list[tuple[Any, type[Exception], str]] = [
        ({1, 2}, InvalidArgumentType, "not [{1, 2}]: Object of type set is not JSON serializable"),
        (datetime.timedelta(1), InvalidArgumentType, "Object of type timedelta is not JSON serializable"),
        (ValueError("x"), InvalidArgumentType, "Object of type ValueError is not JSON serializable"),
        ({(1, 2): 3}, InvalidArgumentType, "keys must be str, int, float, bool or None"),
        (circular, InvalidArgument, "Circular reference detected"),
        (loop, InvalidArgument, "Circular reference detected"),
        (nested(200_000), InvalidArgument, "recursion" if sys.version_info < (3, 12) else ""),
    ]
    for value, kind, why in refused:
        for field, task in (("args", {"args": [value]}), ("kwargs", {"kwargs": {"a": value}})):
            with pytest.raises(kind) as raised:
                work.queue("u", [{}, task])
            assert str(raised.value).startswith(f'tasks[1]["{field}"] must be what JSON takes, not ')
            if field == "args":
                assert why in str(raised.value)
            assert len(str(raised.value)) < 400
            assert isinstance(raised.value.__cause__, (TypeError, ValueError, RecursionError))
    assert work.vtrr.redis_client.keys() == []


def test_what_a_value_itself_raises_passes_through(work: Any) -> None:
    class Broken:
        def __json__(self) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work.queue("u", [{"args": [Broken()]}])
    assert work.vtrr.redis_client.keys() == []


ATOMS: list[Any] = [value for value in VALUES if not isinstance(value, (list, dict, tuple))]


def random_value(random: random.Random, depth: int = 0) -> Any:
    kind = random.randrange(10 if depth < 5 else 6)
    if kind == 0:
        return random.randint(-(2 ** random.randrange(1, 80)), 2 ** random.randrange(1, 80))
    if kind == 1:
        return random.choice([random.random(), random.uniform(-1e9, 1e9), 10.0 ** random.randrange(-320, 308)])
    if kind == 2:
        # All of Unicode, surrogates and control characters too.
        top = random.choice([0x20, 0x80, 0x800, 0xE000, 0x110000])
        return "".join(chr(random.randrange(top)) for _ in range(random.randrange(8)))
    if kind < 6:
        return random.choice([None, True, False, 0, 1.5, "a", "b\n", *random.sample(ATOMS, 1)])
    items = [random_value(random, depth + 1) for _ in range(random.randrange(4))]
    if kind < 8:
        return random.choice([list, tuple, Items])(items)
    keys = [random.choice(["a", "b", "\u00e9", "\ud800", "", 1, None, True, 2.5, Text("t")]) for _ in items]
    return random.choice([dict, Mapping])(zip(keys, items, strict=True))


def typed(value: Any) -> Any:
    """The value with its types spelt out: equal for equal values of equal types only."""
    if isinstance(value, dict):
        return [(typed(key), typed(value)) for key, value in value.items()]
    if isinstance(value, list):
        return ["list", *map(typed, value)]
    return type(value).__name__, repr(value)


@pytest.mark.parametrize("seed", range(4))
def test_the_encoder_writes_what_kombu_writes(seed: int) -> None:
    rng = random.Random(seed)
    equal = 0
    for _ in range(1500):
        args = [random_value(rng) for _ in range(rng.randrange(3))]
        kwargs = {name: random_value(rng) for name in rng.sample(["a", "ключ", 'q"', "\n"], rng.randrange(3))}
        name = rng.choice(["tasks.work", 'we"ird\\\n', "ünï"])
        try:
            expected = loads(dumps({"task_name": name, "args": args, "kwargs": kwargs, "retries": 1}))
        except Exception as error:
            with pytest.raises(type(error)):
                loads(encode_call(name, args, kwargs, dumps, ',"retries":1'))
            continue
        encoded = encode_call(name, args, kwargs, dumps, ',"retries":1')
        assert typed(loads(encoded)) == typed(expected)
        # 0.1.0 reads it with the standard library.
        json.loads(encoded)
        equal += 1
    assert equal > 500

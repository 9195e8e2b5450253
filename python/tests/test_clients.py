"""All forms of `redis_client` do: every command through each of them, and real workers through some."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from bed import HEADER, PACKAGE, Bed
from clients import FORMS, Servers, places
from vtrr_queue import InvalidArgument, Purged, VTRRQueue
from vtrr_queue._core import Queue
from vtrr_queue.client import run

TEXT = "ünï 😀\n"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("s")).running() as servers:
        yield servers


def make_queue(client: Any, name: str) -> Any:
    app = Celery("clients", broker="memory://", backend="cache+memory://", set_as_current=False)
    return VTRRQueue(redis_client=client, celery_app=app, name=name, celery_queue=name)


@pytest.mark.parametrize("form", FORMS)
def test_every_command_goes_through(servers: Servers, form: str) -> None:
    client = FORMS[form].make(servers)
    vtrr = make_queue(client, FORMS[form].queue_name())
    core = vtrr._core

    @vtrr.task
    def work(self: Any, *args: Any) -> None: ...

    def dequeue(n: int, settle: Any = ()) -> Any:
        options = {"lease": 30.0, "max_deliveries": 5, "settle": list(settle)}
        return vtrr._run(core.dequeue(n, owner="owner", **options))

    # More than one call's worth, an id and a partition that are not ASCII, a duplicate.
    results = work.queue(TEXT, [{"id": TEXT, "args": [TEXT]}, {"id": TEXT}, *({"args": [i]} for i in range(1500))])
    assert results.duplicates == [TEXT]
    assert (len(vtrr), vtrr.stats().tagging, vtrr.stats().partitions) == (1501, "head", 1)
    found = vtrr.find(TEXT)
    assert (found.state, found.partition, found.weight, json.loads(found.payload)["args"]) == (
        "tagged",
        TEXT,
        1,
        [TEXT],
    )
    assert vtrr.find(results[-1].id).state == "waiting"
    assert vtrr.find("other") is None
    assert [it[0] for it in vtrr._run(core.peek(1))] == [TEXT]
    assert [it["partition"] for it in vtrr._run(core.partitions())] == [TEXT]
    assert vtrr.cancel([results[-1].id, "other"]) == {results[-1].id: "done", "other": "gone"}

    # Take tasks out and settle them in each way.
    deliveries, _, due, more = dequeue(5)
    assert [it.id for it in deliveries] == [result.id for result in [results[0], *results[2:6]]]
    assert [json.loads(it.payload)["args"] for it in deliveries] == [[TEXT], [0], [1], [2], [3]]
    assert (deliveries[0].partition, deliveries[0].deliveries, more) == (TEXT, 1, False)
    assert 25 < due <= 30
    assert vtrr.find(TEXT).owner == "owner"
    vtrr._run(core.extend_owner("owner", 60.0))
    assert 50 < vtrr.find(TEXT).left <= 60
    outcomes = [
        ("ack", 0.0, None),
        ("release", 0.0, None),
        ("retry", 60.0, b'{"task_name":"x"}'),
        ("failed", 0.0, TEXT.encode()),
    ]
    settle = [(it.id, it.token, *outcome) for it, outcome in zip(deliveries, outcomes, strict=False)]
    deliveries, settled, _, _ = dequeue(1, settle)
    assert settled == ["done"] * 4
    # The released one comes first; the owner's fifth one was not named, and comes back too.
    assert deliveries[0].id in (results[2].id, results[5].id)
    assert vtrr._run(core.settle(settle[:1])) == ["gone"]
    assert vtrr._run(core.settle([(deliveries[0].id, "1-1", "ack", 0.0, None)])) == ["lost"]
    vtrr._run(core.release_owner("owner"))
    (letter,) = vtrr.dead_letters()
    assert (letter.id, letter.error, letter.partition) == (results[4].id, TEXT, TEXT)
    assert vtrr.redrive([letter.id, "other"]) == [True, False]
    assert vtrr.discard([letter.id]) == [False]
    vtrr.set_share(TEXT, 2)
    assert vtrr._run(core.partitions())[0]["share"] == 2
    assert vtrr._run(core.sweep("sweeper", 15.0))["reclaimed"] == 0
    assert vtrr._waits()

    # 1,502 with a duplicate and a cancelled one; one is done, one delayed.
    assert vtrr.purge(TEXT) == Purged(purged=1498, leased=0, delayed=1, dead=0)
    assert not vtrr._waits()
    assert vtrr.cancel([results[3].id]) == {results[3].id: "done"}
    stats = vtrr.stats()
    assert (stats.queued, stats.leased, stats.delayed, stats.dead, stats.next_due) == (0, 0, 0, 0, None)
    vtrr.flatten()


def test_on_a_cluster_a_name_without_braces_is_refused_with_advice(servers: Servers) -> None:
    client = FORMS["cluster"].make(servers)
    for name in ("plain", "{}", "a{}b", "{open", "close}"):
        with pytest.raises(InvalidArgument, match=r"^name must be in braces on Redis Cluster.*like \"\{") as raised:
            make_queue(client, name)
        assert repr(name) in str(raised.value)
    make_queue(client, "before{tag}after")


def test_a_user_without_the_right_to_run_scripts_is_told_so(servers: Servers) -> None:
    servers.plain.client().execute_command("ACL", "SETUSER", "poor", "on", ">x", "~*", "+@all", "-@scripting")
    vtrr = make_queue(redis.Redis(port=servers.plain.port, username="poor", password="x"), "poor")

    @vtrr.task
    def work(self: Any) -> None: ...

    with pytest.raises(redis.exceptions.NoPermissionError):
        work.queue("u", [{}])
    vtrr.redis_client = redis.Redis(port=servers.plain.port, username="poor", password="wrong")
    with pytest.raises(redis.AuthenticationError):
        work.queue("u", [{}])


TASKS = """
from redis.exceptions import MaxConnectionsError

def push(n):
    # A pool of one connection may have lent it to the sweep just now.
    while True:
        try:
            return store.rpush("ran", n)
        except MaxConnectionsError:
            time.sleep(0.01)

@vtrr.task
def work(self, n):
    push(n)
    if n == 3 and self.request.retries == 0:
        raise self.retry(countdown=0.2)
    return [n, "ünï"]
"""
IN_WORKERS = [
    "tls",
    "cluster",
    "sentinel",
    "decoding",
    "latin-1",
    "RESP3 decoding",
    "django-redis",
    "unix socket",
    "ascii strict",
]
IN_WORKERS += ["one connection", "one blocking connection", "cluster decoding"]


# Some treat threads otherwise than processes.
IN_THREADS = ["cluster", "one connection", "one blocking connection"]


@pytest.mark.parametrize(
    ("form", "pool"), [*((form, "prefork") for form in IN_WORKERS), *((form, "threads") for form in IN_THREADS)]
)
def test_a_real_worker(servers: Servers, bed: Bed, form: str, pool: str) -> None:
    client = FORMS[form].make(servers)
    client.delete("ran")
    header = HEADER.replace("store = redis.Redis.from_url({store!r})", "{client}").replace("name=NAME", "name={queue!r}")
    assert "{client}" in header
    assert "{queue!r}" in header
    source = "\n".join(
        [
            "from redis.sentinel import Sentinel; from clients import django_connection",
            *(f"{name} = {value!r}" for name, value in places(servers).items()),
            f"store = {FORMS[form].source}",
        ]
    )
    header = header.replace("{client}", source.replace("{", "{{").replace("}", "}}"))
    name = FORMS[form].queue_name()
    app: Any = bed.load(TASKS, header=header.replace("{queue!r}", repr(name).replace("{", "{{").replace("}", "}}")))
    # A pool of one connection serves one thread at a time.
    tests = {"PYTHONPATH": f"{bed.folder}:{PACKAGE}:{__file__.rsplit('/', 1)[0]}"}
    worker = bed.worker(pool, 1 if "one" in form else 2, env=tests)
    results = app.work.queue("u", [{"args": [n]} for n in range(20)])
    assert [result.get(timeout=120) for result in results] == [[n, "ünï"] for n in range(20)], bed.logs()
    assert sorted(int(n) for n in client.lrange("ran", 0, -1)) == sorted([*range(20), 3])
    stats = app.vtrr.stats()
    assert (stats.queued, stats.dead) == (0, 0)
    assert "Traceback" not in worker.log().replace("celery.exceptions.Retry", ""), worker.log()
    assert worker.stop() == 0


def test_an_answer_that_contains_itself_is_refused() -> None:
    answer: list[Any] = []
    answer.append(answer)
    with pytest.raises(NotImplementedError, match="16 lists within lists"):
        Queue("q").peek(1).decode(answer)


class Clock:
    """A clock that a test moves, instead of the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("takes", "calls"), [(0.0, 4), (5.0, 4), (12.0, 3), (40.0, 1), (100.0, 1)])
def test_an_enqueue_is_not_sent_again_when_the_server_may_have_forgotten_it(
    monkeypatch: pytest.MonkeyPatch, takes: float, calls: int
) -> None:
    clock, came = Clock(), list[float]()
    monkeypatch.setattr("vtrr_queue.client.time", clock)

    class Away:
        def execute_command(self, *words: object, **options: object) -> None:
            came.append(clock.now)
            clock.now += takes
            raise redis.exceptions.ConnectionError("the answer was lost")

    core = Queue("q")
    command = core.enqueue(Queue.prepare("a", [{}], task_name="t", dumps=json.dumps))
    assert command.known_for == 60
    with pytest.raises(redis.exceptions.ConnectionError):
        run(Away(), command)
    assert len(came) == calls
    # Each had its time before the first was forgotten.
    assert clock.now < 60 or len(came) == 1
    came.clear()
    assert core.stats().known_for is None
    with pytest.raises(redis.exceptions.ConnectionError):
        run(Away(), core.stats())
    assert len(came) == 4

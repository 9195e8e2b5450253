"""What the queue answers and what can be done to it: results, find, cancel, purge, dead letters, shares, modes."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import time
from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from bed import Bed
from servers import wait_for
from vtrr_queue import Purged, WrongMode

TASKS = """
FAIL = True

@vtrr.task
def work(self, *args, **kwargs):
    note("start", self, args=args)
    if args and args[0] == "wait":
        while not store.exists("go"):
            time.sleep(0.02)
    if args and args[0] == "fail" and not store.exists("mended"):
        raise ValueError("ünï " + "x" * 5000)
    if args and args[0] == "retry" and self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return ["RES", *args]
"""


@pytest.fixture
def app(bed: Bed) -> ModuleType:
    bed.store.flushall()
    return bed.load(TASKS)


def dequeue(app: Any, n: int = 1, settle: Any = (), owner: str = "owner") -> Any:
    options = {"lease": 30.0, "max_deliveries": 5, "settle": list(settle)}
    return app.vtrr._run(app.vtrr._core.dequeue(n, owner=owner, **options))[0]


def settle(app: Any, delivery: Any, how: str, delay: float = 0.0, text: bytes | None = None) -> None:
    assert app.vtrr._run(app.vtrr._core.settle([(delivery.id, delivery.token, how, delay, text)])) == ["done"]


def test_each_item_has_a_result_under_its_own_id(app: Any, bed: Bed) -> None:
    bed.worker()
    results = app.work.queue("u", [{"id": "a", "args": [1]}, {}, {"id": "c", "args": ["fail"]}, {"args": ["retry"]}])
    assert [results[0].id, results[2].id] == ["a", "c"]
    assert results[0].get(timeout=10) == ["RES", 1]
    assert results[1].get(timeout=10) == ["RES"]
    with pytest.raises(ValueError, match="ünï x"):
        results[2].get(timeout=10)
    # The id is the same over retries.
    assert results[3].get(timeout=10) == ["RES", "retry"]
    assert [it["id"] for it in bed.events("start") if it["args"] == ["retry"]] == [results[3].id] * 3
    by_id = [AsyncResult(result.id, app=app.app) for result in results]
    assert [result.state for result in by_id] == ["SUCCESS", "SUCCESS", "FAILURE", "SUCCESS"]
    bed.drained()
    assert [app.vtrr.find(result.id) is None for result in results] == [True, True, False, True]


def test_revoke_takes_a_task_out_for_good(app: Any, bed: Bed) -> None:
    results = app.work.queue("u", [{"id": str(n), "args": [n]} for n in range(4)])
    results[1].revoke()
    results[2].revoke()
    results[2].revoke()
    assert len(app.vtrr) == 2
    assert [result.state for result in results] == ["PENDING", "REVOKED", "REVOKED", "PENDING"]
    assert AsyncResult("1", app=app.app).state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        results[1].get(timeout=5)
    bed.worker("threads", 1)
    assert [result.get(timeout=10) for result in (results[0], results[3])] == [["RES", 0], ["RES", 3]]
    bed.drained()
    assert [it["args"] for it in bed.events("start")] == [[0], [3]]
    # What did not run is not charged: the same turns as without it.
    assert app.vtrr.stats().totals["cancelled"] == 2


def test_what_is_being_worked_on_is_not_cancelled_and_the_answer_says_so(app: Any, bed: Bed) -> None:
    bed.store.delete("go")
    bed.worker("threads", 1)
    (waiting,) = app.work.queue("u", [{"id": "w", "args": ["wait"]}])
    wait_for(lambda: bed.events("start"))
    (failed,) = app.work.queue("v", [{"id": "f", "args": ["fail"]}])
    assert app.vtrr.cancel(["w", "other"]) == {"w": "leased", "other": "gone"}
    assert waiting.state != "REVOKED"
    found = app.vtrr.find("w")
    assert (found.state, found.deliveries, found.partition) == ("leased", 1, "u")
    assert found.owner
    assert 0 < found.left <= 30
    bed.store.set("go", 1)
    assert waiting.get(timeout=10) == ["RES", "wait"]
    wait_for(lambda: app.vtrr.stats().dead)
    assert app.vtrr.cancel(["f"]) == {"f": "dead"}
    assert failed.state == "FAILURE"


def test_find_says_where_a_task_is(app: Any) -> None:
    find = app.vtrr.find
    app.work.queue("u", [{"id": "a", "weight": 3, "args": ["ä"]}, {"id": "b"}, {"id": 3}])
    head, waiting = find("a"), find("b")
    assert (head.state, head.start, head.left, head.weight, head.deliveries) == ("tagged", 1.0, None, 3, 0)
    assert (waiting.state, waiting.start, waiting.weight) == ("waiting", None, 1)
    assert json.loads(head.payload)["args"] == ["ä"]
    assert find(3).state == "waiting"
    first, second = dequeue(app, 2)
    settle(app, first, "retry", 60.0)
    settle(app, second, "failed", text=b"no")
    delayed, dead = find("a"), find("b")
    assert (delayed.state, delayed.deliveries) == ("delayed", 1)
    assert 50 < delayed.left <= 60
    assert (dead.state, dead.error) == ("dead", "no")
    assert find("nobody") is None


def test_stats_count_what_is_where(app: Any) -> None:
    stats = app.vtrr.stats()
    assert (stats.tagging, stats.queued, stats.totals, stats.next_due, stats.virtual_time) == (None, 0, {}, None, 0)
    app.work.queue("u", [{} for _ in range(5)])
    app.work.queue("v", [{}])
    assert len(app.vtrr) == 6
    assert bool(app.vtrr)
    deliveries = dequeue(app, 4)
    settle(app, deliveries[0], "failed", text=b"")
    settle(app, deliveries[1], "retry", 60.0)
    settle(app, deliveries[2], "ack")
    stats = app.vtrr.stats()
    assert (stats.tagging, stats.queued, stats.leased, stats.delayed, stats.dead) == ("head", 2, 1, 1, 1)
    assert stats.partitions == 1
    assert 20 < stats.next_due <= 30
    assert stats.virtual_time >= 1
    expected = {"enqueued": 6, "delivered": 4, "acked": 1}
    assert expected.items() <= stats.totals.items()
    assert repr(app.vtrr) == f"<VTRRQueue {app.NAME!r}>"


def test_purge_takes_out_what_is_queued(app: Any) -> None:
    for partition, count in (("u", 1200), ("v", 5), (7, 5)):
        app.work.queue(partition, [{"id": f"{partition}-{n}"} for n in range(count)])
    deliveries = dequeue(app, 6)
    by_partition = {it.partition: it for it in deliveries}
    settle(app, by_partition["v"], "failed", text=b"x")
    settle(app, by_partition["7"], "retry", 60.0)
    leased = [it.partition for it in deliveries if it not in (by_partition["v"], by_partition["7"])]
    assert app.vtrr.purge("u") == Purged(purged=1200 - leased.count("u"), leased=leased.count("u"), delayed=0, dead=0)
    assert app.vtrr.purge("nobody") == Purged(0, 0, 0, 0)
    assert app.vtrr.purge(7).purged == 5 - 1 - leased.count("7")
    assert app.vtrr.purge() == Purged(purged=4 - leased.count("v"), leased=4, delayed=1, dead=1)
    stats = app.vtrr.stats()
    assert (stats.queued, stats.leased, stats.delayed, stats.dead) == (0, 4, 1, 1)


def test_dead_letters_are_listed_redriven_and_discarded(bed: Bed) -> None:
    bed.store.flushall()
    # The next sweep is far away: what is redriven must be seen by itself.
    app: Any = bed.load(TASKS, sweep_interval=600)
    bed.worker("threads", 2)
    before = time.time()
    results = app.work.queue("u", [{"id": f"f{n}", "args": ["fail", n]} for n in range(4)])
    for result in results:
        result.get(timeout=10, propagate=False)
    wait_for(lambda: app.vtrr.stats().dead == 4)
    letters = app.vtrr.dead_letters()
    assert sorted(letter.id for letter in letters) == ["f0", "f1", "f2", "f3"]
    assert all(before - 5 < letter.died_at < time.time() + 5 for letter in letters)
    assert letters[0].error.startswith("ValueError: ünï xxx")
    assert (letters[0].partition, letters[0].deliveries) == ("u", 1)
    assert json.loads(letters[0].payload)["args"][0] == "fail"
    assert [it.id for it in app.vtrr.dead_letters(1, 2)] == [it.id for it in letters[1:3]]
    assert app.vtrr.discard(["f3", "nobody"]) == [True, False]
    assert app.vtrr.find("f3") is None
    bed.store.set("mended", 1)
    assert app.vtrr.redrive(["f0", "f1", "f3"]) == [True, True, False]
    # It runs without another call of `.queue()`.
    wait_for(lambda: AsyncResult("f0", app=app.app).state == AsyncResult("f1", app=app.app).state == "SUCCESS", 5)
    bed.drained()
    assert [it.id for it in app.vtrr.dead_letters()] == ["f2"]
    # A new task of a dead one's id takes its place.
    app.work.queue("u", [{"id": "f2", "args": [2]}])
    wait_for(lambda: AsyncResult("f2", app=app.app).result == ["RES", 2])
    assert app.vtrr.dead_letters() == []
    bed.store.delete("mended")


def test_a_share_acts_on_what_waits_already(app: Any) -> None:
    for partition in ("a", "b"):
        app.work.queue(partition, [{} for _ in range(60)])
    app.vtrr.set_share("a", 3)
    served = [it.partition for it in dequeue(app, 40)]
    assert abs(served.count("a") - 30) <= 1
    app.vtrr.set_share("a")
    served = [it.partition for it in dequeue(app, 20, owner="other")]
    assert abs(served.count("a") - 10) <= 1


def test_flatten_goes_back_to_the_other_mode(app: Any, bed: Bed) -> None:
    app.work.queue("u", [{"id": str(n)} for n in range(2500)])
    dequeue(app, 2)
    for _ in range(10):
        answer = app.vtrr.flatten()
        assert answer["leased"] == 2
        if not answer["in_lanes"]:
            break
    assert answer == {"in_lanes": 0, "leased": 2}
    assert app.vtrr.stats().tagging == "all"
    assert bed.store.zcard(bed.key("queue")) == bed.store.hlen(bed.key("task")) == 2498
    # A queue that asks for the other mode is told how to switch.
    with pytest.raises(WrongMode, match="flatten"):
        app.work.queue("u", [{}])
    assert app.vtrr.stats().queued == 2498
    app.vtrr.unflatten()
    app.work.queue("u", [{}])
    assert app.vtrr.stats().tagging == "head"


def test_request_ids_make_a_call_repeatable(app: Any, bed: Bed) -> None:
    first = app.work.queue("u", [{"id": "a"}, {"id": "b"}], request="r")
    again = app.work.queue("u", [{"id": "a"}, {"id": "b"}], request="r")
    assert [result.id for result in first] == [result.id for result in again]
    assert app.vtrr.stats().totals == {"enqueued": 2}


def test_a_result_can_be_made_into_a_tuple_and_back(app: Any) -> None:
    from celery.result import GroupResult, ResultSet, result_from_tuple

    results = app.work.queue("u", [{"id": "a"}, {"id": "b"}])
    assert result_from_tuple(results[0].as_tuple(), app=app.app).id == "a"
    assert ResultSet(results, app=app.app).completed_count() == 0
    assert GroupResult("g", results, app=app.app).waiting()
    assert repr(results[0]).endswith("a>")
    assert results[0] == AsyncResult("a", app=app.app)


def test_a_result_can_be_copied_and_pickled_as_celerys_can(app: Any) -> None:
    (result,) = app.work.queue("u", [{"id": "a"}])
    same = copy.copy(result)
    assert (same.id, same.vtrr, same.app) == ("a", app.vtrr, app.app)
    same.revoke()
    assert result.state == "REVOKED"
    again = pickle.loads(pickle.dumps(result))
    assert (again.id, again.state) == ("a", "REVOKED")


def test_results_that_nobody_waits_for_go_in_silence(app: Any, bed: Bed) -> None:
    """Celery's own unsubscribe each, out of the garbage collector."""
    bed.worker("threads", 1)
    app.work.queue("u", [{"args": [1]}])[0].get(timeout=20)
    results = app.work.queue("u", [{"args": [1]} for _ in range(50)])
    bed.drained()

    def unsubscribed() -> int:
        return int(bed.store.info("commandstats").get("cmdstat_unsubscribe", {"calls": 0})["calls"])

    before = unsubscribed()
    del results
    gc.collect()
    assert unsubscribed() == before

"""A task of the queue runs as itself: its own id, request, name, base class, hooks, signals, state and result."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import states
from celery.result import AsyncResult

from bed import Bed, letter_of
from items import TASKS
from servers import RedisServer, wait_for


@pytest.fixture(scope="module")
def items(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One worker for all tests of this file, with the app's results apart from other beds'."""
    with Bed(redis_server, tmp_path_factory.mktemp("items"), "items") as bed:
        bed.backend = redis_server.url(7)
        app = bed.load(TASKS, conf={"task_default_queue": "items_plain"}, max_deliveries=2, sweep_interval=1)
        bed.worker(queues=f"{bed.celery_queue},items_plain")
        yield SimpleNamespace(bed=bed, app=app, results=redis_server.client(7))


@pytest.fixture
def bed(items: Any) -> Bed:
    return items.bed


@pytest.fixture
def app(items: Any) -> ModuleType:
    return items.app


def events_of(bed: Bed, what: str, id: str) -> list[dict[str, Any]]:
    return [event for event in bed.events(what) if event["id"] == id]


def hooks_of(bed: Bed, id: str) -> list[str]:
    return [event["hook"] for event in events_of(bed, "hook", id)]


def test_an_item_has_its_own_request(bed: Bed, app: ModuleType) -> None:
    (result,) = app.work.queue("u", [{"id": "own-1", "args": [1, "two"], "kwargs": {"three": 3}}])
    assert result.get(timeout=120) == ["items.work", 1, "two"]
    (seen,) = events_of(bed, "work", "own-1")
    assert seen["task"] == "items.work"
    assert seen["args"] == [1, "two"]
    assert seen["kwargs"] == {"three": 3}
    assert seen["given"] == [[1, "two"], {"three": 3}]
    assert seen["retries"] == 0
    assert seen["correlation_id"] == seen["root_id"] == "own-1"
    assert seen["parent_id"] is None
    assert isinstance(seen["info"], dict)
    assert seen["info"]["redelivered"] is False
    assert seen["hostname"].startswith("items-1@")
    assert (seen["direct"], seen["eager"]) == (False, False)
    # No custom headers, and nothing of what marks tickets: from Celery 5.4 on it would travel with everything the item sends.
    assert not seen["headers"]
    assert not {"vtrr", "vtrr_token", "vtrr_owner"} & set(seen["ours"])


def test_generated_ids_are_the_items_too(bed: Bed, app: ModuleType) -> None:
    results = app.work.queue("u", [{"args": [i]} for i in range(5)])
    assert all(isinstance(result, AsyncResult) for result in results)
    assert [result.get(timeout=120)[1] for result in results] == list(range(5))
    assert all(len(events_of(bed, "work", result.id)) == 1 for result in results)


def test_one_result_per_task_and_duplicates_by_name(app: ModuleType) -> None:
    app.gated.queue("u", [{"id": "gate-d"}])
    wait_for(lambda: app.vtrr.find("gate-d").state == "leased")
    results = app.work.queue("u", [{"id": "twin", "args": [1]}, {"id": "twin", "args": [2]}, {"id": "gate-d"}])
    assert [result.id for result in results] == ["twin", "twin", "gate-d"]
    assert results.duplicates == ["twin", "gate-d"]
    assert [result.get(timeout=120) for result in results[:2]] == [["items.work", 1]] * 2
    app.store.rpush("gate:items", 1)
    assert results[2].get(timeout=120) == "through"


def test_started_is_seen_under_the_items_id(bed: Bed, app: ModuleType) -> None:
    (result,) = app.gated.queue("u", [{}])
    assert result.state == states.PENDING or result.state == states.STARTED
    wait_for(lambda: result.state == states.STARTED)
    app.store.rpush("gate:items", 1)
    assert result.get(timeout=120) == "through"
    assert result.state == states.SUCCESS


def test_hooks_of_the_base_class_on_success(bed: Bed, app: ModuleType) -> None:
    (result,) = app.hooked.queue("u", [{"args": ["well"]}])
    assert result.get(timeout=120) == "well"
    wait_for(lambda: len(hooks_of(bed, result.id)) == 3)
    assert hooks_of(bed, result.id) == ["before_start", "on_success", "after_return"]
    assert all(event["task"] == "items.hooked" for event in events_of(bed, "hook", result.id))


def test_hooks_of_the_base_class_on_failure(bed: Bed, app: ModuleType) -> None:
    (result,) = app.hooked.queue("u", [{"args": ["fail"]}])
    with pytest.raises(ValueError, match="as told"):
        result.get(timeout=120)
    wait_for(lambda: len(hooks_of(bed, result.id)) == 3)
    assert hooks_of(bed, result.id) == ["before_start", "on_failure", "after_return"]
    assert result.state == states.FAILURE
    letter = wait_for(lambda: letter_of(app, result.id))
    assert letter.error == "ValueError: as told"


def test_hooks_of_the_base_class_on_retry(bed: Bed, app: ModuleType) -> None:
    (result,) = app.hooked.queue("u", [{"args": ["retry"]}])
    assert result.get(timeout=120) == "retry"
    hooks = ["before_start", "on_retry", "before_start", "on_success", "after_return"]
    wait_for(lambda: len(hooks_of(bed, result.id)) == len(hooks))
    # Celery calls after_return for SUCCESS and FAILURE only.
    assert hooks_of(bed, result.id) == hooks


def test_signals_see_items_and_never_tickets(items: Any, bed: Bed, app: ModuleType) -> None:
    """And a ticket's own run leaves no result behind."""
    stored = set(items.results.keys("celery-task-meta-*"))
    before = len(bed.events())
    results = app.work.queue("u", [{"args": [i]} for i in range(10)])
    for result in results:
        result.get(timeout=120)
    bed.drained()
    ids = {result.id for result in results}
    news = bed.events()[before:]
    for what in ("prerun", "postrun", "success", "traced"):
        assert sorted(event["id"] for event in news if event["what"] == what) == sorted(ids), what
    assert all(event["task"] == "items.work" for event in news if event["what"] in ("prerun", "postrun", "traced"))
    keys = set(items.results.keys("celery-task-meta-*")) - stored
    assert keys == {f"celery-task-meta-{id}".encode() for id in ids}


def test_a_tracer_patched_after_import_is_honoured(bed: Bed, app: ModuleType) -> None:
    (result,) = app.hooked.queue("u", [{"args": ["well"]}])
    result.get(timeout=120)
    assert [event["task"] for event in events_of(bed, "traced", result.id)] == ["items.hooked"]


def test_the_state_between_two_runs_is_retry_and_revoke_ends_it(bed: Bed, app: ModuleType) -> None:
    (result,) = app.later.queue("u", [{}])
    wait_for(lambda: result.state == states.RETRY)
    found = wait_for(lambda: app.vtrr.find(result.id))
    wait_for(lambda: app.vtrr.find(result.id).state == "delayed")
    assert found.partition == "u"
    result.revoke()
    assert result.state == states.REVOKED
    assert app.vtrr.find(result.id) is None


def test_max_retries_are_the_items_own(bed: Bed, app: ModuleType) -> None:
    (few,) = app.few.queue("u", [{}])
    (many,) = app.many.queue("u", [{}])
    for result in (few, many):
        with pytest.raises(RuntimeError):
            result.get(timeout=120)
    assert [event["retries"] for event in events_of(bed, "few", few.id)] == [0, 1]
    assert [event["retries"] for event in events_of(bed, "many", many.id)] == [0, 1, 2, 3, 4]
    assert wait_for(lambda: letter_of(app, many.id)).error == "RuntimeError: many"


def test_expected_errors_are_logged_as_such(bed: Bed, app: ModuleType) -> None:
    (result,) = app.throws.queue("u", [{}])
    with pytest.raises(KeyError):
        result.get(timeout=120)
    wait_for(lambda: f"items.throws[{result.id}] raised expected: KeyError" in bed.workers[0].log())


def test_an_error_without_words_is_an_error_too(bed: Bed, app: ModuleType) -> None:
    (result,) = app.mute.queue("u", [{}])
    wait_for(lambda: result.state == states.FAILURE)
    assert wait_for(lambda: letter_of(app, result.id)).error.startswith("Mute: ")
    assert len(events_of(bed, "mute", result.id)) == 1


def test_ignore_leaves_the_state_alone(bed: Bed, app: ModuleType) -> None:
    (result,) = app.ignored.queue("u", [{}])
    wait_for(lambda: events_of(bed, "postrun", result.id))
    bed.drained()
    assert result.state == states.PENDING
    assert app.vtrr.find(result.id) is None


def test_reject_is_a_dead_letter(bed: Bed, app: ModuleType) -> None:
    (result,) = app.rejected.queue("u", [{"args": [False]}])
    letter = wait_for(lambda: letter_of(app, result.id))
    assert "not mine" in letter.error
    assert len(events_of(bed, "rejected", result.id)) == 1


def test_reject_with_requeue_runs_again(bed: Bed, app: ModuleType) -> None:
    (result,) = app.rejected.queue("u", [{"args": [True]}])
    # More often than max_deliveries: nobody is to blame.
    assert result.get(timeout=120) == "in the end"
    assert len(events_of(bed, "rejected", result.id)) == 3
    assert letter_of(app, result.id) is None


@pytest.mark.parametrize("exits", [True, False])
def test_what_is_no_exception_ends_the_process_not_the_queue(bed: Bed, app: ModuleType, exits: bool) -> None:
    (odd,) = app.odd.queue("u", [{"args": [exits]}])
    others = app.work.queue("v", [{"args": [i]} for i in range(3)])
    for result in others:
        result.get(timeout=120)
    letter = wait_for(lambda: letter_of(app, odd.id))
    assert "worker lost" in letter.error or (not exits and "Odd" in letter.error)
    # max_deliveries=2
    assert len(events_of(bed, "odd", odd.id)) == 2
    bed.drained()


def test_what_an_item_queues_is_its_child(bed: Bed, app: ModuleType) -> None:
    (result,) = app.parent.queue("u", [{"id": "mother"}])
    assert result.get(timeout=120) == "mother-child"
    (seen,) = wait_for(lambda: events_of(bed, "work", "mother-child"))
    assert (seen["parent_id"], seen["root_id"]) == ("mother", "mother")
    # The next ticket is no child of the item that was running when it was sent.
    assert not result.children


def test_no_result_where_none_is_wanted(items: Any, bed: Bed, app: ModuleType) -> None:
    (result,) = app.silent.queue("u", [{}])
    wait_for(lambda: events_of(bed, "silent", result.id))
    bed.drained()
    assert not items.results.exists(f"celery-task-meta-{result.id}")


def test_plain_calls_run_past_the_queue(bed: Bed, app: ModuleType) -> None:
    """`delay` of a task without arguments is no ticket, however much it looks like one."""
    enqueued = app.vtrr.stats().totals.get("enqueued", 0)
    plain = [app.no_arguments.delay(), app.no_arguments.apply_async(), app.no_arguments.si().apply_async()]
    assert [result.get(timeout=120) for result in plain] == [result.id for result in plain]
    assert app.work.delay("x").get(timeout=120) == ["items.work", "x"]
    retried = app.hooked.delay("retry")
    assert retried.get(timeout=120) == "retry"
    assert app.vtrr.stats().totals.get("enqueued", 0) == enqueued

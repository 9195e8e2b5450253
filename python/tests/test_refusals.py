"""A result backend that refuses a state is not away: the body runs once. One that is away is waited for, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from celery import states

from bed import Bed, ends, letter_of, starts
from postgres import Postgres
from servers import RedisServer, wait_for

TASKS = """
from celery.exceptions import Reject

@vtrr.task
def bad(self, text):
    note("start", self)
    raise ValueError(text)

@vtrr.task
def good(self):
    note("start", self)
    note("end", self)
    return "fine"

@vtrr.task
def rejects(self, text):
    note("start", self)
    raise Reject(text, requeue=False)

@app.task(bind=True)
def plain(self, text):
    note("start", self)
    raise ValueError(text)
"""

NUL = "line 1: unexpected byte \\0 in input"
LONG = "x" * 200


@pytest.fixture
def app(bed: Bed, postgres: Postgres) -> Any:
    bed.backend = postgres.url
    return bed.load(TASKS, sweep_interval=1, conf={"task_default_queue": bed.celery_queue})


def state(postgres: Postgres, id: str) -> str:
    return postgres.sql(f"select status from celery_taskmeta where task_id = '{id}'")


def test_a_text_that_the_backend_refuses_is_stored_cleaned_and_the_task_runs_once(bed: Bed, app: Any, postgres: Postgres) -> None:
    text = NUL.encode().decode("unicode_escape")
    bed.worker(concurrency=1)
    plain = app.plain.delay(text)
    (result,) = app.bad.queue("u", [{"args": [text]}])
    wait_for(lambda: result.ready() and plain.ready())
    bed.drained()
    assert (len(starts(bed, plain.id)), len(starts(bed, result.id))) == (1, 1), "as in plain Celery"
    assert isinstance(result.result, ValueError)
    assert str(result.result) == text.replace("\0", "\ufffd")
    letter = letter_of(app, result.id)
    assert (letter.cause, letter.deliveries) == ("failed", 1)
    assert "it was stored with its text cleaned and cut" in bed.workers[0].log()


def test_a_rejection_that_the_backend_refuses_is_stored_cleaned(bed: Bed, app: Any, postgres: Postgres) -> None:
    bed.worker(concurrency=1)
    (result,) = app.rejects.queue("u", [{"args": ["\0"]}])
    wait_for(lambda: result.ready())
    assert (result.state, len(starts(bed, result.id)), letter_of(app, result.id).cause) == ("FAILURE", 1, "rejected")


def test_an_id_that_the_backend_refuses_runs_once_and_is_a_dead_letter_that_says_so(
    bed: Bed, app: Any, postgres: Postgres
) -> None:
    bed.worker(concurrency=1)
    app.good.queue("u", [{"id": LONG}])
    wait_for(lambda: letter_of(app, LONG))
    letter = letter_of(app, LONG)
    assert (letter.cause, letter.deliveries) == ("backend", 1)
    assert "takes no state of" in letter.error
    # The sweep tries once to tell of it, and others have their states.
    (other,) = app.good.queue("v", [{}])
    assert other.get(timeout=120) == "fine"
    bed.drained()
    assert len(starts(bed, LONG)) == 1
    wait_for(lambda: bed.workers[0].log().count("takes no state of") >= 2)
    assert postgres.sql("select count(*) from celery_taskmeta") == "1", "no probe is left"


def test_while_the_backend_is_away_a_task_runs_again_and_is_charged(bed: Bed, app: Any, postgres: Postgres) -> None:
    bed.worker(concurrency=1)
    (first,) = app.good.queue("u", [{}])
    assert first.get(timeout=120) == "fine"
    postgres.stop()
    app.good.queue("u", [{"id": "t"}])
    wait_for(lambda: len(starts(bed, "t")) >= 2)
    wait_for(lambda: bed.state()["delayed"] == 1)
    found = app.vtrr.find("t")
    postgres.start()
    bed.drained()
    assert state(postgres, "t") == "SUCCESS"
    assert app.vtrr.stats().dead == 0
    # Charged as retries are: they come back unpaid. And it is known how long that has gone on.
    assert app.vtrr.stats().totals["retried"] == len(starts(bed, "t")) - 1
    assert b'"waited_for_backend":15.0' in found.payload


def test_who_waits_for_the_backend_for_too_long_is_a_dead_letter_and_told_of_when_it_is_back(
    bed: Bed, postgres: Postgres
) -> None:
    bed.backend = postgres.url
    app = bed.load(TASKS, sweep_interval=1, result_patience=5)
    bed.worker(concurrency=1)
    (first,) = app.good.queue("u", [{}])
    assert first.get(timeout=120) == "fine"
    postgres.stop()
    app.good.queue("u", [{"id": "t"}])
    wait_for(lambda: letter_of(app, "t"))
    letter = letter_of(app, "t")
    assert (letter.cause, len(ends(bed))) == ("backend", 3), "it ran, waited 5 s, and ran again"
    assert "after 5 s of waiting" in letter.error
    postgres.start()
    wait_for(lambda: state(postgres, "t") == "FAILURE")


BACK = """
@vtrr.task
def planned(self):
    raise ValueError("planned")

from celery.signals import task_internal_error

@task_internal_error.connect
def wait(**_):
    # The backend was away for the task's own state, and is back when Celery makes a failure of that.
    if store.incr("away:" + NAME) == 1:
        gates.blpop("gate:" + NAME, timeout=600)
"""


@pytest.mark.parametrize(("kind", "state", "error"), [("good", "SUCCESS", ""), ("planned", "FAILURE", "ValueError: planned")])
def test_a_backend_that_is_back_before_celery_has_made_a_failure_of_its_absence_gets_the_tasks_own_state(
    bed: Bed, server: RedisServer, kind: str, state: str, error: str
) -> None:
    bed.backend = server.url()
    policy = {"retry_policy": {"max_retries": 1, "interval_start": 0.1}}
    app = bed.load(TASKS + BACK, sweep_interval=1, conf={"result_backend_transport_options": policy})
    bed.worker(concurrency=1)
    server.stop()
    (result,) = getattr(app, kind).queue("u", [{"id": "t"}])
    wait_for(lambda: bed.store.exists(f"away:{bed.name}"))
    server.start()
    bed.store.rpush(f"gate:{bed.name}", 1)
    bed.drained()
    assert wait_for(lambda: result.state in states.READY_STATES and result.state) == state
    assert [letter.error for letter in app.vtrr.dead_letters()] == ([error] if error else [])

"""The Django section of 0.1.0's README, in a real project; and `queue_on_commit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import django_project
from django_project import SCRIPT
from project import Project
from servers import RedisServer

pytest.importorskip("django_redis")


@pytest.fixture
def project(redis_server: RedisServer, tmp_path: Path) -> Iterator[Project]:
    with Project(redis_server, tmp_path) as project:
        django_project.write(project)
        yield project


UPLOAD = """
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
user = User.objects.create_user("ann")
client = Client()
client.force_login(user)
files = [SimpleUploadedFile(name, b"content") for name in ("a.pdf", "b.pdf", "broken.pdf")]
response = client.post("/upload/", {"files": files, "dataset_id": "d_1"})
"""


def test_uploads_are_queued_by_the_view_and_run_by_a_worker(project: Project) -> None:
    answer = project.ask(SCRIPT + UPLOAD, "[response.status_code, response.json(), user.id, len(vtrr)]")
    user_id = answer[2]
    assert answer == [200, {"queued": 3}, user_id, 3]
    assert project.store.zcard("vtrr:files:queue") == 1
    assert list(project.store.hgetall("vtrr:files:partition_virtual_time")) == [str(user_id)]
    assert project.broker.llen("vtrr_queue") == 3
    django_project.start_worker(project)
    project.wait_for_events("failure", 1)
    project.drained()
    runs = project.events("run")
    assert sorted(run["file_key"] for run in runs) == ["a.pdf", "b.pdf", "broken.pdf"]
    assert all(run["task_id"] == run["id"] and run["dataset_id"] == "d_1" for run in runs)
    (failure,) = project.events("failure")
    assert failure["id"] == next(run["id"] for run in runs if run["file_key"] == "broken.pdf")


def test_results_come_back_and_views_may_be_called_directly(project: Project) -> None:
    django_project.start_worker(project)
    source = """
from django.test import RequestFactory
from django.core.files.uploadedfile import SimpleUploadedFile
from myapp.views import UploadView
user = User.objects.create_user("bob")
request = RequestFactory().post("/upload/", {"files": [SimpleUploadedFile("c.pdf", b"c")], "dataset_id": "d_2"})
request.user = user
response = UploadView.as_view()(request)
(result,) = greet.queue(user.id, [{"args": [user.id]}])
"""
    assert project.ask(SCRIPT + source, "[json.loads(response.content), result.get(timeout=120)]") == [
        {"queued": 1},
        ["bob"],
    ]
    (run,) = project.wait_for_events("run", 1)
    assert (run["file_key"], run["dataset_id"]) == ("c.pdf", "d_2")
    answer = project.ask(SCRIPT, f"process_upload.AsyncResult({run['id']!r}).get(timeout=120)")
    assert answer == "c.pdf"


def test_what_is_queued_on_commit_is_stored_after_it(project: Project) -> None:
    django_project.start_worker(project)
    source = """
seen = []
with transaction.atomic():
    user = User.objects.create_user("carl")
    assert greet.queue_on_commit(user.id, [{"args": [user.id], "id": "greeting"}]) is None
    seen.append(vtrr.find("greeting"))
    with transaction.atomic():
        greet.queue_on_commit(user.id, iter([{"args": [user.id], "id": "inner"}]))
    seen.append(vtrr.find("inner"))
    seen.append(vtrr.stats().totals.get("enqueued", 0))
seen.append(vtrr.stats().totals["enqueued"])
"""
    results = "[greet.AsyncResult(id).get(timeout=120) for id in ('greeting', 'inner')]"
    # The row is there when the task runs.
    assert project.ask(SCRIPT + source, f"[seen, {results}]") == [[None, None, 0, 2], [["carl"], ["carl"]]]


def test_what_is_queued_on_commit_is_gone_with_a_rollback(project: Project) -> None:
    source = """
seen = []
try:
    with transaction.atomic():
        user = User.objects.create_user("dora")
        greet.queue_on_commit(user.id, [{"args": [user.id]}])
        raise KeyError
except KeyError:
    seen.append(vtrr.stats().queued)
with transaction.atomic():
    greet.queue_on_commit("u", [{"args": [1], "id": "outer"}])
    try:
        with transaction.atomic():
            greet.queue_on_commit("u", [{"args": [2], "id": "rolled back"}])
            raise KeyError
    except KeyError:
        pass
seen += [vtrr.stats().queued, vtrr.find("outer").state, vtrr.find("rolled back")]
"""
    assert project.ask(SCRIPT + source, "seen") == [0, 1, "tagged", None]
    assert project.broker.llen("vtrr_queue") == 1


def test_without_a_transaction_it_is_queued_at_once_and_using_names_the_database(project: Project) -> None:
    source = """
seen = []
greet.queue_on_commit("u", [{"args": [1]}])
seen.append(vtrr.stats().queued)
with transaction.atomic():
    greet.queue_on_commit("u", [{"args": [1]}], using="other")
    seen.append(vtrr.stats().queued)
with transaction.atomic(using="other"):
    greet.queue_on_commit("u", [{"args": [1]}], using="other")
    seen.append(vtrr.stats().queued)
seen.append(vtrr.stats().queued)
with transaction.atomic():
    greet.queue("u", [{"args": [1]}])
    seen.append(vtrr.stats().queued)
"""
    # And `queue` waits for nothing.
    assert project.ask(SCRIPT + source, "seen") == [1, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("'u', [{'args': []}]", "TypeError"),
        ("'u', [{'args': [1], 'weight': 0}]", "ValueError"),
        ("'u', [{'args': [object()]}]", "TypeError"),
        ("'', [{'args': [1]}]", "ValueError"),
        ("'u', [{'args': [1], 'wieght': 1}]", "TypeError"),
    ],
)
def test_bad_arguments_are_refused_at_the_call_not_at_the_commit(project: Project, call: str, error: str) -> None:
    source = f"""
seen = []
with transaction.atomic():
    user = User.objects.create_user("eve")
    try:
        greet.queue_on_commit({call})
    except (TypeError, ValueError) as error:
        seen.append(isinstance(error, {error}))
    greet.queue_on_commit("u", [{{"args": [1]}}])
seen += [vtrr.stats().queued, User.objects.count()]
"""
    assert project.ask(SCRIPT + source, "seen") == [True, 1, 1]


def test_arguments_are_taken_as_they_are_at_the_call(project: Project) -> None:
    source = """
task = {"args": [1], "id": "one"}
with transaction.atomic():
    greet.queue_on_commit("u", [task])
    task["args"].append("too many")
    task["id"] = "another"
"""
    payload = project.ask(SCRIPT + source, "json.loads(vtrr.find('one').payload)")
    assert payload["args"] == [1]

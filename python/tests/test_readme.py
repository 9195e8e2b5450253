"""0.1.0's README holds word for word: its code, its commands, its tables. What it leaves out is in `readme_project`."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import readme_project
import reference
from project import Project
from readme_project import ENQUEUE, QUEUES, SETUP, WORKER, adapt, commands
from servers import RedisServer, wait_for

PROCESS_FILE = "myapp.tasks.process_file"


@pytest.fixture
def project(redis_server: RedisServer, tmp_path: Path) -> Iterator[Project]:
    with Project(redis_server, tmp_path) as project:
        readme_project.write(project, *SETUP)
        yield project


def enqueue(project: Project, tasks: list[dict[str, Any]], partition: str = "u_1") -> list[str]:
    """Queues tasks of `process_file` by a producer of its own; answers their ids."""
    source = f"from myapp.tasks import process_file\nresults = process_file.queue({partition!r}, {tasks!r})"
    ids: list[str] = project.ask(source, "[result.id for result in results]")
    return ids


def files(number: int, **more: Any) -> list[dict[str, Any]]:
    return [{"args": [f"s3://bucket/{i}.pdf"], "kwargs": {"dataset_id": "d"}, **more} for i in range(number)]


@pytest.mark.parametrize("text", [old for old, _, _ in readme_project.REPLACED])
def test_what_is_replaced_is_in_the_readme(text: str) -> None:
    assert text in reference.readme()


def test_the_tasks_of_the_readme_run(project: Project) -> None:
    (command,) = commands(WORKER)
    project.start(command)
    (block,) = reference.blocks(ENQUEUE)
    project.run(block)
    runs = sorted(project.wait_for_events("run", 3), key=lambda run: run["file_key"])
    project.drained()
    assert [(run["file_key"], run["dataset_id"], run["force_ocr"]) for run in runs] == [
        ("s3://bucket/a.pdf", "d_1", True),
        ("s3://bucket/b.pdf", "d_2", False),
        ("s3://bucket/c.pdf", "d_3", False),
    ]
    assert len(project.events("run")) == 3
    for run in runs:
        assert run["task_id"] == run["id"]
        assert uuid.UUID(run["id"])
        assert run["task"] == PROCESS_FILE
    assert len({run["id"] for run in runs}) == 3


def test_a_transient_error_is_retried_after_its_countdown_and_a_failure_is_logged_by_the_base(project: Project) -> None:
    project.start(*commands(WORKER))
    keys = ["s3://bucket/transient.pdf", "s3://bucket/broken.pdf", "s3://bucket/fine.pdf"]
    tasks = [{"args": [key], "kwargs": {"dataset_id": "d", "force_ocr": True}} for key in keys]
    transient, broken, fine = enqueue(project, tasks)
    runs = project.wait_for_events("run", 4)
    project.drained()
    first, again = [run for run in runs if run["id"] == transient]
    assert (first["retries"], again["retries"]) == (0, 1)
    assert again["at"] - first["at"] >= 10
    assert project.log().count(": Retry in 10s") == 1
    for run in (first, again):
        assert (run["task_id"], run["dataset_id"], run["force_ocr"]) == (transient, "d", True)
    assert [run["id"] for run in runs].count(broken) == [run["id"] for run in runs].count(fine) == 1
    (failure,) = project.events("failure")
    assert (failure["id"], failure["task"]) == (broken, PROCESS_FILE)
    assert "ValueError" in failure["error"]


def test_results_come_back_and_the_names_of_the_readme_work_without_a_backend_too(project: Project) -> None:
    project.start(*commands(WORKER))
    source = f"from myapp.tasks import process_file\nresults = process_file.queue('u', {files(2)!r})"
    assert project.ask(source, "[result.get(timeout=120) for result in results]") == [
        "s3://bucket/0.pdf",
        "s3://bucket/1.pdf",
    ]
    vtrr = (project.folder / "myapp/vtrr.py").read_text()
    without = vtrr.replace(f", backend={project.server.url(1)!r}", "")
    assert without != vtrr
    project.write({"myapp/vtrr.py": without})
    assert len(enqueue(project, files(2))) == 2
    project.wait_for_events("run", 4)


def test_the_keys_are_those_of_the_table(project: Project) -> None:
    tables = {row[0].strip("`").format(name="files"): row[1] for row in reference.table("Redis keys")}
    assert len(tables) == 4
    enqueue(project, files(3, weight=2), "u_1")
    enqueue(project, [{**files(1)[0], "id": "mine"}], "u_2")
    types = {"Sorted Set": "zset", "String": "string", "Hash": "hash"}
    there = {key: project.store.type(key) for key in project.store.keys("vtrr:files:*")}
    # V is written by the first dequeue.
    for key, kind in tables.items():
        assert there.get(key) == types[kind] or key.endswith("current_virtual_time"), key
    assert all(key.startswith("vtrr:files:") for key in project.store.scan_iter())
    assert project.store.zscore("vtrr:files:queue", "mine") == 1
    assert '"task_name":"myapp.tasks.process_file"' in project.store.hget("vtrr:files:task", "mine").replace(" ", "")
    assert set(project.store.hgetall("vtrr:files:partition_virtual_time")) == {"u_1", "u_2"}
    project.start(*commands(WORKER))
    project.wait_for_events("run", 4)
    project.drained()
    assert float(project.store.get("vtrr:files:current_virtual_time") or 0) == 0
    assert not project.store.exists("vtrr:files:queue", "vtrr:files:partition_virtual_time", "vtrr:files:task")


@pytest.mark.parametrize(("calls", "messages"), [([3], 3), ([20], 8), ([8], 8), ([3, 3], 6), ([6, 6], 8), ([20, 5], 8)], ids=str)
def test_as_many_messages_are_sent_as_the_readme_says(project: Project, calls: list[int], messages: int) -> None:
    """`min(max_concurrency - workers_already_queued, num_tasks_just_enqueued)`, with `max_concurrency=8`."""
    source = "from myapp.tasks import process_file\n"
    source += "".join(f"process_file.queue('u', {files(number)!r})\n" for number in calls)
    project.run(source)
    assert project.broker.llen("vtrr_queue") == messages
    project.start(*commands(WORKER))
    project.wait_for_events("run", sum(calls))
    project.drained()
    assert len(project.events("run")) == sum(calls)


# A queue of its own for a worker with one process, whose order can be seen.
ORDERED = """
@vtrr.task
def ordered(self, tag):
    note("run", tag=tag, virtual_time=float(vtrr.redis_client.get("vtrr:files:current_virtual_time") or 0))
"""


@pytest.mark.parametrize(
    ("first", "tags"),
    [
        ({"weight": 3}, {"A1": 1, "B1": 1, "B2": 2, "B3": 3, "A2": 4}),
        ({}, {"A1": 1, "B1": 1, "A2": 2, "B2": 2, "B3": 3}),
    ],
    ids=["weight 3", "default 1"],
)
def test_a_weight_yields_turns_to_other_partitions(project: Project, first: dict[str, int], tags: dict[str, float]) -> None:
    """And the virtual time is that of the task dequeued last: this one or a later one, or 0 after the last one."""
    tasks = project.folder / "myapp/tasks.py"
    tasks.write_text(tasks.read_text() + "\nfrom notes import note\n" + ORDERED)
    source = f"""
from myapp.tasks import ordered
ordered.queue(partition_key="A", tasks=[dict(id="a1", args=["A1"], **{first!r}), dict(id="a2", kwargs=dict(tag="A2"))])
ordered.queue(partition_key="B", tasks=[dict(id=f"b{{i}}", args=[f"B{{i}}"]) for i in (1, 2, 3)])
"""
    project.run(source)
    project.start(commands(WORKER)[0].replace("--concurrency=8", "--concurrency=1"))
    runs = project.wait_for_events("run", 5)
    assert [run["tag"] for run in runs] == list(tags)
    assert runs[0]["virtual_time"] == 1
    for run in runs:
        assert run["virtual_time"] in {0, *(tag for tag in tags.values() if tag >= tags[run["tag"]])}


def test_ids_are_those_given_and_else_uuids(project: Project) -> None:
    given, generated = enqueue(project, [{**files(1)[0], "id": "order-17"}, files(1)[0]])
    assert given == "order-17"
    assert str(uuid.UUID(generated)) == generated
    project.start(*commands(WORKER))
    assert {run["task_id"] for run in project.wait_for_events("run", 2)} == {given, generated}


def two_queues(project: Project) -> str:
    """The README's two queues, with a task each; answers a script that queues three tasks in each."""
    (block,) = reference.blocks(QUEUES)
    source = (project.folder / "myapp/vtrr.py").read_text()
    source += "\nredis_client = vtrr.redis_client\n" + adapt(block, project.server)
    tasks = "from myapp.vtrr import files_vtrr, search_vtrr\nfrom notes import note\n"
    tasks += "@files_vtrr.task\ndef file(self, n):\n    note('file', n=n)\n"
    tasks += "@search_vtrr.task\ndef search(self, n):\n    note('search', n=n)\n"
    project.write({"myapp/vtrr.py": source, "myapp/tasks.py": tasks})
    calls = [f"{name}.queue('u', [dict(args=[n]) for n in range(6)])" for name in ("file", "search")]
    return "\n".join(["from myapp.tasks import file, search", *calls])


def test_several_queues_have_a_celery_queue_each(project: Project) -> None:
    project.run(two_queues(project))
    assert (project.broker.llen("vtrr_files"), project.broker.llen("vtrr_search")) == (6, 4)
    files_worker, search_worker = commands(QUEUES)
    project.start(files_worker)
    project.wait_for_events("file", 6)
    project.drained("files")
    assert not project.events("search")
    assert project.broker.llen("vtrr_search") == 4
    project.start(search_worker)
    project.wait_for_events("search", 6)
    project.drained("search")
    assert sorted(run["n"] for run in project.events("file")) == sorted(run["n"] for run in project.events("search"))


def test_one_pool_may_serve_several_queues(project: Project) -> None:
    source = two_queues(project)
    project.start(commands(WORKER)[0].replace("-Q vtrr_queue", "-Q vtrr_files,vtrr_search"))
    project.run(source)
    assert len(project.wait_for_events("file", 6)) == len(project.wait_for_events("search", 6)) == 6


LIMITED = """
import time
from notes import note

@vtrr.task(soft_time_limit=1)
def soft(self):
    from celery.exceptions import SoftTimeLimitExceeded
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        note("soft")

@vtrr.task(time_limit=1)
def hard(self):
    note("hard")
    while True:
        pass

@vtrr.task(autoretry_for=(KeyError,), max_retries=2, retry_backoff=True, retry_jitter=False, retry_backoff_max=1)
def backoff(self):
    note("backoff", retries=self.request.retries)
    raise KeyError("again")

@vtrr.task(autoretry_for=(KeyError,), retry_kwargs={"countdown": 1, "max_retries": 1})
def kwargs(self):
    note("kwargs", retries=self.request.retries)
    raise KeyError("again")

@vtrr.task(default_retry_delay=1, max_retries=1)
def delay(self):
    note("delay", retries=self.request.retries)
    raise self.retry(exc=KeyError("again"))
"""


def test_options_do_what_the_table_says(project: Project) -> None:
    tasks = project.folder / "myapp/tasks.py"
    tasks.write_text(tasks.read_text() + LIMITED)
    project.start(*commands(WORKER))
    source = "from myapp.tasks import soft, hard, backoff, kwargs, delay\n"
    source += "results = [task.queue(task.name, [{}])[0] for task in (soft, hard, backoff, kwargs, delay)]"
    states = project.ask(source, "[repr(result.get(timeout=120, propagate=False)) for result in results]")
    assert states[0] == "None"
    assert "TimeLimitExceeded" in states[1]
    assert all("KeyError" in state for state in states[2:])
    assert len(project.events("soft")) == len(project.events("hard")) == 1
    for name, retries in (("backoff", 2), ("kwargs", 1), ("delay", 1)):
        runs = project.events(name)
        assert [run["retries"] for run in runs] == list(range(retries + 1)), name
        for earlier, later in itertools.pairwise(runs):
            assert later["at"] - earlier["at"] >= 1, name
    assert project.log().count(": Retry in 1s") == 4
    wait_for(lambda: not project.store.exists("vtrr:files:lease", "vtrr:files:delayed"))

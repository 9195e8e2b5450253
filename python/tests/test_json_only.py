"""Tasks are JSON: nothing that somebody writes into Redis or the broker is unpickled or run as code."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vtrr_queue
from bed import WORK, Bed, ends, letter_of
from servers import wait_for

MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "jsonpickle", "marshal", "shelve", "yaml", "code", "codeop", "runpy",
    "ctypes",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__"}


def unsafe(source: str) -> Iterator[str]:
    """What makes objects or code of bytes, or asks Celery to."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (it.name for it in node.names if it.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(it.name for it in node.names)]
            yield from (name for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.func.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES:
            yield node.value


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from kombu.utils import pickle", "import os, yaml", "exec('1')", "send(serializer='pickle')"],
)
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert list(unsafe(source)) != []


def test_the_package_neither_unpickles_nor_evaluates() -> None:
    files = sorted(Path(vtrr_queue.__file__).parent.glob("**/*.py"))
    assert len(files) > 20
    assert {file.name: found for file in files if (found := list(unsafe(file.read_text())))} == {}


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def test_the_bomb_goes_off_where_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "here"))).close()
    assert (tmp_path / "here").exists()


@pytest.mark.parametrize("mark", ["ticket", "bound", "call", None])
def test_a_pickled_message_is_refused(bed: Bed, mark: str | None) -> None:
    """By Celery, whose `accept_content` is JSON unless the app says otherwise; whatever it claims to be."""
    app = bed.load(WORK, sweep_interval=1)
    bomb = Bomb(bed.folder / "bomb")
    headers = {"vtrr": mark, "vtrr_token": "1-1"} if mark else {}
    app.app.send_task(
        app.work.name, (bomb,), {"bomb": bomb}, queue=bed.celery_queue, serializer="pickle", headers=headers, ignore_result=True
    )
    worker = bed.worker(concurrency=1)
    wait_for(lambda: "Refusing to deserialize" in worker.log())
    app.work.queue("u", [{"id": "t0"}])
    bed.drained()
    assert ends(bed) == ["t0"]
    assert not bomb.path.exists()


def test_a_pickled_task_is_set_aside(bed: Bed) -> None:
    app = bed.load(WORK, sweep_interval=1)
    bombs = {}
    for id in ("head", "lane"):
        app.work.queue("u", [{"id": id}])
    app.work.queue("v", [{"id": "good"}])
    for number, (key, id) in enumerate((("task", "head"), ("task", "theirs"))):
        bombs[id] = Bomb(bed.folder / f"bomb{number}")
        bed.store.hset(bed.key(key), id, pickle.dumps(bombs[id], protocol=number * 4))
    bed.store.zadd(bed.key("queue"), {"theirs": 0.5})
    bed.worker(concurrency=1)
    for id in bombs:
        assert "unreadable payload" in wait_for(lambda id=id: letter_of(app, id)).error
    bed.drained()
    assert {"lane", "good"} == set(ends(bed))
    assert not any(bomb.path.exists() for bomb in bombs.values())

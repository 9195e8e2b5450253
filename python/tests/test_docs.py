"""What docs/ tells people to write, word for word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bed import WORK, Bed
from docs import block
from project import Project
from proxy import Proxy
from servers import ROOT, RedisServer

REST_OF_SETTINGS = """
SECRET_KEY = "of the tests"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
USE_TZ = True
"""


def files(text: str) -> dict[str, str]:
    """The files of a block: each begins with its path in a comment."""
    parts = re.split(r"^# (\S+\.py)\b.*\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture
def project(redis_server: RedisServer, tmp_path: Path) -> Iterator[Project]:
    with Project(redis_server, tmp_path) as project:
        yield project


def test_the_files_of_a_django_project_run(project: Project) -> None:
    pytest.importorskip("django_redis")
    found = files(
        block("docs/celery.md", "# myproject/settings.py").replace("localhost:6379", f"127.0.0.1:{project.server.port}")
    )
    assert sorted(found) == [
        "myapp/tasks.py",
        "myapp/vtrr.py",
        "myproject/__init__.py",
        "myproject/celery.py",
        "myproject/settings.py",
    ]
    found["myproject/settings.py"] += REST_OF_SETTINGS
    found["myapp/tasks.py"] = found["myapp/tasks.py"].replace("    ...\n", "    return upload_id\n")
    project.write({"myapp/__init__.py": "", **found})
    project.start(block("docs/celery.md", "celery -A myproject").strip())
    source = """
import myproject.celery, django
django.setup()
from django.db import transaction
from myapp.tasks import process_upload
from myapp.vtrr import vtrr
with transaction.atomic():
    process_upload.queue_on_commit("anna", [{"args": [1]}])
    before = vtrr.stats().totals
values = [it.get(timeout=120) for it in process_upload.queue("anna", [{"args": [2]}])]
"""
    assert project.ask(source, "[before, values, vtrr.stats().totals['enqueued']]") == [{}, [2], 2]
    assert project.store.exists("vtrr:files:meta"), "LOCATION names the database"


def test_a_call_is_finished_through_an_outage_as_told(bed: Bed) -> None:
    app = bed.load(WORK)
    scope: dict[str, object] = {}
    exec(block("docs/production.md", "# surely.py"), scope)
    tasks = [{"kwargs": {"seconds": 0}} for _ in range(2500)]
    with Proxy(bed.server.port) as proxy:
        app.vtrr.redis_client = redis.Redis(port=proxy.port, db=3, retry=Retry(NoBackoff(), 0))
        app.vtrr.redis_client.ping()
        proxy.lose(2)
        results = scope["queue_surely"](app.work, "anna", tasks)  # type: ignore[operator]
        assert proxy.lost == 1
    assert len({it.id for it in results}) == 2500
    assert app.vtrr.find(results[-1].id).state == "waiting"
    assert (bed.state()["queued"], app.vtrr.stats().totals) == (2500, {"enqueued": 2500})


@pytest.mark.parametrize(
    "page", [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path) if path else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", it.lower()).replace(" ", "-") for it in headings], target

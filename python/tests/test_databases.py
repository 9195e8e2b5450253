"""Results in a database that closes its connections, as a restart, a failover or an idle timeout does: the states that a
worker's main process gives come all the same, as often as that happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bed import Bed
from postgres import Postgres
from project import Project
from servers import RedisServer, wait_for

# What only the main process can tell: a lost process, a hard limit, a task that is revoked while it waits or runs.
BODIES = """
import os, time

@vtrr.task
def fine(self):
    return 1

@vtrr.task
def dies(self):
    os.kill(os.getpid(), 9)

@vtrr.task(time_limit=1)
def hangs(self):
    time.sleep(60)

@vtrr.task(time_limit=300)
def waits(self):
    store.rpush("waits", self.request.id)
    while not store.exists("go"):
        time.sleep(0.05)
"""

SETTINGS = """
SECRET_KEY = "of the tests"
USE_TZ = True
INSTALLED_APPS = ["myapp", "django_celery_results"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.postgresql",
        "NAME": {database!r},
        "USER": {user!r},
        "HOST": "127.0.0.1",
        "PORT": {port},
    }}
}}
CELERY_BROKER_URL = {broker!r}
CELERY_RESULT_BACKEND = "django-db"
"""

FILES = {
    "myproject/__init__.py": "from .celery import app as celery_app\n",
    "myproject/celery.py": """
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "myproject.settings")
app = Celery("myproject")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
""",
    "myapp/__init__.py": "",
}

TASKS = """
import redis
from myproject.celery import app
from vtrr_queue import VTRRQueue
store = redis.Redis.from_url({store!r})
vtrr = VTRRQueue(redis_client=store, celery_app=app, name="files", max_deliveries=1, sweep_interval=0.5)
"""

SCRIPT = """
import myproject.celery
import django
django.setup()
from myapp.tasks import *
"""


class Site:
    """Results of a Django project, by django-celery-results."""

    def __init__(self, project: Project, postgres: Postgres) -> None:
        self.project, self.postgres, self.store = project, postgres, project.store
        settings = SETTINGS.format(
            database=postgres.DATABASE, user=postgres.USER, port=postgres.port, broker=project.server.url(0)
        )
        tasks = TASKS.format(store=project.server.url(3)) + BODIES
        project.write({**FILES, "myproject/settings.py": settings, "myapp/tasks.py": tasks})
        project.run(SCRIPT + "from django.core.management import call_command\ncall_command('migrate', verbosity=0)")
        project.start("celery -A myproject worker -Q vtrr_queue -c 2 -l info")

    def queue(self, **ids: str) -> None:
        calls = [f"{task}.queue('u', [{{'id': {id!r}}}])" for task, id in ids.items()]
        self.project.run(SCRIPT + "\n".join(calls))

    def revoke(self, id: str, **options: Any) -> None:
        self.project.run(SCRIPT + f"app.control.revoke({id!r}, reply=True, timeout=10, limit=1, **{options!r})")

    def state(self, id: str) -> str:
        return self.postgres.sql(f"select status from django_celery_results_taskresult where task_id = '{id}'")

    def logs(self) -> str:
        return self.project.logs()


class Module:
    """Celery's own backend, by SQLAlchemy."""

    def __init__(self, bed: Bed, postgres: Postgres) -> None:
        self.bed, self.postgres, self.store = bed, postgres, bed.store
        self.store.flushall()
        bed.backend = postgres.url
        self.app: Any = bed.load(BODIES, max_deliveries=1, sweep_interval=0.5)
        bed.worker(concurrency=2)

    def queue(self, **ids: str) -> None:
        for task, id in ids.items():
            getattr(self.app, task).queue("u", [{"id": id}])

    def revoke(self, id: str, **options: Any) -> None:
        self.app.app.control.revoke(id, reply=True, timeout=10, limit=1, **options)

    def state(self, id: str) -> str:
        return self.postgres.psql(f"select status from celery_taskmeta where task_id = '{id}'").stdout.strip()

    def logs(self) -> str:
        return self.bed.logs()


@pytest.mark.parametrize("kind", ["django", "sqlalchemy"])
def test_states_come_after_the_database_has_closed_its_connections(
    kind: str, bed: Bed, postgres: Postgres, server: RedisServer, tmp_path: Path
) -> None:
    with Project(server, tmp_path) as project:
        site: Any = Site(project, postgres) if kind == "django" else Module(bed, postgres)
        for turn in range(3):
            check_states(site, turn)
            # All that the worker has, if it has kept any.
            postgres.close_connections()


def check_states(site: Any, turn: int) -> None:
    ends = {"dies": "FAILURE", "hangs": "FAILURE"}
    site.store.delete("go", "waits")
    if turn == 0:
        # Makes the tables.
        site.queue(fine="first")
        becomes(site, "first", "SUCCESS")
    site.queue(**{task: f"{task}{turn}" for task in ends})
    for task, state in ends.items():
        becomes(site, f"{task}{turn}", state)
    # Both processes are busy, so the third one waits; one that runs is terminated, and then all is free again.
    for busy, id in enumerate(("a", "b")):
        site.queue(waits=f"{id}{turn}")
        wait_for(lambda busy=busy: site.store.llen("waits") == busy + 1)
    site.queue(waits=f"c{turn}")
    site.revoke(f"c{turn}")
    becomes(site, f"c{turn}", "REVOKED")
    site.revoke(f"a{turn}", terminate=True)
    becomes(site, f"a{turn}", "REVOKED")
    site.store.set("go", 1)
    becomes(site, f"b{turn}", "SUCCESS")


def becomes(site: Any, id: str, state: str) -> None:
    try:
        wait_for(lambda: site.state(id) == state)
    except AssertionError:
        raise AssertionError(f"{id} is {site.state(id)!r}, not {state}; {site.logs()}") from None

"""The project of 0.1.0's README: its code blocks word for word, and what it leaves out."""

from __future__ import annotations

import reference
from project import Project
from servers import RedisServer

# All that is changed in the README's code: (text, what stands for it, why).
REPLACED = [
    ("localhost:6379", "localhost:{port}", "the test's own server"),
    ("Celery(...)", 'Celery("myapp", broker={broker!r}, backend={backend!r})', "left out by the README"),
    ("try:\n        ...\n", "try:\n        return body(self, task_id, file_key, dataset_id, force_ocr)\n", "left out"),
    ("_id: str):\n    ...\n", "_id: str):\n    return body(self, task_id, file_key, dataset_id)\n", "left out"),
    ("VTRRQueue(..., ", "VTRRQueue(redis_client, celery_app, ", "left out"),
]

# What the README uses and does not define, in front of its files.
ABOVE = {
    "myapp/tasks.py": "from myapp.celery_utils import TransientError, body\n",
    "myapp/views.py": "from django.http import JsonResponse\nfrom django.views import View\n",
}

CELERY_UTILS = """
from celery import Task
from notes import note, store

class TransientError(Exception):
    pass

class LogErrorsTask(Task):
    abstract = True

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note("failure", id=task_id, task=self.name, error=repr(exc))

def body(self, task_id, file_key, dataset_id, force_ocr=False):
    request = self.request
    note("run", id=request.id, task_id=task_id, task=self.name, retries=request.retries, file_key=file_key,
         dataset_id=dataset_id, force_ocr=force_ocr)
    if "transient" in file_key and request.retries == 0:
        raise TransientError(file_key)
    if "broken" in file_key:
        raise ValueError(file_key)
    return file_key
"""

# `celery -A myapp` looks for an app in the package.
APP = "from myapp.vtrr import celery_app\nimport myapp.tasks\n"

SETUP = ("1. Create the VTRRQueue instance", "3. Define tasks")
WORKER = "2. Register a dedicated Celery worker"
QUEUES = "One `celery_queue` per `VTRRQueue` instance"
ENQUEUE = "4. Enqueue tasks"


def adapt(text: str, server: RedisServer) -> str:
    """A block of the README with what it leaves out."""
    for old, new, _ in REPLACED:
        text = text.replace(old, new.format(port=server.port, broker=server.url(0), backend=server.url(1)))
    return text


def write(project: Project, *headings: str) -> None:
    """Writes the files of these sections."""
    found = reference.files(*headings)
    assert found
    project.write({path: ABOVE.get(path, "") + adapt(block, project.server) for path, block in found.items()})
    project.write({"myapp/__init__.py": APP, "myapp/celery_utils.py": CELERY_UTILS})


def commands(heading: str) -> list[str]:
    """The command lines of a section."""
    return [line for block in reference.blocks(heading, "") for line in block.splitlines()]


def defined_queue(source: str) -> str:
    """Source of a script that has the README's queue and more tasks."""
    return "from myapp.vtrr import vtrr\nfrom myapp.tasks import process_file\n" + source

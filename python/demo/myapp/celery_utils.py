"""The base class of the README's tasks."""

import logging

from celery import Task


class LogErrorsTask(Task):
    """Says which file it was that failed."""

    def on_failure(self, exc, task_id, args, kwargs, einfo):  # type: ignore[no-untyped-def]
        logging.getLogger(__name__).error("%s failed with %r: %s", task_id, args, exc)

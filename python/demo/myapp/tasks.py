"""The README's task, for both queues. It works for 50 ms and returns when it began."""

import os
import time

from myapp.celery_utils import LogErrorsTask
from myapp.vtrr import line, store, vtrr

SECONDS = float(os.environ.get("DEMO_TASK_SECONDS", "0.05"))


class TransientError(Exception):
    """Try again."""


@vtrr.task(base=LogErrorsTask, max_retries=3, retry_kwargs={"countdown": 10})
def process_file(self, task_id: str, file_key: str, dataset_id: str, force_ocr: bool = False):  # type: ignore[no-untyped-def]
    return work("files", file_key)


@line.task(base=LogErrorsTask, max_retries=3)
def process_file_in_line(self, task_id: str, file_key: str, dataset_id: str, force_ocr: bool = False):  # type: ignore[no-untyped-def]
    return work("line", file_key)


def work(queue: str, file_key: str) -> float:
    began = time.time()
    store.rpush(f"demo:{queue}", file_key.split("/")[2])
    time.sleep(SECONDS)
    return began

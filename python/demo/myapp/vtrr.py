"""The app: as in the README, but that there are two queues. `vtrr` has a partition per user; `line` has one for all, so
it is first come, first served."""

import os

import redis
from celery import Celery

from vtrr_queue import VTRRQueue

port = os.environ["DEMO_REDIS_PORT"]
celery_app = Celery("myapp", broker=f"redis://localhost:{port}/0", backend=f"redis://localhost:{port}/1", include=["myapp.tasks"])

store = redis.from_url(f"redis://localhost:{port}/3")
vtrr = VTRRQueue(redis_client=store, celery_app=celery_app, name="files", celery_queue="vtrr_queue", max_concurrency=4)
line = VTRRQueue(redis_client=store, celery_app=celery_app, name="line", celery_queue="line_queue", max_concurrency=4)

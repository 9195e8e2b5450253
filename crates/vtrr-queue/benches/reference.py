"""Enqueues 100 times 1,000 tasks with vtrr-queue 0.1.0 and prints the seconds it took. Argument: the port."""

import sys
import time

import redis
from celery import Celery
from vtrr_queue import VTRRQueue

app = Celery("bench", broker="memory://")
queue = VTRRQueue(redis.Redis(port=int(sys.argv[1])), app, name="reference")
queue._schedule_workers = lambda *_: None  # the enqueue alone, without Celery messages


@queue.task
def process_file(self, *args):
    pass


tasks = [{"args": ["s3://bucket/a.pdf", "d_1"]} for _ in range(1000)]
start = time.perf_counter()
for partition in range(100):
    process_file.queue(partition_key=f"user-{partition}", tasks=tasks)
print(time.perf_counter() - start)

"""The real vtrr-queue 0.1.0, for tests/it/reference: run by target/reference/bin/python on the Redis at REFERENCE_URL.

As a program it drives queues: a JSON request on each line of its input, a JSON answer on each line of its output.
As the Celery app `reference` it is a worker of the queue REFERENCE_QUEUE. Either way it ends when its input does.
"""

import json
import os
import signal
import sys
import threading
import time

import redis
from celery import Celery
from vtrr_queue import VTRRQueue

URL = os.environ["REFERENCE_URL"]
client = redis.Redis.from_url(URL)
queues = {}


def queue(name):
    """The queue and its one task, which notes its runs in the list `runs:NAME`: who ran it, and its arguments."""
    if name not in queues:
        vtrr = VTRRQueue(client, Celery("reference", broker=URL), name=name, celery_queue=f"celery:{name}")

        @vtrr.task
        def record(self, number, *args, **kwargs):
            client.rpush(f"runs:{name}", f"0.1.0 {json.dumps([number, *args])} {json.dumps(kwargs)}")

        queues[name] = vtrr, record
    return queues[name]


def dequeue(name, n):
    """Takes up to n tasks, or all: each as 0.1.0 understands it, in the JSON that it would store."""
    vtrr, _ = queue(name)
    taken = []
    while n is None or len(taken) < n:
        try:
            task = vtrr._dequeue()
        except Exception as error:
            return {"error": repr(error)}
        if task is None:
            break
        taken.append(json.dumps(dict(zip(("task_name", "args", "kwargs"), task))))
    return taken


def drive():
    for line in sys.stdin:
        request = json.loads(line)
        if "tasks" in request:
            queue(request["queue"])[1].queue(request["partition"], request["tasks"])
            answer = None
        else:
            answer = dequeue(request["queue"], request["n"])
        print(json.dumps(answer), flush=True)


def end_with_input():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    # Celery's prefork pool now and then waits for ever for a child that has nothing to do.
    time.sleep(3)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    import reference  # under the name that its task has in workers

    reference.drive()
elif "REFERENCE_QUEUE" in os.environ:
    app = queue(os.environ["REFERENCE_QUEUE"])[0]._celery_app
    threading.Thread(target=end_with_input, daemon=True).start()

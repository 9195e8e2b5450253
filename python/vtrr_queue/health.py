"""Whether a worker is live, told by a file: ``python -m vtrr_queue.health FILE…`` is for probes. Imports nothing of
Celery, since these start every few seconds."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time


class HealthFile:
    """Says when Redis last answered a worker. Written anew, whole, each time: in a text of JSON, with the time of a clock
    that all processes of a machine share, and no operator sets."""

    def __init__(self, path: str, *, worker: str, queue: str, lease: float) -> None:
        self.path = path
        self.about = {"worker": worker, "queue": queue, "lease": lease}
        self.ended = False

    def beat(self) -> None:
        """Redis has answered now. Makes the folder if it is not there."""
        if self.ended:
            return
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        new = f"{self.path}.new"
        with open(new, "w", encoding="utf-8") as file:
            json.dump({**self.about, "at": time.monotonic()}, file)
        os.replace(new, self.path)
        if self.ended:
            self.end()

    def end(self) -> None:
        """The worker ends: removes the file, for good."""
        self.ended = True
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.path)


def trouble(path: str) -> str | None:
    """Why the worker of a file is not live: Redis has not answered it for longer than its lease. None if it is."""
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
        worker, lease, silence = str(said["worker"]), float(said["lease"]), time.monotonic() - float(said["at"])
    except FileNotFoundError:
        return f"{path}: no such file: no worker has begun, or it has ended"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} is no health file: {error!r}"
    if silence < 0:
        return f"{path}: {worker} wrote it before this machine was started"
    if silence > lease:
        return f"{path}: Redis has not answered {worker} for {silence:.1f} s; its lease is {lease:g} s"
    return None


def main() -> None:
    """Exits with 0 if the workers of all files are live, else with 1 and the reasons."""
    paths = sys.argv[1:]
    if not paths:
        sys.exit("usage: python -m vtrr_queue.health FILE…, each the health_file of a VTRRQueue")
    troubles = [reason for path in paths if (reason := trouble(path)) is not None]
    if troubles:
        sys.exit("\n".join(troubles))
    print("ok")


if __name__ == "__main__":
    main()

"""What happened, as the processes under test wrote it down: files that only grow, which no fault touches.

One line each: ``WHAT PID NANOSECONDS more…``, by the monotonic clock that all processes share.

=========  ====================================  ==================================================================
what       more                                  written
=========  ====================================  ==================================================================
offered    call, partition, ids with commas      by a producer, before it calls enqueue
accepted   call, duplicates with commas          when a call was answered; those ids were there already
refused    call, error                           when a call failed; it is repeated
took       id, token, deliveries, ns             by a worker, for each delivery in the server's answer; when it was asked for
start      id, deliveries                        by a body
end        id                                    by a body that ends well
failed     id                                    by a body that is about to raise
settled    id, token, outcome, delay, code, ns   for each settlement in the server's answer; when it was sent
ready      (nothing)                             by a process, when it has begun
stopped    (nothing)                             by a process that ends as it should
=========  ====================================  ==================================================================
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


class Writer:
    """Adds lines to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def note(self, what: str, *more: object) -> None:
        words = [what, str(os.getpid()), str(time.monotonic_ns()), *map(str, more)]
        # One write, so that lines of several processes do not mix.
        os.write(self._file, f"{' '.join(words)}\n".encode())


@dataclass(frozen=True)
class Line:
    what: str
    pid: int
    at: int
    more: tuple[str, ...]


# The code of a settlement that the store has done.
DONE = "0"


def number_of(token: str) -> int:
    """Tokens end in the number of the delivery, which grows: in this order the store hands out."""
    return int(token.rpartition("-")[2])


def parse(text: str) -> Line:
    what, pid, at, *more = text.split(" ")
    return Line(what, int(pid), int(at), tuple(more))


def lines_of(text: str) -> list[Line]:
    """A ledger made by hand: words without process and time. A line's number is its time."""
    words = (line.split(" ") for line in text.strip().splitlines())
    return [Line(what, 1, at, tuple(more)) for at, (what, *more) in enumerate(words)]


def read(folder: Path) -> list[Line]:
    """All lines of all files, by time."""
    lines: list[Line] = []
    for path in sorted(folder.glob("*.ledger")):
        lines += map(parse, path.read_text().splitlines())
    lines.sort(key=lambda line: line.at)
    return lines

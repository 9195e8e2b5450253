"""Names as an attacker would choose them: what one queue does leaves another alone, and tasks come out as they went in."""

from __future__ import annotations

from typing import Any

import pytest

from bed import HEADER, Bed, ends

# What keys, patterns, records, JSON and Lua could trip over.
PIECES = [
    ":", "%", "%3A", "lane:=", ":lane:=a:queue", "*", "[a-z]?", "{}", "{a}", '"', "\\", "\\u0000", " ", "\r\n$1\r\n", "\x01",
    "\x7f", "\xff", "😀", '","weight":9,"at":1,"serial":1,', "]]--", "~", "+", "-", "'", "$(id)",
]  # fmt: skip

TASKS = """
name, other = NAMES
beside = VTRRQueue(redis_client=store, celery_app=app, name=other, celery_queue=NAME + "_beside")

@vtrr.task
def work(self, text, more=None):
    note("end", self, text=text, more=more)

@beside.task
def rest(self, text): ...
"""


@pytest.mark.parametrize("tagging", ["head", "all"])
@pytest.mark.parametrize(
    "names",
    [("n:lane:=a", "n"), ("n", "n:lane:=a"), ("n*", "nm"), ("%25", "%"), ("{n}", "{n}:"), ('n":{\r\n', 'n":{')],
    ids=ascii,
)
def test_a_queue_with_odd_names_works_beside_another(bed: Bed, names: tuple[str, str], tagging: str) -> None:
    bed.store.flushdb()
    header = HEADER.replace("name=NAME", f"name={names[0].replace('{', '{{').replace('}', '}}')!r}")
    tasks = TASKS.replace("NAMES", repr(names))
    app: Any = bed.load(tasks, header=header, tagging=tagging, sweep_interval=1)
    for piece in PIECES:
        app.rest.queue(piece, [{"id": piece + str(n), "args": [piece]} for n in range(2)])
    app.beside.set_share(PIECES[0], 3)
    before = {key: bed.store.dump(key) for key in bed.store.keys("*")}

    for piece in PIECES:
        ids = [piece + str(n) for n in range(3)]
        more = {"text": piece, "more": {piece: [piece]}}
        app.work.queue(piece, [{"id": id, "kwargs": more, "weight": 2} for id in ids])
        assert app.work.queue(piece, [{"id": ids[0], "kwargs": more}]).duplicates == ids[:1]
        app.vtrr.set_share(piece, 2)
        assert app.vtrr.find(ids[1]).partition == piece
        assert app.vtrr.cancel(ids[2:]) == {ids[2]: "done"}
    worker = bed.worker(concurrency=2)
    while app.vtrr.stats().queued or app.vtrr.stats().leased:
        assert worker.process.poll() is None
    # Each ran, with its own arguments, and once.
    assert sorted(ends(bed)) == sorted(piece + str(n) for piece in PIECES for n in range(2))
    for event in bed.events("end"):
        piece = event["id"][:-1]
        assert (event["text"], event["more"]) == (piece, {piece: [piece]})
    for piece in PIECES:
        app.vtrr.set_share(piece, 1)
        app.vtrr.purge(piece)
    worker.stop()
    left = {key: bed.store.dump(key) for key in bed.store.keys("*") if key in before}
    assert left == before
    prefix = f"vtrr:{names[0]}:".encode()
    ours = {key for key in bed.store.keys("*") if key not in before and not key.startswith(b"events:")}
    assert {key[len(prefix) :] for key in ours if key.startswith(prefix)} == {key[len(prefix) :] for key in ours}
    with pytest.raises(ValueError, match="without NUL"):
        app.work.queue("a\0b", [{"args": ["x"]}])

"""Faults of real life (`make chaos` has them all): some rows of its table, and that its checker sees what is wrong."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos import ledger
from chaos.__main__ import run
from chaos.check import Findings, Left, Promise, check, stalls
from chaos.rows import ROWS, Row
from chaos.scene import Scene, Setting
from chaos.stores import Single

from servers import wait_for

# Which rows, and how many faults of each: a few seconds each.
SHORT = {
    "a pool's child is killed, celery, redis 7": 4,
    "a worker is killed, rust, valkey 8": 3,
    "a script's reply is lost, celery, redis 7": 4,
    "the store is killed, rust, redis 6.2": 2,
    "the store is killed, celery, redis 7": 2,
    "the store is killed, rust, redis 7, everysec": 2,
    "planned failover, rust, redis 7, Sentinel": 1,
    "CLUSTER FAILOVER, rust, redis 7, Cluster": 1,
    "tasks give themselves back, rust, redis 7": 1,
    "ids are used again, rust, redis 7": 1,
    "ids are used again, celery, redis 6.2": 1,
}


def row(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


@pytest.mark.parametrize("name", SHORT)
def test_no_task_is_lost_stuck_or_settled_twice(name: str, tmp_path: Path) -> None:
    result = run(row(name), "tests", tmp_path / "row", rounds=SHORT[name])
    assert result.findings.good, result.findings
    assert result.findings.tasks > 0
    assert len(result.recoveries) == SHORT[name]


def test_every_row_of_the_table_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("kind", ["rust", "celery"])
def test_a_producer_stops_where_less_than_enough_is_ever_queued(kind: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, kind, Single(tmp_path, "redis 7"), "tests", Setting(workers=0))
    with scene:
        (producer,) = scene.producers
        producer.ready()

        def keep_up() -> None:
            scene.ask(scene.core.purge())

        def has_ended() -> bool:
            keep_up()
            return not producer.is_alive

        wait_for(lambda: keep_up() or "accepted" in producer.ledger.read_text(), every=0)
        producer.send(signal.SIGTERM)
        wait_for(has_ended, every=0)
        assert producer.process.returncode == 0, producer.tail()
        assert producer.ledger.read_text().splitlines()[-1].startswith("stopped ")


def test_leases_that_run_out_at_once_are_taken_once_each_whatever_other_workers_take(tmp_path: Path) -> None:
    wrong = row("10,000 leases run out at once, rust, redis 7")
    # Workers that are quick enough to get many of the tasks.
    scene = Scene(tmp_path, "rust", Single(tmp_path, "redis 7"), "tests", replace(wrong.setting, concurrency=256, max_ms=0))
    with scene:
        scene.inject(wrong.inject)
        taken = [line.more[0] for line in ledger.read(tmp_path) if line.what == "took" and line.pid == os.getpid()]
        assert len(taken) == len(set(taken)) == 10_000


# Builds that are wrong on purpose: the row that shows it, and what is found.


def mutant(kind: str, name: str, folder: Path) -> Findings:
    wrong = row(name)
    setting = replace(wrong.setting, env={"CHAOS_MUTANT": kind})
    return run(replace(wrong, setting=setting), "tests", folder / "row", rounds=1).findings


def test_a_build_without_the_ack_check_is_found_out(tmp_path: Path) -> None:
    findings = mutant("skip-ack-check", "a worker is stopped past its lease, rust, redis 6.2", tmp_path)
    assert any("was handed out" in text for text in findings.settled_twice), findings


def test_a_build_that_forgets_running_is_found_out(tmp_path: Path) -> None:
    findings = mutant("forget-running", "SIGTERM, rust, redis 7", tmp_path)
    assert findings.stuck == ["keys are left: running"], findings


def test_a_build_that_drops_due_retries_is_found_out(tmp_path: Path) -> None:
    findings = mutant("drop-due-retry", "SIGTERM, rust, redis 7", tmp_path)
    assert findings.lost, findings


def test_a_build_where_what_gives_itself_back_is_free_is_found_out(tmp_path: Path) -> None:
    findings = mutant("free-returns", "tasks give themselves back, rust, redis 7", tmp_path)
    assert any(text.startswith("partitions that had tasks waiting were charged") for text in findings.wrong), findings


# The checker alone, on ledgers made by hand: a good one, and that with one line more, less or other.

GOOD = """
offered c1 p a,b
accepted c1
took a 7-1 1 2
took b 7-2 1 2
start a 1
end a
settled a 7-1 ack 0 0 5
start b 1
failed b
settled b 7-2 fail 0 0 6
"""


def findings(text: str, left: Left | None = None, promise: Promise | None = None) -> Findings:
    lines = ledger.lines_of(text)
    left = left or Left(dead={"b": "ValueError: planned"}, keys={"meta"}, acked=1, buried=1)
    return check(lines, left, promise)


def test_a_good_ledger_is_found_good() -> None:
    found = findings(GOOD)
    assert found.good, found
    assert (found.tasks, found.redelivered) == (2, 0)


def test_a_task_that_never_ended_is_lost() -> None:
    found = findings(GOOD.replace("end a\n", ""))
    assert [text.split()[0] for text in found.lost] == ["a"]


def test_a_task_of_a_call_that_was_not_answered_is_lost_only_once_it_has_started() -> None:
    unanswered = GOOD + "offered c2 p c\n"
    assert findings(unanswered).good
    assert len(findings(unanswered + "took c 7-3 1 2\nstart c 1\n").lost) == 1


def test_a_dead_letter_with_another_reason_is_wrong() -> None:
    left = Left(dead={"b": "poison: 3 deliveries ended without a settle"}, acked=1, buried=1)
    assert findings(GOOD, left).wrong == ["b is a dead letter: poison: 3 deliveries ended without a settle"]


def test_a_task_that_must_die_and_does_not_is_wrong() -> None:
    assert len(findings(GOOD, promise=Promise(doomed={"a": "poison"})).wrong) == 1


def test_what_is_left_in_the_store_is_stuck() -> None:
    dead = {"b": "planned"}
    assert len(findings(GOOD, Left(unfinished=1, dead=dead)).stuck) == 1
    assert findings(GOOD, Left(dead=dead, keys={"meta", "owner"})).stuck == ["keys are left: owner"]


def test_two_ends_for_good_are_one_too_many() -> None:
    found = findings(GOOD + "took a 8-3 2 2\nstart a 2\nend a\nsettled a 8-3 ack 0 0 30\n")
    assert found.settled_twice == ["a: 2 times"]
    assert found.redelivered == 1


def test_a_settle_for_what_another_has_by_then_is_one_too_many() -> None:
    late = GOOD.replace("settled a 7-1 ack 0 0 5\n", "took a 8-3 2 2\nsettled a 7-1 ack 0 0 7\n")
    assert findings(late).settled_twice == ["a was settled with 7-1 after 8-3 was handed out"]


def test_a_refused_settle_is_none() -> None:
    late = GOOD.replace("settled a 7-1 ack 0 0 5\n", "took a 8-3 2 2\nsettled a 7-1 ack 0 2 7\nsettled a 8-3 ack 0 0 9\n")
    assert findings(late).good


def test_a_store_that_counts_more_ends_than_tasks_has_settled_one_twice() -> None:
    left = Left(dead={"b": "planned"}, acked=2, buried=1)
    assert len(findings(GOOD, left).settled_twice) == 1


def test_half_of_a_call_is_wrong() -> None:
    half = GOOD.replace("accepted c1\n", "").replace("took b 7-2 1 2\n", "").replace("start b 1\nfailed b\n", "")
    half = half.replace("settled b 7-2 fail 0 0 6\n", "")
    assert findings(half, Left(acked=1, buried=0)).wrong == ["half of a call was stored: c1, 1 of 2"]


def test_tasks_of_a_partition_in_another_order_are_wrong_unless_one_came_again() -> None:
    turned = GOOD.replace("took a 7-1 1 2", "took a 7-3 1 2").replace("settled a 7-1", "settled a 7-3")
    assert findings(turned).wrong == ["a of p was delivered after b"]
    again = turned.replace("took a 7-3 1 2", "took a 7-3 2 2")
    assert findings(again).good


def test_a_task_that_nobody_offered_is_wrong() -> None:
    assert findings(GOOD + "took x 7-9 1 2\n").wrong == ["x was never offered, and took"]


def test_a_settlement_that_a_store_forgot_may_be_made_again() -> None:
    again = GOOD + "took a 8-3 2 9\nstart a 2\nend a\nsettled a 8-3 ack 0 0 30\n"
    forgot = findings(again, promise=Promise(forgets=[(0, 8)], order=False))
    assert (forgot.settled_twice, forgot.redelivered) == ([], 0)
    # What was asked before and answered within, or asked within and answered after, may be forgotten too.
    assert findings(again, promise=Promise(forgets=[(6, 7)], order=False)).settled_twice == []
    for span in [(0, 5), (7, 8)]:
        assert findings(again, promise=Promise(forgets=[span], order=False)).settled_twice == ["a: 2 times"]


def test_what_a_store_forgot_is_not_lost_where_that_was_said() -> None:
    lost = GOOD.replace("end a\n", "")
    for span in [(0, 5), (1, 5)]:
        found = findings(lost, promise=Promise(forgets=[span], order=False))
        assert (found.lost, found.forgotten) == ([], 1)
    found = findings(lost, promise=Promise(forgets=[(2, 5)], order=False))
    assert (len(found.lost), found.forgotten) == (1, 0)


def test_a_store_that_forgot_may_give_its_tokens_anew() -> None:
    anew = GOOD.replace("took a 7-1 1 2\n", "took a 7-9 1 2\ntook a 7-1 1 4\n").replace("ack 0 0 5", "ack 0 0 6")
    assert findings(anew).settled_twice == ["a was settled with 7-1 after 7-9 was handed out"]
    assert findings(anew, promise=Promise(forgets=[(2, 4)], order=False)).settled_twice == []


# Ids that are used again.

AGAIN = """
offered c1 p a
accepted c1
took a 7-1 1 2
start a 1
offered c2 p a
accepted c2 a
end a
settled a 7-1 ack 0 0 6
offered c3 p a
accepted c3
took a 7-2 1 2
start a 1
end a
settled a 7-2 ack 0 0 12
"""


def test_an_id_may_be_used_again_after_its_end_and_is_a_duplicate_before() -> None:
    found = findings(AGAIN, Left(acked=2, buried=0))
    assert found.good, found
    assert found.tasks == 2


def test_a_task_whose_id_was_used_again_and_that_did_not_run_again_is_lost() -> None:
    lost = findings(AGAIN.split("took a 7-2")[0], Left(acked=1, buried=0)).lost
    assert lost == ["a of p: accepted 2 times, ended 1 times"]


def test_a_duplicate_that_ran_all_the_same_is_settled_twice() -> None:
    assert findings(AGAIN.replace("accepted c3\n", "accepted c3 a\n"), Left(acked=2, buried=0)).settled_twice[0] == "a: 2 times"


def test_a_task_that_may_run_once_and_runs_twice_is_wrong() -> None:
    twice = GOOD.replace("start a 1\n", "start a 1\nstart a 1\n")
    assert findings(twice, promise=Promise(once={"b"})).good
    assert findings(twice, promise=Promise(once={"a"})).wrong == ["a ran 2 times"]


def test_only_what_two_processes_wait_for_at_once_is_a_stall() -> None:
    def waits(*of: tuple[int, int, int], fault: tuple[tuple[int, int], set[int]] | None = None) -> int:
        lines = [ledger.Line("took", pid, at, ("t", "1-1", "1", str(sent))) for pid, sent, at in of]
        return stalls(lines, Promise(faults=[fault] if fault else []), slow=10)

    assert waits((1, 0, 30), (2, 100, 130)) == 0, "one after the other: each stood still for itself"
    assert waits((1, 0, 30), (2, 25, 29)) == 0, "the other one waited for a moment only"
    assert waits((1, 0, 30), (2, 5, 40), (3, 5, 40)) == 1
    assert waits((1, 0, 30), (1, 5, 40)) == 0, "of one process"
    assert waits((1, 0, 30), (2, 5, 40), (1, 100, 130), (2, 101, 131)) == 2
    assert waits((1, 0, 30), (2, 5, 40), fault=((20, 25), set())) == 0, "the fault stopped both"
    assert waits((1, 0, 30), (2, 5, 40), fault=((20, 25), {1})) == 0, "the fault stopped one of them"
    assert waits((1, 0, 30), (2, 5, 40), fault=((20, 25), {3})) == 1
    assert waits((1, 0, 30), (2, 5, 40), fault=((41, 50), set())) == 1

"""`onetray dead`: letters in groups, one of them, and many run again."""

from __future__ import annotations

import re

from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, onetray, told
from tests.support.tasks import submit, take


def test_letters_that_say_the_same_are_one_line(place: Place) -> None:
    for message in ("shop is closed", "shop is closed", "no such shop"):
        place.dead(message=message)
    done = onetray("dead", "list", *place.at)
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["count", "kind", "reason", "error", "oldest", "newest"]
    assert first.startswith("2      sync  exhausted_retries  HTTP 503: shop is closed  ")
    assert second.startswith("1      sync  exhausted_retries  HTTP 503: no such shop")
    assert [g["count"] for g in told("dead", "list", *place.at, "--error", "no such")["groups"]] == [1]
    assert len(told("dead", "list", *place.at, "--each")["dead_letters"]) == 3


def test_one_letter_is_shown_whole(place: Place) -> None:
    letter = place.dead()
    text = called("dead", "show", letter[-8:], *place.at).stdout
    shown = dict(re.split("  +", line, maxsplit=1) for line in text.splitlines())
    assert (shown["reason"], shown["failed during"], shown["attempts"]) == ("exhausted_retries", "exec", "1 of 1")
    assert "shop is closed" in shown["error"]
    assert shown["run it again"] == f"onetray dead redrive {letter}"
    assert {"dead-lettered", "last worker", "last lease until"} <= shown.keys()
    assert told("dead", "show", letter, *place.at)["last_error"]["class"] == "HTTP 503"
    done = called("dead", "show", submit(place.engine), *place.at)
    assert (done.exit_code, "no dead letter" in done.stderr) == (4, True)


def test_one_letter_is_redriven_and_left_out_from_then_on(place: Place) -> None:
    letter = place.dead()
    new = told("dead", "redrive", letter, *place.at)["id"]
    assert place.engine.task(new).retry_of == letter
    assert told("dead", "list", *place.at)["groups"] == []
    assert [x["successor_id"] for x in told("dead", "list", *place.at, "--redriven", "--each")["dead_letters"]] == [new]
    assert called("dead", "redrive", letter, *place.at).stdout.startswith(f"existing task {new}")


def test_a_letter_is_redriven_later_and_with_its_attempts(place: Place) -> None:
    letter = place.dead()
    done = called("dead", "redrive", letter, "--keep-attempts", *place.at)
    assert (done.exit_code != 0, "1 of 1 attempts" in done.stderr) == (True, True)
    new = place.engine.task(told("dead", "redrive", letter, "--delay", "15m", *place.at)["id"])
    assert (new.attempts, new.run_at - new.created_at) == (0, 15 * 60 * 1_000_000)


def test_many_are_redriven_only_after_a_preview_and_a_yes(place: Place) -> None:
    for kind in ("sync", "sync", "mail"):
        place.dead(kind)
    done = called("dead", "redrive", "--all", "--kind", "sync", *place.at)
    assert done.exit_code == 2
    assert "2      sync" in done.stdout
    assert one_line(done.stderr)
    assert "Redrive 2 dead letters?" in done.stderr
    assert "--yes" in done.stderr
    outcome = told("dead", "redrive", "--all", "--kind", "sync", "--yes", *place.at)
    assert outcome == {"redriven": 2, "refused": [], "left": 0, "flows_to_retry": []}
    assert [g["kind"] for g in told("dead", "list", *place.at)["groups"]] == ["mail"]
    assert told("dead", "redrive", "--all", "--kind", "sync", "--yes", *place.at)["redriven"] == 0


def test_a_dry_run_says_what_would_be_redriven_and_changes_nothing(place: Place) -> None:
    for kind in ("sync", "sync", "mail"):
        place.dead(kind)
    words = ("dead", "redrive", "--all", "--kind", "sync", "--dry-run", *place.at)
    head, group, last = called(*words).stdout.splitlines()
    assert (head.split()[0], group.split()[:2], last) == (
        "count",
        ["2", "sync"],
        "would redrive 2 dead letters and skip 0",
    )
    assert told(*words) == {
        "dry_run": True, "matched": 2, "redriven": 0, "refused": [], "left": 0, "flows_to_retry": [],
    }  # fmt: skip
    assert "--dry-run needs --all" in called("dead", "redrive", "abcdef", "--dry-run", *place.at).stderr
    assert sum(g["count"] for g in told("dead", "list", *place.at)["groups"]) == 3


def test_letters_of_a_flow_that_ended_are_left_and_the_flow_is_named(place: Place) -> None:
    place.engine.configure("fetch", Policy(max_attempts=1))
    stages = [StageSpec("fetch", [TaskSpec("fetch"), TaskSpec("fetch")])]
    flow = place.engine.submit_flow("report", stages, roll_up="drain").id
    for job in place.engine.claim(worker="w", limit=2):
        place.engine.fail(job, "no")
    place.dead()
    assert (
        "would redrive 1 dead letter and skip 2\n" in called("dead", "redrive", "--all", "--dry-run", *place.at).stdout
    )
    outcome = told("dead", "redrive", "--all", "--yes", *place.at)
    assert outcome == {"redriven": 1, "refused": [], "left": 2, "flows_to_retry": [flow]}
    assert len(place.engine.flows()) == 1
    assert f"onetray jobs retry {flow}" in called("dead", "redrive", "--all", "--yes", *place.at).stdout


def test_letters_of_a_flow_that_goes_on_are_redriven_in_their_stage(place: Place) -> None:
    place.engine.configure("fetch", Policy(max_attempts=1))
    stages = [StageSpec("fetch", [TaskSpec("fetch"), TaskSpec("fetch")])]
    flow = place.engine.submit_flow("report", stages, roll_up="drain").id
    place.engine.fail(take(place.engine), "no")
    assert told("dead", "redrive", "--all", "--yes", *place.at)["redriven"] == 1
    assert place.engine.progress(flow).counts.redriven == 1


def test_one_id_or_all_of_them_but_not_both_and_not_neither(place: Place) -> None:
    for words in ([], ["abcdef", "--all"], ["--kind", "sync"], ["abcdef", "--kind", "sync"]):
        done = called("dead", "redrive", *words, *place.at)
        assert done.exit_code == 2
        assert "pass one ID, or --all" in done.stderr
    assert "must be one of" in called("dead", "list", "--reason", "bad luck", *place.at).stderr

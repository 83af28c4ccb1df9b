"""`onetray schedules`: as a person uses it, and what it says about mistakes."""

from __future__ import annotations

import json

from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told

NIGHTLY = ("nightly", "--kind", "report", "--cron", "0 7 * * mon-fri", "--timezone", "Europe/Berlin")


def test_a_schedule_is_added_listed_shown_changed_and_removed(place: Place) -> None:
    done = called("schedules", "add", *NIGHTLY, "--payload", '{"days": 7}', "--label", "team=a", *place.at)
    assert done.stdout.startswith("schedule nightly fires next in ")
    listed = called("schedules", "list", *place.at).stdout.splitlines()[1]
    assert listed.split()[:2] == ["nightly", "active"]
    assert "0 7 * * mon-fri Europe/Berlin" in listed
    shown = called("schedules", "show", "nightly", *place.at)
    for word in ('{"days": 7}', "team=a", "last, within 24 h", "operator"):
        assert word in shown.stdout
    assert shown.stderr == "it has not fired yet\n"
    done = called("schedules", "add", "nightly", "--kind", "report", "--every", "2h", *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert "--replace" in done.stderr
    options = ("--every", "2h", "--overlap", "skip", "--pause-after", "3", "--replace", "--starts", "2026-01-01")
    changed = told("schedules", "add", "nightly", "--kind", "report", *options, *place.at, LOGNAME="ann")
    assert (changed["every_s"], changed["overlap"], changed["cron"]) == (7_200, "skip", None)
    assert place.engine.audit().events[0].type == "schedule.changed"
    assert called("schedules", "remove", "nightly", "--yes", *place.at).stdout == "schedule nightly is removed\n"
    assert told("schedules", "list", *place.at)["schedules"] == []
    for words in (("show",), ("pause",), ("resume",), ("trigger",), ("explain",), ("remove", "--yes"), ("preview",)):
        done = called("schedules", words[0], "nightly", *words[1:], *place.at)
        assert (done.exit_code, one_line(done.stderr)) == (4, True)


def test_a_schedule_is_paused_triggered_resumed_and_explained(place: Place) -> None:
    called("schedules", "add", *NIGHTLY, *place.at)
    assert (
        called("schedules", "pause", "nightly", "--reason", "holiday", *place.at).stdout
        == "schedule nightly is paused\n"
    )
    explained = called("schedules", "explain", "nightly", *place.at).stdout
    assert "it does not fire: paused by user:" in explained
    assert "holiday" in explained
    fire = told("schedules", "trigger", "nightly", "--reason", "now", *place.at)
    assert place.engine.task(fire["job"]).kind == "report"
    assert fire["job"] in called("schedules", "show", "nightly", *place.at).stdout
    assert "fires next in" in called("schedules", "resume", "nightly", *place.at).stdout
    explained = json.loads(called("schedules", "explain", "nightly", "--json", *place.at).stdout)
    assert len(explained["upcoming"]) == 5
    assert explained["last"][0]["is_triggered"]


def test_a_preview_marks_changes_of_the_clock(place: Place) -> None:
    words = ("--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--from", "2026-03-28", "--count", "3")
    lines = called("schedules", "preview", *words, *place.at).stdout.splitlines()
    assert [" moved: " in line for line in lines] == [False, False, True, False]
    assert "2026-03-29T03:00:00+02:00" in lines[2]
    (first, *_) = told("schedules", "preview", *words, *place.at)["times"]
    assert (first["fire_at"], first["note"]) == ("2026-03-28T01:30:00.000000Z", None)


def test_a_backfill_lists_first_and_then_submits(place: Place) -> None:
    called("schedules", "add", "daily", "--kind", "report", "--cron", "@daily", *place.at)
    span = ("--from", "2026-01-01T00:00+00:00", "--to", "2026-01-10")
    assert len(called("schedules", "backfill", "daily", *span, "--preview", *place.at).stdout.splitlines()) == 11
    assert place.engine.jobs().jobs == []
    done = called("schedules", "backfill", "daily", *span, "--limit", "3", "--yes", *place.at)
    assert done.stdout == "submitted 3 jobs\n"
    assert "There are more in this range" in done.stderr
    assert told("schedules", "backfill", "daily", *span, "--yes", *place.at)["submitted"] == 7
    again = called("schedules", "backfill", "daily", *span, "--yes", *place.at)
    assert again.stdout == "no fire time in this range lacks a job\n"


def test_mistakes_are_told_in_one_line_with_what_to_do(place: Place) -> None:
    for words, message in (
        (("add", "x", "--kind", "k"), "set either cron or every_s"),
        (("add", "x", "--every", "5m"), "set either kind or flow"),
        (("add", "x", "--kind", "k", "--cron", "nope"), "cron 'nope' is not an expression"),
        (("add", "x", "--kind", "k", "--every", "5m", "--timezone", "Europe/berlin"), "do you mean 'Europe/Berlin'?"),
        (("add", "x", "--kind", "k", "--every", "often"), "is not a duration"),
        (("add", "x", "--kind", "k", "--every", "1h", "--ends", "yesterday"), "is not a time"),
        (("preview",), "set either cron or every_s"),
    ):  # fmt: skip
        done = called("schedules", *words, *place.at)
        assert (done.exit_code, one_line(done.stderr)) == (2, True), done.stderr
        assert message in done.stderr

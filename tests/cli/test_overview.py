"""`onetray stats` and `onetray audit`: what happened to tasks, and what people have done."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told
from tests.support.tasks import in_state, submit


def test_statistics_have_a_line_for_each_span_and_a_total(place: Place) -> None:
    for state in ("succeeded", "failed", "queued"):
        in_state(place.engine, state, queue=state)
    lines = called("stats", "--since", "10m", "--buckets", "5", *place.at).stdout.splitlines()
    assert lines[0].split()[:3] == ["since", "submitted", "started"]
    assert 7 <= len(lines) <= 8
    assert lines[-1].split()[:5] == ["total", "3", "2", "1", "1"]


def test_statistics_as_json(place: Place) -> None:
    submit(place.engine)
    said = told("stats", *place.at)
    assert (said["total"]["submitted"], said["is_complete"], said["bucket_s"]) == (1, True, 300)
    assert said["total"]["events"] == {"task.submitted": 1}
    assert said["since_at"].endswith("Z")


def test_statistics_say_that_nobody_counts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.engine.statistics_api.MAX_TAIL", 1)
    submit(place.engine)
    submit(place.engine)
    done = called("stats", *place.at)
    assert done.exit_code == 0
    assert "no janitor has counted" in done.stderr


def test_the_audit_says_who_did_what_to_what_and_why(place: Place) -> None:
    submit(place.engine, queue="mail")
    called("queues", "pause", "mail", "--reason", "the shop moves", *place.at, LOGNAME="ann")
    called("queues", "resume", "mail", *place.at, LOGNAME="bob")
    lines = called("audit", *place.at).stdout.splitlines()
    assert [line.split()[2:5] for line in lines[1:]] == [
        ["bob", "queue.resumed", "mail"], ["ann", "queue.paused", "mail"],
    ]  # fmt: skip
    assert lines[2].endswith("the shop moves")
    (action,) = told("audit", "--person", "ann", *place.at)["actions"]
    assert (action["actor"], action["type"], action["count"]) == ("user:ann", "queue.paused", 1)


def test_the_audit_is_filtered_and_limited(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.engine.pause_queue(name, by="ann")
    place.engine.tokens.create("t", ["read"], by="ann")
    said = told("audit", "--limit", "2", *place.at)
    assert ([a["payload"]["queue"] for a in said["actions"]], said["more"]) == (["c", "b"], True)
    assert told("audit", "--type", "queue.resumed", *place.at)["actions"] == []
    assert [a["type"] for a in told("audit", "--tokens", "--limit", "1", *place.at)["actions"]] == ["token.created"]


@pytest.mark.parametrize("words", [
    ("audit", "--type", "task.succeeded"), ("stats", "--since", "soon"), ("stats", "--buckets", "0"),
    ("audit", "--limit", "0"), ("audit", "--person", ""),
])  # fmt: skip
def test_bad_input_is_one_line(place: Place, words: tuple[str, ...]) -> None:
    done = called(*words, *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (2, True)

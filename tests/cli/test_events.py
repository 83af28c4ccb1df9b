"""`onetray events`: everything that happens in a namespace, and who has changed what."""

from __future__ import annotations

import json

from tests.cli.conftest import Place
from tests.cli.run import called


def types_of(place: Place, *options: str) -> list[str]:
    done = called("events", *place.at, "--json", *options)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line)["type"] for line in done.stdout.splitlines()]


def test_events_of_jobs_and_of_queues_are_printed_in_order(place: Place) -> None:
    place.engine.submit("mail", queue="post")
    called("queues", "pause", "post", *place.at, LOGNAME="ann")
    called("breakers", "open", "mail", "--for", "9s", "--reason", "slow", *place.at, LOGNAME="ann")
    assert types_of(place)[-3:] == ["task.submitted", "queue.paused", "breaker.opened"]
    printed = [json.loads(line) for line in called("events", *place.at, "--json").stdout.splitlines()]
    assert [event["actor"] for event in printed[-2:]] == ["user:ann", "user:ann"]
    first, second = called("events", "--audit", *place.at).stdout.splitlines()
    assert first.split()[3:] == ["queue.paused", "note", "user:ann", "post"]
    assert second.split()[3:] == ["breaker.opened", "note", "user:ann", "mail", "slow"]


def test_a_cursor_and_types_choose_among_them(place: Place) -> None:
    before = place.engine.feed.tail()
    place.engine.submit("mail")
    place.engine.pause_queue("post")
    place.engine.resume_queue("post")
    assert types_of(place, "--after", str(before), "--type", "queue.resumed", "--type", "task.submitted") == [
        "task.submitted", "queue.resumed",
    ]  # fmt: skip


def test_events_about_tokens_are_printed_when_asked_for(place: Place) -> None:
    called("token", "create", "--name", "bob", "--scope", "read", *place.at, LOGNAME="ann")
    assert types_of(place, "--audit") == []
    assert types_of(place, "--audit", "--tokens") == ["token.created"]
    assert "user:ann" in called("events", "--audit", "--tokens", *place.at).stdout


def test_a_cursor_that_is_none_is_refused(place: Place) -> None:
    done = called("events", "--after", "-1", *place.at)
    assert (done.exit_code, "--after" in done.stderr) == (2, True)

"""`onetray queues` and `onetray prune`: what waits, what is held back, what is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from onetray.domain.clock import VirtualClock
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told
from tests.support.engines import engine_on
from tests.support.tasks import in_state, submit, take


def test_a_queue_is_listed_with_how_much_waits_in_it(place: Place) -> None:
    submit(place.engine)
    submit(place.engine)
    submit(place.engine, delay_s=60)
    take(place.engine)
    line = called("queues", "list", *place.at).stdout.splitlines()[1]
    assert line.split()[:5] == ["default", "1", "0", "1", "1"]


def test_a_queue_is_paused_by_somebody_and_resumed(place: Place) -> None:
    submit(place.engine, queue="mail")
    words = ("queues", "pause", "mail", "--reason", "the shop moves", *place.at)
    assert called(*words, LOGNAME="ann").stdout == "queue mail is paused\n"
    (paused,) = place.engine.events_since(types=["queue.paused"]).events
    assert (paused.actor, paused.cause) == ("user:ann", "the shop moves")
    assert place.engine.claim("mail", worker="w") == []
    assert "by ann, " in called("queues", "list", *place.at).stdout
    assert told("queues", "resume", "mail", *place.at) == {"queue": "mail", "paused": False}
    assert len(place.engine.claim("mail", worker="w")) == 1


def test_a_resumed_queue_is_open_for_claims(place: Place) -> None:
    submit(place.engine, queue="mail")
    called("queues", "pause", "mail", *place.at)
    assert called("queues", "resume", "mail", *place.at).stdout == "queue mail is open for claims\n"


def test_a_queue_that_nobody_used_is_paused_only_on_purpose(place: Place) -> None:
    submit(place.engine, queue="mail")
    for verb in ("pause", "resume"):
        done = called("queues", verb, "mial", *place.at)
        assert (done.exit_code, one_line(done.stderr)) == (4, True)
        assert "known queues: mail" in done.stderr
    assert called("queues", "pause", "new", "--create", *place.at).exit_code == 0
    assert [q.name for q in place.engine.queues()] == ["mail", "new"]


def test_a_prune_counts_asks_and_removes_what_is_old_enough(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with engine_on(url, VirtualClock()) as engine:
        for _ in range(3):
            in_state(engine, "succeeded")
        kept = submit(engine)
    words = ("prune", "--older-than", "30d", "--database", url)
    assert called(*words, "--dry-run").stdout == "would delete 3 tasks and 0 flows\n"
    done = called(*words)
    assert done.exit_code == 2
    assert "Delete 3 tasks and 0 flows permanently?" in done.stderr
    assert told(*words, "--yes", "--namespace", "other")["removed"] == 0
    assert told(*words, "--yes") == {"tasks": 3, "flows": 0, "removed": 3, "dry_run": False}
    assert [job["id"] for job in told("jobs", "list", "--database", url)["jobs"]] == [kept]
    assert called(*words).stdout == "deleted 0 jobs\n"


def test_commands_take_their_database_and_namespace_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "onetray.toml"
    settings.write_text('database = "sqlite:///from-file.db"\nnamespace = "mine"\n[limits]\nname_chars = 10')
    assert called("migrate").exit_code == 0
    assert (tmp_path / "from-file.db").exists()
    assert told("queues", "list")["queues"] == []
    assert called("queues", "pause", "a-name-that-is-long", "--create").exit_code == 2
    assert called("queues", "pause", "mail", "--create").exit_code == 0
    assert [q["name"] for q in told("queues", "list", "--namespace", "mine")["queues"]] == ["mail"]
    settings.write_text("nonsense = 1")
    done = called("queues", "list")
    assert (done.exit_code, one_line(done.stderr)) == (2, True)

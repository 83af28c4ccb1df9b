"""`onetray bulk`, `jobs cancel --all --background` and `dead redrive --all --canary`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.cli.run import called, told
from tests.support.engines import engine_on
from tests.support.tasks import UNKNOWN_ID, in_state, submit


@pytest.fixture
def shop(database_url: str) -> Any:
    with engine_on(database_url) as engine:
        yield Place(database_url, engine)


def carry_out(shop: Place) -> None:
    steps = shop.engine.bulk_steps()
    while any(b.state == "running" for b in shop.engine.bulks()):
        steps.step()


def test_a_cancel_in_the_background_is_started_listed_and_shown(shop: Place) -> None:
    ids = [submit(shop.engine, "mail") for _ in range(3)]
    started = told("jobs", "cancel", "--all", "--kind", "mail", "--background", "--yes", "--reason", "no", *shop.at)
    assert (started["state"], started["reason"], started["filters"]["kind"]) == ("running", "no", "mail")
    assert shop.engine.task(ids[0]).state == "queued"
    assert [b["id"] for b in told("bulk", "list", "--unfinished", *shop.at)["bulk_operations"]] == [started["id"]]
    carry_out(shop)
    shown = called("bulk", "show", started["id"], *shop.at)
    assert shown.exit_code == 0
    assert "done" in shown.stdout
    assert told("bulk", "show", started["id"], *shop.at)["done"] == 3
    assert "kind=mail" in called("bulk", "list", *shop.at).stdout


def test_a_canary_is_resumed_or_stopped(shop: Place) -> None:
    for _ in range(4):
        in_state(shop.engine, "dead_lettered")
    started = told("dead", "redrive", "--all", "--canary", "1", "--yes", *shop.at)
    carry_out(shop)
    paused = called("bulk", "show", started["id"], *shop.at)
    assert f"onetray bulk resume {started['id']}" in paused.stdout
    assert "1 queued" in paused.stdout
    assert told("bulk", "resume", started["id"], *shop.at)["state"] == "running"
    assert told("bulk", "stop", started["id"], "--reason", "enough", *shop.at)["state"] == "stopped"
    assert called("bulk", "resume", started["id"], *shop.at).exit_code == 5
    assert len(shop.engine.dead_lines()) == 3


def test_wrong_words_are_refused(shop: Place) -> None:
    assert "need --all" in called("jobs", "cancel", "abcdef12", "--background", *shop.at).stderr
    assert "need --all" in called("dead", "redrive", "abcdef12", "--canary", "1", *shop.at).stderr
    assert called("bulk", "show", UNKNOWN_ID, *shop.at).exit_code == 4
    assert called("bulk", "show", "x", *shop.at).exit_code == 2

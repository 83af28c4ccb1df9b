"""`onetray jobs cancel --all`, `retry --all` and `priority --all`: many jobs at once, after a preview and a yes."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.cli.jobs import bulk
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told
from tests.support.engines import engine_on
from tests.support.tasks import in_state, submit


@pytest.fixture
def shop(database_url: str) -> Any:
    """A database of each kind in turn, with an engine beside the commands."""
    with engine_on(database_url) as engine:
        yield Place(database_url, engine)


def states(engine: Engine, *ids: str) -> list[str]:
    return [engine.job_status(id_).state for id_ in ids]


def test_all_that_match_are_cancelled_single_tasks_and_flows(shop: Place) -> None:
    wanted = [submit(shop.engine, "mail", queue="fast") for _ in range(3)]
    other = submit(shop.engine, "sync", queue="slow")
    flow = shop.engine.submit_flow("mail", [StageSpec("one", [TaskSpec("mail")])]).id
    done = told("jobs", "cancel", "--all", "--kind", "mail", "--yes", *shop.at)
    assert done == {"action": "cancel", "matched": 4, "dry_run": False, "done": 4, "repeated": 0, "refused": []}
    assert states(shop.engine, *wanted, flow, other) == ["cancelled"] * 4 + ["queued"]
    again = told("jobs", "cancel", "--all", "--kind", "mail", "--yes", *shop.at)
    assert (again["matched"], again["done"]) == (0, 0)


def test_filters_are_those_of_the_list(shop: Place) -> None:
    labelled = submit(shop.engine, labels={"team": "a"}, priority=3)
    left = submit(shop.engine, labels={"team": "b"}, correlation_id="order-7")
    words = ("jobs", "cancel", "--all", *shop.at)
    assert told(*words, "--until", "1h", "--dry-run")["matched"] == 0
    assert (
        told(*words, "--label", "team=a", "--priority", "3", "--entity", "task", "--since", "1h", "--yes")["done"] == 1
    )
    assert states(shop.engine, labelled, left) == ["cancelled", "queued"]
    assert told(*words, "--correlation", "order-7", "--state", "queued", "--queue", "default", "--yes")["done"] == 1


def test_nothing_happens_before_a_yes(shop: Place) -> None:
    ids = [submit(shop.engine) for _ in range(bulk.PREVIEW + 2)]
    dry = called("jobs", "cancel", "--all", "--dry-run", *shop.at)
    assert (dry.exit_code, dry.stdout.splitlines()[-1]) == (0, f"would cancel {len(ids)} jobs")
    assert ids[-1] in dry.stdout
    assert ids[0] not in dry.stdout, "only the newest are listed"
    asked = called("jobs", "cancel", "--all", *shop.at)
    assert asked.exit_code == 2
    assert f"Cancel {len(ids)} jobs? There is no terminal to answer on: pass --yes" in asked.stderr
    preview = told("jobs", "cancel", "--all", "--dry-run", *shop.at)
    assert (preview["matched"], preview["dry_run"], len(preview["first"])) == (len(ids), True, bulk.PREVIEW)
    assert set(states(shop.engine, *ids)) == {"queued"}


def test_what_did_not_succeed_is_retried_once(shop: Place) -> None:
    failed = in_state(shop.engine, "failed").id
    succeeded = in_state(shop.engine, "succeeded").id
    cancelled = submit(shop.engine)
    shop.engine.cancel(cancelled)
    dead = shop.dead()
    flow = shop.flow()
    shop.engine.cancel_flow(flow)
    first = told("jobs", "retry", "--all", "--yes", *shop.at)
    assert (first["done"], first["repeated"], first["refused"]) == (4, 0, [])
    again = told("jobs", "retry", "--all", "--yes", *shop.at)
    assert (again["done"], again["repeated"]) == (0, 4)
    new = [shop.engine.task(job.id).retry_of for job in shop.engine.jobs(entity="task", states=("queued",)).jobs]
    assert sorted(str(id_) for id_ in new) == sorted([failed, cancelled, dead])
    assert [shop.engine.flow(j.id).retry_of for j in shop.engine.jobs(entity="flow", states=("pending",)).jobs] == [
        flow
    ]
    assert shop.engine.retried([failed, succeeded, cancelled, flow]) == [*sorted([failed, cancelled]), flow]


def test_a_retry_that_was_cancelled_can_be_retried_itself(shop: Place) -> None:
    first = submit(shop.engine)
    shop.engine.cancel(first)
    told("jobs", "retry", "--all", "--yes", *shop.at)
    told("jobs", "cancel", "--all", "--yes", *shop.at)
    done = told("jobs", "retry", "--all", "--yes", *shop.at)
    assert (done["done"], done["repeated"]) == (1, 1)


def test_the_priority_of_all_is_set_tasks_and_flows(shop: Place) -> None:
    task, flow = submit(shop.engine), shop.flow()
    over = in_state(shop.engine, "succeeded", queue="other").id
    assert told("jobs", "priority", "7", "--all", "--yes", *shop.at)["done"] == 2
    assert (shop.engine.task(task).priority, shop.engine.flow(flow).priority) == (7, 7)
    assert shop.engine.task(over).priority == 0
    refused = called("jobs", "priority", "7", "--all", "--state", "succeeded", "--yes", *shop.at)
    assert refused.exit_code == 1
    assert f"refused {over}: the task has succeeded already and cannot be given another priority" in refused.stderr
    assert refused.stdout == "changed the priority of 0 jobs; refused for 1 job\n"
    again = called("jobs", "priority", "7", "--all", "--yes", *shop.at)
    assert again.stdout == "changed the priority of 0 jobs; nothing to do for 2 jobs\n"


def test_batches_go_on_until_the_end(shop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    ids = [submit(shop.engine) for _ in range(5)]
    assert told("jobs", "cancel", "--all", "--yes", *shop.at)["done"] == 5
    assert set(states(shop.engine, *ids)) == {"cancelled"}


def test_an_interrupt_says_how_far_it_came(shop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [submit(shop.engine) for _ in range(4)]
    monkeypatch.setattr(bulk, "BATCH", 2)
    run_page, pages = bulk._run_page, []

    def interrupted(*arguments: Any) -> None:
        if pages:
            raise KeyboardInterrupt
        pages.append(arguments)
        run_page(*arguments)

    monkeypatch.setattr(bulk, "_run_page", interrupted)
    done = called("jobs", "cancel", "--all", "--yes", *shop.at)
    assert done.exit_code == 130
    assert "interrupted after 2 of 4 jobs: run the same command again for the rest" in done.stderr
    assert states(shop.engine, *ids) == ["queued"] * 2 + ["cancelled"] * 2
    monkeypatch.setattr(bulk, "_run_page", run_page)
    assert told("jobs", "cancel", "--all", "--yes", *shop.at)["done"] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cancel"], "pass the ID of one job, or --all"),
        (["cancel", "abcdef12", "--all"], "pass the ID of one job, or --all"),
        (["cancel", "abcdef12", "--kind", "mail"], "need --all"),
        (["retry", "abcdef12", "--dry-run"], "need --all"),
        (["retry", "--all", "--from-stage", "x"], "needs the ID"),
        (["priority", "--all"], "NUMBER"),
        (["priority", "abcdef12"], "not a whole number"),
        (["priority", "a", "b", "c"], "NUMBER"),
        (["cancel", "--all", "--state", "done", "--yes"], "must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused(place: Place, words: list[str], says: str) -> None:
    done = called("jobs", *words, *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert says in done.stderr

"""`onetray stages` and `onetray tasks`: the inside of a flow, and the answers that it waits for."""

from __future__ import annotations

import pytest

from onetray.domain.flow import Approval, StageSpec, TaskSpec
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told
from tests.support.flows import run_all
from tests.support.tasks import UNKNOWN_ID, submit, take


def waiting(place: Place, form: dict[str, object] | None = None) -> tuple[str, str]:
    """A flow that waits at its only stage, and the stage."""
    approval = Approval(owner="ann", form=form)
    flow = place.engine.submit_flow("pay", [StageSpec("ask", [TaskSpec("pay")], approval=approval)])
    return flow.id, flow.stages[0]


def test_stages_are_listed_in_their_order(place: Place) -> None:
    flow = place.flow()
    lines = called("stages", "list", flow[-8:], *place.at).stdout.splitlines()
    assert [line.split()[1:3] for line in lines[1:]] == [["fetch", "pending"], ["check", "waiting"]]
    assert [s["name"] for s in told("stages", "list", flow, *place.at)["stages"]] == ["fetch", "check"]


def test_a_stage_is_approved_by_its_flow_and_name(place: Place) -> None:
    flow, stage = waiting(place)
    done = called("stages", "approve", f"{flow[-8:]}/ask", *place.at, "--note", "fine", LOGNAME="ann")
    assert done.stdout.startswith(f"stage {stage} is pending"), done.stderr
    assert place.engine.stage(stage).answer["note"] == "fine"
    done = called("stages", "approve", f"{flow}/nope", *place.at)
    assert (done.exit_code, "it has: ask" in done.stderr) == (4, True)


@pytest.mark.parametrize("verb", ["approve", "reject", "skip"])
def test_somebody_else_may_not_answer_and_learns_how_to_name_the_approver(place: Place, verb: str) -> None:
    _, stage = waiting(place)
    words = ("--reason", "no") if verb == "reject" else ()
    done = called("stages", verb, stage, *words, *place.at, LOGNAME="bob")
    assert (done.exit_code, one_line(done.stderr)) == (6, True)
    assert "'bob' is neither that user nor in a group of that name; to answer in that name: --by ann" in done.stderr


def test_the_id_of_a_flow_or_a_task_instead_of_a_stage_names_the_stages_that_wait(place: Place) -> None:
    flow, stage = waiting(place)
    task = place.engine.members(flow)[0].id
    for id_, what in ((flow, "flow"), (flow[-8:], "flow"), (task, "task")):
        done = called("stages", "approve", id_, *place.at)
        assert (done.exit_code, one_line(done.stderr)) == (4, True)
        assert f"it is a {what}, and these of its stages wait: {flow}/ask" in done.stderr
    told("stages", "skip", stage, *place.at, "--by", "ann")
    assert f"none of its stages waits; it has: {flow}/ask" in called("stages", "approve", flow, *place.at).stderr
    single = submit(place.engine)
    assert "it is a" not in called("stages", "approve", single, *place.at).stderr


def test_the_input_of_an_approval_must_fit_its_form(place: Place) -> None:
    _, stage = waiting(place, {"type": "object", "required": ["sum"]})
    done = called("stages", "approve", stage, *place.at, "--by", "ann", "--input", "{}")
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert told("stages", "approve", stage, *place.at, "--by", "ann", "--input", '{"sum": 3}')["state"] == "pending"


def test_a_stage_is_rejected_for_a_reason(place: Place) -> None:
    flow, stage = waiting(place)
    assert called("stages", "reject", stage, *place.at).exit_code == 2
    assert told("stages", "reject", stage, *place.at, "--by", "ann", "--reason", "too dear")["state"] == "failed"
    assert place.engine.flow(flow).state == "failed"
    assert place.engine.stage(stage).answer["note"] == "too dear"


def test_a_stage_is_skipped_once(place: Place) -> None:
    _, stage = waiting(place)
    assert told("stages", "skip", stage[-8:], *place.at, "--by", "ann")["state"] == "skipped"
    done = called("stages", "approve", stage, *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (5, True)


def test_a_stage_is_cancelled_for_a_reason(place: Place) -> None:
    flow = place.flow()
    take(place.engine)
    asked = called("stages", "cancel", f"{flow}/fetch", *place.at).stdout
    assert "1 running task was asked to stop" in asked
    assert "`onetray stages cancel" in asked
    answer = told("stages", "cancel", f"{flow[-8:]}/fetch", *place.at, "--hard", "--reason", "not needed")
    assert (answer["state"], answer["was"]) == ("cancelled", "pending")
    assert place.engine.flow(flow).state == "cancelled"


@pytest.mark.parametrize("by", ["flow", "stage", "name"])
def test_tasks_are_listed_by_flow_or_stage(place: Place, by: str) -> None:
    flow = place.flow()
    word = {"flow": flow, "stage": place.engine.stages(flow)[0].id, "name": f"{flow}/fetch"}[by]
    found = told("tasks", "list", word, *place.at)
    expected = ["fetch", "fetch", "check"] if by == "flow" else ["fetch", "fetch"]
    assert [t["stage"] for t in found["tasks"]] == expected
    page = told("tasks", "list", word, *place.at, "--limit", "1")
    assert page["after"] == found["tasks"][0]["id"]
    assert told("tasks", "list", word, *place.at, "--after", page["after"])["tasks"] == found["tasks"][1:]


def test_the_failed_tasks_of_a_flow_are_found_with_their_errors(place: Place) -> None:
    flow = place.flow()
    place.engine.fail(take(place.engine), "no such shop", retryable=False)
    run_all(place.engine)
    lines = called("tasks", "list", flow, *place.at, "--state", "failed").stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("no such shop")


def test_all_about_one_task(place: Place) -> None:
    task = place.engine.members(place.flow())[0].id
    text = called("tasks", "show", task[-8:], *place.at).stdout
    assert '{"shop": 0}' in text
    assert told("tasks", "show", task, *place.at)["kind"] == "fetch"
    assert called("tasks", "list", UNKNOWN_ID, *place.at).exit_code == 4

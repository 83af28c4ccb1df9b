"""Who may answer an approval: the user that it names, the members of the group that it names, or anybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, NotApprover
from onetray.domain.flow import Approval, Placed, StageSpec, TaskSpec
from onetray.domain.flow_commands import ApproveStage
from onetray.engine import Engine
from tests.support.engines import must_verify
from tests.support.flows import run_all

Answer = Callable[..., Placed]


def waiting(engine: Engine, owner: str | None = "editor", **fields: Any) -> str:
    """A stage that waits for this user or group; None for one that anybody may let go on."""
    approval = None if owner is None else Approval(owner=owner, **fields)
    stage = StageSpec("publish", [TaskSpec("x")], approval=approval, start_as_waiting=True)
    return engine.submit_flow("f", [stage]).stages[0]


@pytest.mark.parametrize("verb", ["approve_stage", "reject_stage", "skip_stage"])
def test_only_whom_the_approval_names_may_answer(engine: Engine, verb: str) -> None:
    stage, answer = waiting(engine), getattr(engine, verb)
    with pytest.raises(NotApprover, match="'publish' waits for 'editor', and 'bob' is neither") as refused:
        answer(stage, actor_name="bob", actor_groups=("readers",))
    assert refused.value.facts == {"stage": stage, "owner": "editor"}
    assert engine.stage(stage).state == "waiting"
    assert engine.stage(stage).answer is None
    assert answer(stage, actor_name="editor").state in ("pending", "failed", "skipped")
    must_verify(engine)


@pytest.mark.parametrize("verb", ["approve_stage", "reject_stage", "skip_stage"])
def test_a_member_of_the_group_may_answer_and_is_recorded_by_name(engine: Engine, verb: str) -> None:
    stage = waiting(engine)
    getattr(engine, verb)(stage, actor_name="ann", actor_groups=("editor", "staff"))
    assert engine.stage(stage).answer["by"] == "user:ann"


@pytest.mark.parametrize("owner", [None, "anybody"])
def test_anybody_may_answer_an_approval_that_names_nobody(engine: Engine, owner: str | None) -> None:
    assert engine.approve_stage(waiting(engine, owner), actor_name="bob").state == "pending"


def test_a_refused_answer_leaves_the_other_commands_of_its_batch_alone(engine: Engine) -> None:
    first, second = waiting(engine), waiting(engine)
    refused, accepted = engine.run([ApproveStage(first, actor_name="bob"), ApproveStage(second, actor_name="editor")])
    assert isinstance(refused.error, NotApprover)
    assert (accepted.ok, engine.stage(first).state, engine.stage(second).state) == (True, "waiting", "pending")


@pytest.mark.parametrize("outcome", ["approve", "skip", "reject"])
def test_the_deadline_of_an_approval_needs_no_approver(engine: Engine, clock: VirtualClock, outcome: str) -> None:
    stage = waiting(engine, deadline_s=10, on_deadline=outcome)
    clock.advance(11)
    engine.sweep()
    assert engine.stage(stage).state != "waiting"


def test_nobody_else_replaces_the_approval_by_one_of_his_own(engine: Engine) -> None:
    gated = StageSpec("publish", [TaskSpec("x")], when=TaskSpec("ask"), approval=Approval(owner="editor"))
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), gated])
    with pytest.raises(NotApprover):
        engine.wait_stage(flow.stages[1], Approval(owner="bob"), actor_name="bob")
    # Without one of his own he may hold it: the editor still decides.
    engine.wait_stage(flow.stages[1], actor_name="bob")
    assert engine.stage(flow.stages[1]).approval["owner"] == "editor"
    must_verify(engine)


def test_a_held_stage_waits_for_whom_the_hold_names(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    engine.wait_stage(flow.stages[0], Approval(owner="ann"), actor_name="bob")
    with pytest.raises(NotApprover):
        engine.approve_stage(flow.stages[0], actor_name="bob")
    engine.approve_stage(flow.stages[0], actor_name="ann")
    assert run_all(engine) == ["x"]


def test_a_second_approval_changes_nothing_whoever_sends_it(engine: Engine) -> None:
    stage = waiting(engine)
    engine.approve_stage(stage, actor_name="editor")
    assert engine.approve_stage(stage, actor_name="bob").repeated
    assert engine.stage(stage).answer["by"] == "user:editor"


@pytest.mark.parametrize("groups", [["*"], [""], ["a\nb"], "editor", [5]])
def test_a_token_is_in_groups_with_plain_names_only(engine: Engine, groups: Any) -> None:
    with pytest.raises(InvalidInput, match="group"):
        engine.tokens.create("ann", ["operate"], groups=groups)
    assert engine.tokens.list() == []


def test_the_groups_of_a_token_are_kept_once_each(engine: Engine) -> None:
    new = engine.tokens.create("ann", ["operate"], groups=["editor", "staff, too", "editor"])
    assert new.token.groups == ("editor", "staff, too")
    assert [token.groups for token in engine.tokens.list()] == [("editor", "staff, too")]

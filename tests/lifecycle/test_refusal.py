"""The words of a refused command."""

from __future__ import annotations

import pytest

from onetray.domain.commands import Report
from onetray.domain.lifecycle import MACHINES
from onetray.domain.machine import USER, WORKER
from onetray.domain.refusal import refusal_text
from onetray.domain.verbs import VERBS


@pytest.mark.parametrize(
    ("entity", "state", "verb", "says"),
    [
        ("task", "succeeded", "cancel", "the task has succeeded already and cannot be cancelled"),
        ("task", "queued", "resume", "the task is queued and cannot be resumed"),
        ("task", "dead_lettered", "succeed", "the task is a dead letter already and cannot be reported as succeeded"),
        (
            "task",
            "cancelled",
            "set_priority",
            "the task has been cancelled already and cannot be given another priority",
        ),
        ("stage", "created", "approve", "the stage has not started yet and cannot be approved"),
        ("task", "cancelled", "cancel", "the task has been cancelled already"),
        ("flow", "paused", "pause", "the flow is paused already"),
        ("flow", "paused", "open", "the flow is paused and cannot be opened"),
        ("flow", "partial", "take a stage", "the flow has succeeded partly already and cannot take a stage"),
    ],
)
def test_a_refusal_is_a_sentence(entity: str, state: str, verb: str, says: str) -> None:
    assert refusal_text(entity, state, verb) == says


def test_what_is_ending_is_said_to_be_ending() -> None:
    says = "the stage is running, is ending and cannot be skipped"
    assert refusal_text("stage", "running", "skip", is_ending=True) == says


def test_every_verb_that_may_be_refused_has_its_words() -> None:
    for machine in MACHINES.values():
        verbs = {t.name for t in machine.transitions if t.by & {USER, WORKER} and not t.creates}
        reports = {verb for verb, kind in VERBS.items() if issubclass(kind, Report)} if machine.fenced else set()
        for state in machine.states:
            for verb in verbs | reports:
                words = refusal_text(machine.entity, state, verb)
                assert f"cannot {verb}" not in words
                assert "_" not in words

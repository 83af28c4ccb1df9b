"""Confirmation by elicitation: a client's user is asked before a job is cancelled or run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mcp_types as types
import pytest

from tests.mcp.agents import LEGACY, Agent, agent, agent_at, process
from tests.mcp.conftest import Place


class User:
    """Somebody who answers forms."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Any = None

    async def __call__(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.asked.append(params.message)
        assert params.requested_schema["required"] == ["confirm"]
        return types.ElicitResult(**self.answer)


@pytest.fixture(scope="module")
def user() -> User:
    return User()


@pytest.fixture(scope="module", params=["http", "older-stdio"])
def asked(request: pytest.FixtureRequest, place: Place, user: User) -> Iterator[Agent]:
    """An agent whose client can ask its user."""
    if request.param == "http":
        with agent_at(place.url, elicitation_callback=user) as connected:
            yield connected
        return
    with agent(process("--database", place.database), LEGACY, elicitation_callback=user) as connected:
        yield connected


def test_a_cancel_is_confirmed_by_the_user(asked: Agent, user: User, queue: str) -> None:
    id_ = asked.submit(queue)
    user.asked, user.answer = [], {"action": "accept", "content": {"confirm": True}}
    assert asked.call("cancel_job", id=id_)["state"] == "cancelled"
    assert len(user.asked) == 1
    assert id_ in user.asked[0]
    assert asked.call("redrive_job", id=id_)["retry_of"] == id_


@pytest.mark.parametrize(
    "answer", [{"action": "decline"}, {"action": "cancel"}, {"action": "accept", "content": {"confirm": False}}]
)
def test_what_the_user_declines_is_not_done(asked: Agent, user: User, queue: str, answer: dict[str, Any]) -> None:
    id_ = asked.submit(queue)
    user.answer = answer
    assert asked.refusal("cancel_job", id=id_).startswith("Declined: ")
    assert asked.call("inspect_job", id=id_)["state"] == "queued"


def test_nobody_is_asked_about_what_cannot_be_done(asked: Agent, user: User, queue: str) -> None:
    id_ = asked.submit(queue)
    user.asked = []
    assert "has not ended" in asked.refusal("redrive_job", id=id_)
    assert asked.call("cancel_job", id=id_, confirm=True)["done"] is True
    assert user.asked == []

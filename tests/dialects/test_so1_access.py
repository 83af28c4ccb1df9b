"""What a token may do through so1: cancel what is its own, and see no more than its scopes allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from tests.http.callers import served, token
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.tasks import running, submit

KEY = "7d0c1f5e-5b52-4c2e-9d6c-0a9a5a3f0b11"
SECRET = "what-only-readers-see"
BODY = {"action": "deploy", "inputs": {"site": "acme"}}


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Who may do what is decided without the database: one will do."""
    with engine_on("sqlite://:memory:", VirtualClock()) as found:
        yield found


@pytest.fixture
def api(engine: Engine) -> Iterator[TestClient]:
    with served(engine) as found:
        yield found


def post(api: TestClient, headers: dict[str, str], key: str | None = None) -> dict[str, Any]:
    answer = api.post("/api/jobs", json=BODY, headers=headers | ({"Idempotency-Key": key} if key else {}))
    assert answer.status_code == 202, answer.text
    return dict(answer.json()["job"])


def cancel(api: TestClient, id_: str, headers: dict[str, str]) -> Any:
    return api.post(f"/api/jobs/{id_}/cancel", headers=headers)


def test_a_token_that_may_only_submit_cancels_its_own_jobs_and_no_others(api: TestClient, engine: Engine) -> None:
    ann, bob = token(engine, "submit"), token(engine, "submit")
    id_ = post(api, ann)["id"]
    refused = cancel(api, id_, bob)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    assert refused.json()["error"]["details"] == {"needs": ["operate"]}
    assert engine.task(id_).state == "queued"
    assert cancel(api, id_, ann).json()["job"]["state"] == "cancelled"


def test_two_tokens_of_one_name_are_two_owners(api: TestClient, engine: Engine) -> None:
    """`token` gives all of them the same name."""
    id_ = post(api, token(engine, "submit", "read"))["id"]
    assert cancel(api, id_, token(engine, "submit", "read")).status_code == 403


def test_an_operator_cancels_every_job(api: TestClient, engine: Engine) -> None:
    for id_ in (post(api, token(engine, "submit"))["id"], submit(engine)):
        assert cancel(api, id_, token(engine, "operate")).json()["job"] == {"id": id_, "state": "cancelled"}


def test_a_job_that_was_made_without_a_token_is_no_tokens_own(api: TestClient, engine: Engine) -> None:
    id_ = post(api, {})["id"]
    assert cancel(api, id_, token(engine, "submit")).status_code == 403
    assert cancel(api, id_, token(engine, "admin")).status_code == 200


@each_case(("scopes", "seen"), [(["submit"], False), (["operate"], False), (["operate", "read"], True)])
def test_the_answer_to_a_cancel_shows_the_job_to_readers_alone(
    api: TestClient, engine: Engine, scopes: list[str], seen: bool
) -> None:
    who = token(engine, *scopes)
    id_ = post(api, who if "submit" in scopes else token(engine, "submit"))["id"]
    engine.log(running(engine), SECRET)
    answer = cancel(api, id_, who)
    assert answer.json()["job"]["state"] == "running"
    assert (SECRET in answer.text, set(answer.json()["job"]) == {"id", "state"}) == (seen, not seen)


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_the_answer_to_a_key_that_was_used_shows_the_job_to_readers_alone(
    api: TestClient, engine: Engine, whose: str
) -> None:
    ann = token(engine, "submit")
    bob = ann if whose == "its own" else token(engine, "submit")
    id_ = post(api, ann, KEY)["id"]
    claimed = running(engine)
    engine.log(claimed, SECRET)
    engine.succeed(claimed, {"said": SECRET})
    assert post(api, bob, KEY) == {"id": id_, "state": "success"}
    assert post(api, token(engine, "submit", "read"), KEY)["output"] == {"said": SECRET}

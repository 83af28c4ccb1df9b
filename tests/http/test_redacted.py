"""No answer holds a secret: whatever the payload is, and whatever a handler has made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onetray.domain.clock import VirtualClock
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.http.app import build
from tests.http.callers import BASE
from tests.http.walking import ways
from tests.support.engines import engine_on

REDACT = Policy(max_attempts=1, lease_s=36_000.0, redact=("password", "card.number", "keys.*"))
WORD = st.text(alphabet="qxzQXZ\"'\\ß", min_size=6, max_size=12)
PAYLOAD = st.fixed_dictionaries(
    {
        "password": WORD,
        "card": st.fixed_dictionaries({"number": WORD | st.integers(10**14, 10**15), "bank": st.just("b")}),
        "keys": st.lists(WORD, max_size=2),
    }
)


@pytest.fixture(scope="module")
def api() -> Iterator[tuple[Engine, TestClient]]:
    with engine_on("sqlite://:memory:", VirtualClock()) as engine:
        engine.configure("login", REDACT)
        with TestClient(build(engine), base_url=BASE, raise_server_exceptions=False) as client:
            yield engine, client


DESCRIPTIONS = ("/api/v1/openapi.json", "/docs")
"""What the server says of itself: the same, whatever jobs there are."""


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=PAYLOAD, fails=st.booleans())
def test_no_secret_of_any_payload_is_in_any_answer(
    api: tuple[Engine, TestClient], payload: dict[str, Any], fails: bool
) -> None:
    engine, client = api
    descriptions = {path: client.get(path).content for path in DESCRIPTIONS}
    id_ = str(engine.submit("login", payload).id)
    [job] = engine.claim(worker="w")
    assert job.payload == payload
    said = f"{payload} {json.dumps(payload)} {payload['password']}"
    engine.log(job, ("info", said, {"given": payload}))
    engine.say_progress(job, 1, 2, said)
    engine.fail(job, said) if fails else engine.succeed(job, {"said": said, "echo": payload})
    secrets = [str(s) for s in (payload["password"], payload["card"]["number"], *payload["keys"])]
    for way in ways(client.app):  # type: ignore[arg-type]
        if way.method != "GET" or (way.endless and not way.parameters):
            continue
        answer = client.get(way.at(id_))
        if way.path in DESCRIPTIONS:
            # A secret number may happen to be one of the API's limits.
            assert answer.content == descriptions[way.path]
            continue
        is_json = answer.headers["content-type"].endswith("json")
        told = list(leaves(answer.json())) if is_json else [answer.text]
        assert not [s for s in secrets for leaf in told if s in leaf], way

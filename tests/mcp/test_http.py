"""/mcp by plain requests, without the SDK: no session, no handshake, and the checks of every other route."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.http.callers import served, token
from tests.mcp.conftest import Place, at
from tests.support.engines import engine_on

JSON = {"content-type": "application/json"}
MODERN = {"mcp-protocol-version": "2026-07-28"}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def http(place: Place) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=place.url, timeout=60, trust_env=False) as client:
        yield client


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", name=tool, arguments=arguments)


def answered(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["result"]["structuredContent"]
    return found


def test_a_single_post_lists_the_tools(http: httpx2.Client) -> None:
    response = http.post("/mcp", json=request("tools/list"))
    assert response.json()["id"] == 7
    assert "submit_job" in [tool["name"] for tool in response.json()["result"]["tools"]]
    assert "mcp-session-id" not in response.headers


def test_a_single_post_calls_a_tool(http: httpx2.Client, queue: str) -> None:
    job = answered(http.post("/mcp", json=call("submit_job", kind="a", queue=queue)))
    claimed = answered(http.post("/mcp", json=call("claim_work", worker="w", queue=queue)))
    assert [task["id"] for task in claimed["tasks"]] == [job["id"]]


def test_a_call_of_the_newest_revision_is_stamped(http: httpx2.Client) -> None:
    body = request("tools/call", name="find_jobs", arguments={"limit": 1}, _meta=ENVELOPE)
    headers = {**MODERN, "mcp-method": "tools/call", "mcp-name": "find_jobs"}
    result = http.post("/mcp", json=body, headers=headers).json()["result"]
    assert result["resultType"] == "complete"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "onetray"


@pytest.mark.parametrize(
    ("headers", "meta", "code"),
    [
        ({"mcp-method": "tools/list"}, ENVELOPE, -32020),
        ({"mcp-method": "tools/call", "mcp-name": "another"}, ENVELOPE, -32020),
        ({"mcp-method": "tools/call", "mcp-name": "find_jobs"}, {}, -32602),
        ({"mcp-protocol-version": "2031-01-01", "mcp-method": "tools/call", "mcp-name": "find_jobs"},
         {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": "2031-01-01"}, -32022),
    ],
)  # fmt: skip
def test_headers_and_envelope_must_agree(
    http: httpx2.Client, headers: dict[str, str], meta: dict[str, Any], code: int
) -> None:
    body = request("tools/call", name="find_jobs", arguments={}, _meta=meta)
    response = http.post("/mcp", json=body, headers={**MODERN, **headers})
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


def test_the_handshake_of_older_clients_is_answered(http: httpx2.Client) -> None:
    body = request(
        "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"}
    )
    response = http.post("/mcp", json=body, headers={"accept": "application/json, text/event-stream"})
    data = next(line for line in response.text.splitlines() if line.startswith("data: {"))
    result = json.loads(data.removeprefix("data: "))["result"]
    assert (result["protocolVersion"], result["serverInfo"]["name"]) == ("2025-06-18", "onetray")
    assert "untrusted" in result["instructions"]
    assert http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"n": 123456789012345678901234567890}}', -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
        (b'"ping"', -32600),
        (b"{}", -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', -32602),
    ],
)
def test_what_is_no_request_gets_an_error_of_json_rpc(http: httpx2.Client, body: bytes, code: int) -> None:
    response = http.post("/mcp", content=body, headers=JSON)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert response.json()["jsonrpc"] == "2.0"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "there is no tool 'None'"),
        ({"name": "nothing"}, "there is no tool 'nothing'"),
        ({"name": ["find_jobs"]}, "there is no tool"),
        ({"name": "find_jobs" * 100_000}, "there is no tool 'find_jobsfind_jobs"),
    ],
)
def test_an_unknown_tool_is_an_error_of_the_protocol(http: httpx2.Client, params: dict[str, Any], words: str) -> None:
    error = http.post("/mcp", json=request("tools/call", **params)).json()["error"]
    assert error["code"] == -32602
    assert words in error["message"]
    assert len(error["message"]) < 1_000


@pytest.mark.parametrize("arguments", [[], "x", 7, True])
def test_arguments_must_be_an_object(http: httpx2.Client, arguments: object) -> None:
    body = request("tools/call", name="find_jobs", arguments=arguments)
    result = http.post("/mcp", json=body).json()["result"]
    assert result["isError"] is True
    assert "arguments must be an object" in result["content"][0]["text"]


def test_thousands_of_unknown_arguments_are_one_short_error(http: httpx2.Client) -> None:
    result = http.post("/mcp", json=call("find_jobs", **{f"a{i}": i for i in range(50_000)})).json()["result"]
    assert len(result["content"][0]["text"]) < 300


def test_bodies_have_the_limits_of_all_routes() -> None:
    with engine_on("sqlite://:memory:") as engine, served(engine) as api:
        too_large = api.post("/mcp", content=b" " * 10_000_001, headers=JSON)
        too_deep = api.post("/mcp", content=b"[" * 100 + b"]" * 100, headers=JSON)
        no_json = api.post("/mcp", content=b"{}", headers={"content-type": "text/plain"})
    for response, status, code in (
        (too_large, 413, "body_too_large"), (too_deep, 400, "too_deep"), (no_json, 415, "not_json"),
    ):  # fmt: skip
        assert response.status_code == status
        assert response.json()["error"]["data"]["code"] == code


def test_only_post_is_allowed(http: httpx2.Client) -> None:
    for method in ("GET", "DELETE", "PUT"):
        response = http.request(method, "/mcp")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_pages_and_names_of_others_are_rejected(http: httpx2.Client) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        response = http.post("/mcp", json=request("tools/list"), headers=headers)
        assert response.status_code == 403
        assert response.json()["error"]["data"]["code"] in ("wrong_host", "wrong_origin")
    assert http.post("/mcp", json=request("ping"), headers={"origin": "http://localhost:3000"}).status_code == 200


def test_x_tenant_names_the_namespace_of_a_server_without_tokens(http: httpx2.Client, queue: str) -> None:
    ours, theirs = {"x-tenant": f"ours-{queue}"}, {"x-tenant": "theirs"}
    id_ = answered(http.post("/mcp", json=call("submit_job", kind="a", queue=queue), headers=ours))["id"]
    for others in (theirs, {}):
        assert answered(http.post("/mcp", json=call("find_jobs", queue=queue), headers=others))["jobs"] == []
        claimed = answered(http.post("/mcp", json=call("claim_work", worker="w", queue=queue), headers=others))
        assert claimed["tasks"] == []
        result = http.post("/mcp", json=call("inspect_job", id=id_), headers=others).json()["result"]
        assert result["isError"] is True
    found = answered(http.post("/mcp", json=call("find_jobs", queue=queue), headers=ours))["jobs"]
    assert [job["id"] for job in found] == [id_]


@pytest.mark.parametrize(
    "headers",
    [[("x-tenant", "")], [("x-tenant", "a" * 201)], [("x-tenant", "a"), ("x-tenant", "b")], [("x-tenant", b"\xff")]],
)
def test_a_wrong_x_tenant_is_refused(http: httpx2.Client, headers: list[tuple[str, Any]]) -> None:
    response = http.post("/mcp", json=request("tools/list"), headers=headers)
    assert response.status_code in (400, 413)
    assert response.json()["error"]["data"]["field"] == "x-tenant"


def test_a_namespace_may_have_any_characters(http: httpx2.Client, queue: str) -> None:
    named = [("x-tenant", "größe".encode())]
    answered(http.post("/mcp", json=call("submit_job", kind="a", queue=queue), headers=named))
    assert len(answered(http.post("/mcp", json=call("find_jobs", queue=queue), headers=named))["jobs"]) == 1


def test_a_caller_that_leaves_does_not_stop_its_job(http: httpx2.Client, place: Place, queue: str) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        http.post("/mcp", json=call("run_job", kind="a", queue=queue, wait_s=600), timeout=0.3)
    (job,) = answered(http.post("/mcp", json=call("find_jobs", queue=queue)))["jobs"]
    assert job["state"] == "queued"


def test_the_first_requests_of_a_server_may_come_at_once() -> None:
    """The SDK is imported by the first request that needs it."""
    with engine_on("sqlite://:memory:") as engine, at(engine) as server:
        found: list[int] = []

        def discover() -> None:
            body = request("server/discover", _meta=ENVELOPE)
            headers = {**MODERN, "mcp-method": "server/discover", "accept": "application/json, text/event-stream"}
            with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
                found.append(client.post("/mcp", json=body, headers=headers).status_code)

        callers = [threading.Thread(target=discover) for _ in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert found == [200] * 8


def test_a_server_without_tools_has_no_mcp() -> None:
    with engine_on("sqlite://:memory:") as engine, at(engine, mcp_tools="none") as server:
        response = httpx2.post(f"{server.url}/mcp", json=request("tools/list"), trust_env=False)
        assert response.status_code == 404


def test_tokens_are_needed_once_there_is_one() -> None:
    with engine_on("sqlite://:memory:") as engine, at(engine) as server:
        headers = token(engine, "read", namespace="ours")
        with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            refused = client.post("/mcp", json=request("tools/list"))
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert client.post("/mcp", json=request("tools/list"), headers=headers).status_code == 200
            other = client.post("/mcp", json=request("tools/list"), headers={**headers, "x-tenant": "theirs"})
            assert other.status_code == 403
            assert "the token is for the namespace 'ours'" in other.json()["error"]["message"]
            same = client.post("/mcp", json=request("tools/list"), headers={**headers, "x-tenant": "ours"})
            assert same.status_code == 200


def test_rates_are_limited() -> None:
    with engine_on("sqlite://:memory:") as engine, at(engine, requests_per_s=2.0) as server:
        codes = [httpx2.post(f"{server.url}/mcp", json=request("ping"), trust_env=False).status_code for _ in range(6)]
        assert 429 in codes

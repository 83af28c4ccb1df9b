"""`Idempotency-Key`: what is sent again is carried out once, and answered the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import Forbidden, InProgress, OnetrayError, OutcomeUnknown, Unavailable
from onetray.engine import Engine
from onetray.engine.http_keys import DIED_S, KEPT_S, HeldKey
from onetray.http import idempotency
from onetray.http.app import build
from onetray.http.auth.middleware import LOCAL
from onetray.http.auth.scopes import READ, Principal
from onetray.http.native_route import NativeRoute
from onetray.http.routes import queues
from onetray.http.services import SERVICES
from tests.http.callers import served, token
from tests.http.calls import NOBODY, claim, dead, flow, get, held, post, refusal, sent, submit, ticket
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.waits import until

REPLAY = "idempotent-replay"


def test_a_submit_under_a_key_makes_one_job(shop: TestClient, queue: str) -> None:
    body = {"kind": "mail", "queue": queue, "payload": {"a": 1, "b": 2}}
    first = post(shop, "/jobs", body, 201, Idempotency_Key=queue)
    again = post(shop, "/jobs", {**body, "payload": {"b": 2, "a": 1}}, 200, Idempotency_Key=queue)
    assert (again["id"], again["repeated"]) == (first["id"], True)
    other = sent(shop, "/jobs", {**body, "payload": {}}, Idempotency_Key=queue)
    assert refusal(other) == (409, "key_reused")


def test_a_flow_under_a_key_is_made_once(shop: TestClient, queue: str) -> None:
    body = {"name": "f", "stages": [{"name": "a", "tasks": [{"kind": "k", "queue": queue}]}]}
    first = post(shop, "/jobs", body, 201, Idempotency_Key=queue)
    assert post(shop, "/jobs", body, 200, Idempotency_Key=queue)["id"] == first["id"]
    assert refusal(sent(shop, "/jobs", {**body, "stages": []}, Idempotency_Key=queue)) == (409, "key_reused")


def test_the_key_in_the_body_is_the_same_as_that_in_the_header(shop: TestClient, queue: str) -> None:
    body = {"kind": "mail", "queue": queue, "idempotency_key": queue}
    first = post(shop, "/jobs", body, 201)
    assert post(shop, "/jobs", body, 200, Idempotency_Key=queue)["id"] == first["id"]
    assert refusal(sent(shop, "/jobs", body, Idempotency_Key="other")) == (400, "invalid_input")


def test_a_key_that_the_body_leaves_open_is_the_headers(shop: TestClient, queue: str) -> None:
    body = {"kind": "mail", "queue": queue, "idempotency_key": None}
    first = post(shop, "/jobs", body, 201, Idempotency_Key=queue)
    assert post(shop, "/jobs", body, 200, Idempotency_Key=queue)["id"] == first["id"]
    claimed = {"worker": "w", "queue": queue, "request_key": None}
    assert post(shop, "/tasks/claim", claimed, Idempotency_Key=queue)["tasks"][0]["id"] == first["id"]


def test_any_other_post_is_carried_out_once(shop: TestClient, queue: str) -> None:
    jobs = {"jobs": [{"kind": "mail", "queue": queue}]}
    first = sent(shop, "/jobs/batch", jobs, Idempotency_Key=queue)
    again = sent(shop, "/jobs/batch", jobs, Idempotency_Key=queue)
    assert REPLAY not in first.headers
    assert again.headers[REPLAY] == "true"
    assert (again.status_code, again.content, again.headers["content-type"]) == (
        200, first.content, first.headers["content-type"],
    )  # fmt: skip
    assert len(get(shop, "/jobs", queue=queue)["jobs"]) == 1


def test_a_status_other_than_200_is_given_again(shop: TestClient, queue: str) -> None:
    id_ = dead(shop, queue)
    first = post(shop, f"/jobs/{id_}/retry", {}, 201, Idempotency_Key=queue)
    assert post(shop, f"/jobs/{id_}/retry", {}, 201, Idempotency_Key=queue) == first


@pytest.mark.parametrize("other", ["/jobs/{id}/pause", "/jobs/{nobody}/cancel"])
def test_a_key_belongs_to_one_route_and_one_thing(shop: TestClient, queue: str, other: str) -> None:
    id_ = submit(shop, queue)
    post(shop, f"/jobs/{id_}/cancel", {}, Idempotency_Key=queue)
    found = sent(shop, other.format(id=id_, nobody=NOBODY), {}, Idempotency_Key=queue)
    assert refusal(found) == (409, "key_reused")


def test_another_body_under_the_key_is_refused(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue)
    post(shop, f"/jobs/{id_}/cancel", {"mode": "soft", "reason": "x"}, Idempotency_Key=queue)
    post(shop, f"/jobs/{id_}/cancel", {"reason": "x", "mode": "soft"}, Idempotency_Key=queue)
    found = sent(shop, f"/jobs/{id_}/cancel", {"mode": "hard"}, Idempotency_Key=queue)
    assert refusal(found) == (409, "key_reused")


def test_a_refusal_is_an_answer_too(shop: TestClient, queue: str) -> None:
    id_ = flow(shop, queue)["id"]
    first = sent(shop, f"/jobs/{id_}/resume", {}, Idempotency_Key=queue)
    post(shop, f"/jobs/{id_}/pause")
    again = sent(shop, f"/jobs/{id_}/resume", {}, Idempotency_Key=queue)
    assert refusal(first) == refusal(again) == (409, "illegal_transition")
    assert again.headers[REPLAY] == "true"
    assert again.json() == first.json()


def test_what_was_not_understood_leaves_the_key_free(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue)
    assert refusal(sent(shop, f"/jobs/{id_}/priority", {}, Idempotency_Key=queue)) == (400, "invalid_input")
    post(shop, f"/jobs/{id_}/priority", {"priority": 1}, Idempotency_Key=queue)


def test_what_broke_leaves_the_key_free(
    shop: TestClient, shared_engine: Engine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unavailable

    with monkeypatch.context() as broken:
        broken.setattr(shared_engine, "pause_queue", away)
        assert refusal(sent(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)) == (503, "unavailable")
    assert post(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)["paused"]


Batch = tuple[str, dict[str, Any]]


def jobs_of(_: TestClient, queue: str) -> Batch:
    return "/jobs/batch", {"jobs": [{"kind": "mail", "queue": queue}, {"kind": "mail", "queue": queue}]}


def reports_of(shop: TestClient, queue: str) -> Batch:
    task = held(shop, queue)
    return "/tasks/reports", {"reports": [{"verb": "start", "task": task["id"], **ticket(task)}]}


def redrive_of(shop: TestClient, queue: str) -> Batch:
    dead(shop, queue, kind=queue)
    return "/dead-letters/redrive", {"kind": queue}


@contextmanager
def failing(engine: Engine, error: OnetrayError, *, after: bool = False) -> Iterator[None]:
    """Have each transaction of commands fail: before it is begun, or after it was committed."""
    committer = engine._committer
    work = committer._run_batch

    def fail(commands: Any) -> Any:
        if after:
            work(commands)
        raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(committer, "_run_batch", fail)
        patched.setattr(committer, "_patience_s", 0.0)
        yield


@pytest.mark.parametrize("batch", [jobs_of, reports_of, redrive_of])
def test_a_batch_that_was_not_carried_out_leaves_the_key_free(
    shop: TestClient, shared_engine: Engine, queue: str, batch: Callable[[TestClient, str], Batch]
) -> None:
    path, body = batch(shop, queue)
    with failing(shared_engine, Unavailable("the database is away")):
        refused = post(shop, path, body, Idempotency_Key=queue)
    done = post(shop, path, body, Idempotency_Key=queue)
    again = sent(shop, path, body, Idempotency_Key=queue)
    assert {each["error"]["code"] for each in refused.get("verdicts", refused.get("refused"))} == {"unavailable"}
    verdicts = done.get("verdicts", done.get("redriven"))
    assert verdicts
    assert all("value" in verdict for verdict in verdicts)
    assert (again.headers[REPLAY], again.json()) == ("true", done)


def test_a_batch_of_unknown_outcome_makes_no_second_jobs(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    path, body = jobs_of(shop, queue)
    with failing(shared_engine, OutcomeUnknown(), after=True):
        post(shop, path, body, Idempotency_Key=queue)
    done = post(shop, path, body, Idempotency_Key=queue)
    assert all(verdict["value"]["repeated"] for verdict in done["verdicts"])
    assert len(get(shop, "/jobs", queue=queue)["jobs"]) == 2


def test_a_redrive_of_unknown_outcome_is_not_carried_out_again(
    shop: TestClient, shared_engine: Engine, queue: str
) -> None:
    """By its filters it would choose other letters."""
    path, body = redrive_of(shop, queue)
    with failing(shared_engine, OutcomeUnknown(), after=True):
        post(shop, path, body, Idempotency_Key=queue)
    dead(shop, f"{queue}-2", kind=queue)
    assert sent(shop, path, body, Idempotency_Key=queue).headers[REPLAY] == "true"


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    shop: TestClient, shared_engine: Engine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unavailable

    with monkeypatch.context() as broken:
        broken.setattr(shared_engine.http_keys, "answer", away)
        assert post(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)["paused"]
    assert refusal(sent(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)) == (409, "in_progress")


def test_an_answer_that_is_too_large_is_not_kept(shop: TestClient, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "ANSWER_BYTES", 10)
    task = held(shop, queue)
    post(shop, f"/tasks/{task['id']}/start", ticket(task), Idempotency_Key=queue)
    again = sent(shop, f"/tasks/{task['id']}/start", ticket(task), Idempotency_Key=queue)
    assert refusal(again) == (409, "answer_not_kept")


@each_case("key", ["", " ", "ümlaut".encode("latin-1"), b"\xff", "a\tb", "x" * 501])
def test_a_bad_key_is_refused(shop: TestClient, queue: str, key: str | bytes) -> None:
    for path, body in (("/jobs", {"kind": "a"}), ("/jobs/batch", {"jobs": [{"kind": "a"}]})):
        found = shop.post(f"/api/v1{path}", json=body, headers=[("Idempotency-Key", key)])
        assert refusal(found)[0] == (413 if len(key) > 500 else 400)


def test_two_keys_at_once_are_refused(shop: TestClient) -> None:
    found = shop.post("/api/v1/jobs", json={"kind": "a"}, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    assert refusal(found) == (400, "invalid_input")


def test_a_key_is_free_after_a_day(api: TestClient, clock: VirtualClock, queue: str) -> None:
    post(api, f"/queues/{queue}/pause", {}, Idempotency_Key="k")
    clock.advance(KEPT_S)
    assert not post(api, f"/queues/{queue}/resume", {}, Idempotency_Key="k")["paused"]


def test_a_request_whose_server_died_is_carried_out_again(
    api: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(engine.http_keys, "answer", lambda *_: None)
        post(api, "/queues/q/pause", {}, Idempotency_Key="k")
    assert refusal(sent(api, "/queues/q/pause", {}, Idempotency_Key="k")) == (409, "in_progress")
    clock.advance(DIED_S)
    again = sent(api, "/queues/q/pause", {}, Idempotency_Key="k")
    assert again.status_code == 200
    assert REPLAY not in again.headers


def test_a_batch_whose_server_died_makes_no_second_jobs(
    api: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"jobs": [{"kind": "a"}, {"kind": "a"}, {"name": "f", "stages": []}, {"kind": "a", "idempotency_key": "x"}]}
    with monkeypatch.context() as killed:
        killed.setattr(engine.http_keys, "answer", lambda *_: None)
        first = post(api, "/jobs/batch", jobs, Idempotency_Key="k")
    clock.advance(DIED_S)
    again = post(api, "/jobs/batch", jobs, Idempotency_Key="k")
    assert [v["value"]["id"] for v in again["verdicts"]] == [v["value"]["id"] for v in first["verdicts"]]
    assert all(v["value"]["repeated"] for v in again["verdicts"])


def test_one_tokens_key_leads_to_no_answer_of_anothers() -> None:
    """Of a batch: its jobs have keys made from it. A job's own key is the namespace's, whoever sends it."""
    with engine_on("sqlite://:memory:", VirtualClock()) as engine, served(engine) as api:
        ann, bob = token(engine, "submit"), token(engine, "submit")
        jobs = {"jobs": [{"kind": "mail"}]}
        first, again, other = (
            sent(api, "/jobs/batch", jobs, **who, Idempotency_Key="1").json()["verdicts"][0]["value"]
            for who in (ann, ann, bob)
        )
        assert (again, other["repeated"]) == (first, False)
        assert other["id"] != first["id"]


class Slow:
    """A request under the key `k` that is held between its two halves, through the app itself."""

    def __init__(self, app: Any) -> None:
        self.app, self.runs = app, 0
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def ask(self, app: Any = None) -> Any:
        scope = {
            "type": "http", "method": "POST", "path": "/x", "query_string": b"", "app": app or self.app,
            "headers": [(b"idempotency-key", b"k")], "onetray.principal": LOCAL,
            SERVICES: (app or self.app).state.services,
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        return await idempotency.run_with_key(Request(scope, receive), "/x", self.run)

    async def run(self, _: Request) -> Any:
        self.runs += 1
        if self.runs == 1:
            self.begun.set()
            await self.go_on.wait()
        return idempotency.Json({"done": True})

    async def first(self) -> asyncio.Task[Any]:
        task = asyncio.create_task(self.ask())
        await asyncio.wait_for(self.begun.wait(), 60)
        return task


@pytest.mark.parametrize("later_s", [0, DIED_S + 1])
def test_a_second_request_is_told_while_the_first_is_under_way(
    api: TestClient, clock: VirtualClock, later_s: float
) -> None:
    """However long the first one takes: it is carried out once, and its answer is kept."""

    async def both() -> None:
        slow = Slow(api.app)
        first = await slow.first()
        clock.advance(later_s)
        [refused] = await asyncio.gather(slow.ask(), return_exceptions=True)
        slow.go_on.set()
        await first
        assert (slow.runs, getattr(refused, "code", "answered")) == (1, "in_progress")
        assert (await slow.ask()).headers[REPLAY] == "true"
        assert slow.runs == 1

    asyncio.run(both())


def test_a_request_of_unknown_outcome_is_not_carried_out_again_under_its_key(api: TestClient) -> None:
    """It may have taken effect: whoever sends it again is told so once more."""

    async def twice() -> None:
        slow = Slow(api.app)

        async def unknown(_: Request) -> Any:
            slow.runs += 1
            raise OutcomeUnknown

        slow.run = unknown  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await slow.ask()
        again = await slow.ask()
        assert (again.status_code, again.headers[REPLAY]) == (503, "true")
        assert b"outcome_unknown" in again.body
        assert slow.runs == 1

    asyncio.run(twice())


def test_a_living_server_keeps_its_key_from_other_servers(
    api: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that takes longer than a dead server's is given: its server says in time that it goes on."""
    monkeypatch.setattr(idempotency, "RENEW_S", 0.01)
    renew, renewed_at = engine.http_keys.renew, [0]

    def watched(begun: HeldKey) -> HeldKey | None:
        found = renew(begun)
        renewed_at[0] = 0 if found is None else found.held_at[-1]
        return found

    monkeypatch.setattr(engine.http_keys, "renew", watched)

    async def both() -> None:
        slow = Slow(api.app)
        first = await slow.first()
        clock.advance(DIED_S - 1)
        await until(lambda: renewed_at[0] >= clock.now())
        clock.advance(DIED_S - 1)
        with pytest.raises(InProgress):
            await slow.ask(build(engine))
        slow.go_on.set()
        await first
        assert (await slow.ask(build(engine))).headers[REPLAY] == "true"
        assert slow.runs == 1

    asyncio.run(both())


def test_an_answer_that_is_long_in_being_stored_is_stored(
    api: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No renewal comes between: the answer is stored under the time of the last one."""
    monkeypatch.setattr(idempotency, "RENEW_S", 0.001)
    store = engine.http_keys.answer

    def slowly(*args: Any) -> None:
        clock.advance(1)
        time.sleep(0.2)
        store(*args)

    monkeypatch.setattr(engine.http_keys, "answer", slowly)

    async def twice() -> None:
        slow = Slow(api.app)
        slow.go_on.set()
        await slow.ask()
        assert (await slow.ask()).headers[REPLAY] == "true"
        assert slow.runs == 1

    asyncio.run(twice())


def test_a_renewal_whose_answer_was_lost_loses_nothing(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been written or not: the answer is kept in both cases."""
    monkeypatch.setattr(idempotency, "RENEW_S", 0.01)
    renew, tried = engine.http_keys.renew, asyncio.Event()

    def lost(*args: Any) -> Any:
        if not tried.is_set():
            renew(*args)
            loop.call_soon_threadsafe(tried.set)
        raise OutcomeUnknown

    async def both() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        slow = Slow(api.app)
        first = await slow.first()
        await asyncio.wait_for(tried.wait(), 60)
        slow.go_on.set()
        await first
        assert (await slow.ask()).headers[REPLAY] == "true"

    loop: asyncio.AbstractEventLoop
    monkeypatch.setattr(engine.http_keys, "renew", lost)
    asyncio.run(both())


@each_case("query", [b"", b"nonsense=1"])
def test_nothing_is_given_again_to_who_may_not_ask(api: TestClient, query: bytes) -> None:
    post(api, "/queues/q/pause", {}, Idempotency_Key="k")
    route = next(r for r in queues.router.routes if isinstance(r, NativeRoute) and r.path.endswith("/pause"))
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/queues/q/pause", "query_string": query, "app": api.app,
        "headers": [(b"idempotency-key", b"k")], "onetray.principal": Principal("local", "default", frozenset({READ})),
    }  # fmt: skip
    with pytest.raises(Forbidden):
        asyncio.run(route.get_route_handler()(Request(scope)))


def test_a_claim_under_a_key_is_the_same_claim(shop: TestClient, queue: str) -> None:
    submit(shop, queue)
    body = {"worker": "w", "queue": queue}
    first = post(shop, "/tasks/claim", body, Idempotency_Key=queue)["tasks"]
    assert post(shop, "/tasks/claim", body, Idempotency_Key=queue)["tasks"][0]["id"] == first[0]["id"]
    assert claim(shop, queue) == []

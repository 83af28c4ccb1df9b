"""Workers over HTTP: claims, and reports about what they hold."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from onetray.domain import commands as c
from onetray.engine import Engine
from onetray.http.claim_delivery import release_undelivered, track_request
from onetray.http.claim_waiters import ClaimWaiters
from onetray.http.limits.protocol import Protocol
from onetray.http.services import HttpConfig
from onetray.notify.wake import Wake
from tests.http.calls import NOBODY, claim, flow, get, held, post, refusal, sent, submit, ticket
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.live import Live, serving
from tests.support.waits import wait_until

REPORTS: dict[str, dict[str, Any]] = {
    "start": {}, "beat": {}, "succeed": {"result": 1}, "fail": {"message": "no"}, "release": {},
    "pause": {"owner": "ann", "reason": "which?"}, "log": {"lines": ["x"]}, "progress": {"done": 1},
}  # fmt: skip
STATES = {"start": "running", "succeed": "succeeded", "fail": "queued", "release": "queued", "pause": "blocked",
          "progress": "assigned"}  # fmt: skip


def waiting_at(client: TestClient) -> ClaimWaiters:
    waiting: ClaimWaiters = client.app.state.services.waiting  # type: ignore[attr-defined]
    return waiting


def test_a_claim_gives_what_is_to_be_run_and_its_ticket(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue, payload={"x": [1, None, "é"]}, policy={"timeout_s": 7})
    [task] = claim(shop, queue, kinds=["mail"], lease_s=5)
    assert (task["id"], task["payload"], task["fence"], task["worker"]) == (id_, {"x": [1, None, "é"]}, 1, "w")
    assert (task["lease_s"], task["policy"]["timeout_s"], task["attempt"]) == (5, 7, 1)
    assert "succeed" in task["actions"]
    assert claim(shop, queue) == []


def test_a_claim_gives_the_key_for_other_systems(shop: TestClient, queue: str) -> None:
    plain = submit(shop, queue)
    submit(shop, queue, idempotency_key="order-7")
    assert [task["idempotency_key"] for task in claim(shop, queue)] == [plain, "order-7"]


def test_the_same_claim_again_gives_the_same_tasks(shop: TestClient, queue: str) -> None:
    submit(shop, queue)
    submit(shop, queue)
    first = claim(shop, queue, limit=1, request_key="r")
    by_header = post(shop, "/tasks/claim", {"worker": "w", "queue": queue}, Idempotency_Key="r")["tasks"]
    assert [t["id"] for t in by_header] == [t["id"] for t in first]
    both = {"worker": "w", "queue": queue, "request_key": "other"}
    assert refusal(sent(shop, "/tasks/claim", both, Idempotency_Key="r")) == (400, "invalid_input")


@each_case(
    "body",
    [{}, {"worker": ""}, {"worker": "w", "limit": 0}, {"worker": "w", "limit": 10_001}, {"worker": "w", "wait_s": 31},
     {"worker": "w", "wait_s": -1}, {"worker": "w", "kinds": "mail"}, {"worker": "w", "lease_s": 0},
     {"worker": "w", "namespace": "other"}],
)  # fmt: skip
def test_a_bad_claim_is_refused(shop: TestClient, body: dict[str, Any]) -> None:
    assert refusal(sent(shop, "/tasks/claim", body)) == (400, "invalid_input")


@each_case("verb", REPORTS)
def test_a_report_is_accepted_from_whoever_holds_the_task(shop: TestClient, queue: str, verb: str) -> None:
    task = held(shop, queue)
    told = post(shop, f"/tasks/{task['id']}/{verb}", ticket(task, **REPORTS[verb]))
    if verb == "log":
        assert told == {"cursor": 1}
    elif verb == "beat":
        assert (told["cancel"], told["lost"]) == ([], [])
    else:
        assert (told["id"], told["state"]) == (task["id"], STATES[verb])


@each_case("verb", REPORTS)
def test_a_report_without_the_right_ticket_changes_nothing(shop: TestClient, queue: str, verb: str) -> None:
    task = held(shop, queue)
    path = f"/tasks/{task['id']}/{verb}"
    for wrong in ({"fence": task["fence"] + 1}, {"worker": "somebody else"}):
        assert refusal(sent(shop, path, {**ticket(task, **REPORTS[verb]), **wrong})) == (409, "lease_lost")
    for missing in ("fence", "worker"):
        body = {k: v for k, v in ticket(task, **REPORTS[verb]).items() if k != missing}
        found = sent(shop, path, body)
        assert refusal(found) == (400, "invalid_input")
        assert missing in found.text
    assert refusal(sent(shop, path, ticket(task, **REPORTS[verb], nonsense=1))) == (400, "invalid_input")
    assert refusal(sent(shop, f"/tasks/{NOBODY}/{verb}", ticket(task, **REPORTS[verb]))) == (404, "not_found")
    assert get(shop, f"/tasks/{task['id']}")["version"] == 2


@each_case("verb", REPORTS)
def test_a_report_may_name_its_lease_and_a_refusal_says_why(shop: TestClient, queue: str, verb: str) -> None:
    task = held(shop, queue)
    path = f"/tasks/{task['id']}/{verb}"
    wrong = sent(shop, path, ticket(task, **REPORTS[verb], lease_id="1-0"))
    assert (refusal(wrong), wrong.json()["cause"]) == ((409, "lease_lost"), "other_lease")
    other = sent(shop, path, {**ticket(task, **REPORTS[verb]), "worker": "somebody else"})
    assert (refusal(other), other.json()["cause"]) == ((409, "lease_lost"), "other_worker")
    assert refusal(sent(shop, path, ticket(task, **REPORTS[verb], lease_id=""))) == (400, "invalid_input")
    post(shop, path, ticket(task, **REPORTS[verb], lease_id=task["lease_id"]))


def test_the_same_outcome_again_is_accepted_and_another_is_not(shop: TestClient, queue: str) -> None:
    task = held(shop, queue)
    post(shop, f"/tasks/{task['id']}/succeed", ticket(task, result=1))
    assert post(shop, f"/tasks/{task['id']}/succeed", ticket(task, result=1))["repeated"]
    assert refusal(sent(shop, f"/tasks/{task['id']}/fail", ticket(task, message="no")))[0] == 409


def test_many_reports_are_answered_each_in_its_place(shop: TestClient, queue: str) -> None:
    one, two = (submit(shop, queue) for _ in range(2))
    a, b = claim(shop, queue)
    reports = [
        {"verb": "start", "task": one, **ticket(a)},
        {"verb": "succeed", "task": two, **ticket(b), "fence": 9},
        {"verb": "beat", "task": two, **ticket(b)},
        {"verb": "log", "task": one, **ticket(a), "lines": ["x", "y"]},
        {"verb": "succeed", "task": one, **ticket(a), "result": 7},
        {"verb": "succeed", "task": NOBODY, **ticket(a)},
    ]
    verdicts = post(shop, "/tasks/reports", {"reports": reports})["verdicts"]
    assert [v.get("error", {}).get("code") for v in verdicts] == [None, "lease_lost", None, None, None, "not_found"]
    assert (verdicts[0]["value"]["id"], verdicts[3]["value"]) == (one, {"cursor": 2})
    assert get(shop, f"/tasks/{one}")["result"] == 7


@each_case(
    "report",
    [{"verb": "expire"}, {"verb": "dead_letter"}, {"verb": "resume"}, {}, {"verb": "start", "fence": None},
     {"verb": "start", "worker": None}],
)  # fmt: skip
def test_what_is_no_report_of_a_holder_is_refused(shop: TestClient, report: dict[str, Any]) -> None:
    body = {"task": NOBODY, "fence": 1, "worker": "w", **report}
    assert refusal(sent(shop, "/tasks/reports", {"reports": [body]})) == (400, "invalid_input")


def test_a_member_says_more_than_its_result(shop: TestClient, queue: str) -> None:
    made = flow(shop, queue, {"name": "a", "tasks": [{"kind": "k", "queue": queue}]}, {"name": "b"}, roll_up="mixed")
    task = claim(shop, queue)[0]
    more = {"partial": True, "errors": ["one"], "metrics": {"n": 2}, "spawn": {"b": [{"kind": "k", "queue": queue}]}}
    post(shop, f"/tasks/{task['id']}/succeed", ticket(task, result=1, **more))
    first, second = (get(shop, f"/stages/{id_}") for id_ in made["stages"])
    assert (first["state"], first["metrics"], second["counts"]["total"]) == ("partial", {"n": 2}, 1)


def test_a_claim_waits_for_the_first_task(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, shop, queue, wait_s=30)
        wait_until(lambda: len(waiting_at(shop)) == 1)
        id_ = shared_engine.submit("mail", queue=queue).id
        assert [t["id"] for t in waiting.result(timeout=60)] == [id_]


def test_many_claims_wait_without_a_thread(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    waiting_, threads = waiting_at(shop), {thread.name for thread in threading.enumerate()}
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(claim, shop, f"{queue}-{n}", wait_s=30) for n in range(8)]
        wait_until(lambda: len(waiting_) == 8)
        new = {thread.name for thread in threading.enumerate()} - threads
        assert not [name for name in new if name.startswith("onetray")]
        for n in range(8):
            shared_engine.submit("mail", queue=f"{queue}-{n}")
        assert all(len(w.result(timeout=60)) == 1 for w in waiting)


def test_nothing_is_claimed_for_a_client_that_has_gone(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    body = json.dumps({"worker": "w", "queue": queue, "wait_s": 30}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/tasks/claim", "raw_path": b"/api/v1/tasks/claim",
        "query_string": b"", "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1:8321")],
        "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 8321), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    left = iter([{"type": "http.request", "body": body, "more_body": False}])
    gone, sent_back = asyncio.Event(), list[Any]()

    async def receive() -> Any:
        for message in left:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent_back.append(message)

    async def both() -> None:
        asked = asyncio.create_task(shop.app(scope, receive, send))  # type: ignore[arg-type]
        await asyncio.to_thread(wait_until, lambda: len(waiting_at(shop)) == 1)
        gone.set()
        await asyncio.to_thread(shared_engine.submit, "mail", queue=queue)
        await asyncio.wait_for(asked, 60)

    asyncio.run(both())
    assert sent_back[-1]["body"] == b'{"tasks":[]}'
    assert len(claim(shop, queue)) == 1


def test_a_claim_that_waits_in_vain_is_empty(shop: TestClient, queue: str) -> None:
    assert claim(shop, queue, wait_s=0.01) == []


def test_who_waits_is_sent_away_when_the_server_stops(api: TestClient, queue: str) -> None:
    all_waiting = waiting_at(api)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, api, queue, wait_s=30)
        wait_until(lambda: len(all_waiting) == 1)
        all_waiting.close()
        assert waiting.result(timeout=20) == []


# At a real server: who is woken.


class Waits:
    """A claim that waits at a server, on a socket of its own."""

    def __init__(self, live: Live, queue: str, **body: Any) -> None:
        token = body.pop("token", None)
        text = json.dumps({"worker": "w", "queue": queue, "wait_s": 30, **body}).encode()
        self._socket = socket.create_connection(("127.0.0.1", live.port), 20)
        allowed = f"Authorization: Bearer {token}\r\n" if token else ""
        self._socket.sendall(
            f"POST /api/v1/tasks/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{allowed}"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode()
            + text
        )

    def answer(self) -> tuple[int, dict[str, Any]]:
        """The status and the body."""
        parts = b""
        while part := self._socket.recv(65_536):
            parts += part
        head, _, body = parts.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    @property
    def ids(self) -> list[str]:
        status, body = self.answer()
        assert status == 200, body
        return [task["id"] for task in body["tasks"]]

    def leave(self) -> None:
        self._socket.close()


@contextmanager
def claims_wait(engine: Engine, live: Live, *queues: str, **body: Any) -> Iterator[list[Waits]]:
    """Claims in line at a server, in this order."""
    waiting = []
    for queue in queues:
        many = in_line(engine)
        waiting.append(Waits(live, queue, **body))
        wait_until(lambda many=many: in_line(engine) == many + 1)  # type: ignore[misc]
    try:
        yield waiting
    finally:
        for one in waiting:
            one.leave()


def in_line(engine: Engine) -> int:
    return len(engine.wake._lines)


def claims_counted(engine: Engine) -> list[c.Claim]:
    """A list that grows with every look for something to claim."""
    found: list[c.Claim] = []
    engine.on_batch(lambda commands, *_: found.extend(one for one in commands if isinstance(one, c.Claim)))
    return found


@pytest.fixture
def engine_here() -> Iterator[Engine]:
    with engine_on("sqlite://:memory:") as engine:
        yield engine


@pytest.mark.usefixtures("no_polling")
def test_a_submit_makes_one_claim_of_its_queue_look_and_none_of_another(engine_here: Engine) -> None:
    engine = engine_here
    with serving(engine) as live, claims_wait(engine, live, "a", "a", "a", "b", "b") as waiting:
        looks = claims_counted(engine)
        id_ = engine.submit("mail", queue="a").id
        assert waiting[0].ids == [id_]
        engine.submit("mail", queue="b")
        assert len(waiting[3].ids) == 1
        assert [look.queue for look in looks] == ["a", "b"]
        assert in_line(engine) == 3


@pytest.mark.usefixtures("no_polling")
def test_many_tasks_at_once_are_claimed_by_as_many_who_wait(engine_here: Engine) -> None:
    engine = engine_here
    with serving(engine) as live, claims_wait(engine, live, *["a"] * 6) as waiting:
        ids = [v.unwrap().id for v in engine.run([c.Submit(kind="mail", queue="a")] * 4)]
        assert sorted(id_ for one in waiting[:4] for id_ in one.ids) == sorted(ids)
        assert in_line(engine) == 2


@pytest.mark.usefixtures("no_polling")
def test_a_queue_that_goes_on_is_emptied_by_all_who_wait(engine_here: Engine) -> None:
    """Nobody knows how many tasks it holds: who finds one has others look."""
    engine = engine_here
    engine.pause_queue("a")
    with serving(engine) as live, claims_wait(engine, live, *["a"] * 9) as waiting:
        ids = [engine.submit("mail", queue="a").id for _ in range(7)]
        wait_until(lambda: in_line(engine) == 9)
        engine.resume_queue("a")
        wait_until(lambda: all(engine.task(id_).state == "assigned" for id_ in ids))
        wait_until(lambda: in_line(engine) == 2)
        assert len(waiting) == 9


@pytest.mark.usefixtures("no_polling")
def test_the_next_one_is_woken_when_the_first_has_left(engine_here: Engine) -> None:
    engine = engine_here
    with serving(engine) as live, claims_wait(engine, live, "a", "a") as (first, second):
        first.leave()
        wait_until(lambda: in_line(engine) == 1)
        id_ = engine.submit("mail", queue="a").id
        assert second.ids == [id_]


def test_one_claim_looks_for_all_that_wait_in_a_queue(engine_here: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, polls = engine_here, list[int]()
    poll = Wake.poll
    monkeypatch.setattr("onetray.notify.wake.POLL_S", 0.02)
    monkeypatch.setattr(Wake, "poll", lambda wake: (polls.append(1), poll(wake))[1])
    with serving(engine) as live, claims_wait(engine, live, *["a"] * 20, *["b"] * 20):
        looks, before = claims_counted(engine), len(polls)
        wait_until(lambda: len(polls) >= before + 10)
        assert len(looks) <= 2 * (len(polls) - before + 1)


# At a real server: who may have what was claimed.

SOON = HttpConfig(token_cache_s=0.2)
LATE = HttpConfig(token_cache_s=3600.0)


def untouched(engine: Engine, id_: str) -> bool:
    """Whether a task can be claimed, and no attempt was burnt."""
    task = engine.task(id_)
    return (task.state, task.attempts) == ("queued", 0)


def test_a_claim_that_waits_is_refused_once_its_token_is_revoked(engine_here: Engine) -> None:
    engine = engine_here
    new = engine.tokens.create("ann", ["work"])
    with serving(engine, SOON) as live, claims_wait(engine, live, "a", token=new.text) as (one,):
        engine.tokens.revoke(new.token.id)
        status, problem = one.answer()
        assert (status, problem["code"]) == (401, "unauthorized")
        assert untouched(engine, str(engine.submit("mail", queue="a").id))


def test_a_claim_that_waits_is_refused_when_its_token_expires(engine_here: Engine) -> None:
    """By the clock: nobody asks the database again before."""
    engine = engine_here
    new = engine.tokens.create("ann", ["work"], expires_s=1.0)
    with serving(engine, LATE) as live:
        one = Waits(live, "a", token=new.text)
        assert one.answer()[0] == 401
        assert untouched(engine, str(engine.submit("mail", queue="a").id))


def test_tasks_go_back_at_once_when_the_token_ends_while_they_are_claimed(engine_here: Engine) -> None:
    engine = engine_here
    new, id_ = engine.tokens.create("ann", ["work"]), str(engine.submit("mail", queue="a").id)
    with serving(engine, LATE) as live:
        after_a_claim(live, lambda: (engine.tokens.revoke(new.token.id), live.services.tokens.cache._known.clear()))
        assert Waits(live, "a", token=new.text, request_key="r").answer()[0] == 401
        assert untouched(engine, id_)
        assert [e.type for e in engine.events(id_)] == ["task.submitted", "task.claimed", "task.released"]
        # Its key is free, too.
        assert len(engine.claim("a", worker="w", request_key="r")) == 1


def after_a_claim(live: Live, then: Callable[[], object]) -> None:
    """Have something happen between a claim and its answer."""
    call = live.services.call

    async def called(command: c.Command) -> Any:
        found = await call(command)
        if isinstance(command, c.Claim) and found:
            await asyncio.to_thread(then)
        return found

    live.services.call = called  # type: ignore[method-assign]


def test_tasks_go_back_at_once_when_the_client_leaves_while_they_are_claimed(
    engine_here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, noticed = engine_here, threading.Event()
    lost = Protocol.connection_lost
    monkeypatch.setattr(Protocol, "connection_lost", lambda *args: (lost(*args), noticed.set())[0])
    with serving(engine) as live, claims_wait(engine, live, "a", request_key="r") as (one,):
        after_a_claim(live, lambda: (one.leave(), noticed.wait(20)))
        id_ = str(engine.submit("mail", queue="a").id)
        wait_until(lambda: [e.type for e in engine.events(id_)][1:] == ["task.claimed", "task.released"])
        assert untouched(engine, id_)
        assert len(engine.claim("a", worker="w", request_key="r")) == 1


def test_tasks_stay_with_the_same_claim_that_was_sent_again(
    shop: TestClient, shared_engine: Engine, queue: str
) -> None:
    command = c.Claim(worker="w", queue=queue, request_key=queue)
    id_ = str(shared_engine.submit("mail", queue=queue).id)
    found = shared_engine.call(command)
    services = shop.app.state.services  # type: ignore[attr-defined]
    with track_request(command), track_request(command):
        asyncio.run(release_undelivered(services, found, "gone", command))
        assert shared_engine.task(id_).state == "assigned"
    with track_request(command):
        asyncio.run(release_undelivered(services, found, "gone", command))
        assert shared_engine.task(id_).state == "queued"


def test_one_look_at_a_token_is_shared_by_all_that_wait_with_it(
    engine_here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, looks = engine_here, list[str]()
    new, look = engine.tokens.create("ann", ["work"]), engine.tokens.get_many
    monkeypatch.setattr(engine.tokens, "get_many", lambda ids: (looks.extend(ids), look(ids))[1])
    with serving(engine, HttpConfig(token_cache_s=0.1)) as live, claims_wait(engine, live, *["a"] * 10, token=new.text):
        looks.clear()
        wait_until(lambda: len(looks) >= 3)
        assert len(live.services.tokens._tasks) == 1


def test_what_a_remote_worker_claims_goes_back_when_its_token_ends_before_the_answer(engine_here: Engine) -> None:
    engine = engine_here
    new, id_ = engine.tokens.create("ann", ["work"]), str(engine.submit("mail", queue="a").id)
    with serving(engine, SOON) as live:
        run = engine.run

        def slow(commands: Any, **more: Any) -> Any:
            found = run(commands, **more)
            if isinstance(commands[0], c.Claim):
                engine.tokens.revoke(new.token.id)
                # Longer than what is known of a token counts.
                time.sleep(0.3)
            return found

        engine.run = slow  # type: ignore[method-assign]
        body = {"commands": [{"verb": "claim", "queue": "a", "worker": "w"}]}
        headers = {"Authorization": f"Bearer {new.text}"}
        answer = httpx2.post(f"{live.url}/api/v1/commands", json=body, headers=headers, timeout=20)
        assert answer.status_code == 401
        assert untouched(engine, id_)


def test_metadata_comes_with_an_outcome(shop: TestClient, queue: str) -> None:
    for verb, fields in (("succeed", {}), ("fail", {"message": "no", "retryable": False})):
        task = held(shop, queue)
        assert post(shop, f"/tasks/{task['id']}/{verb}", ticket(task, metadata={"n": 1}, **fields))["state"]
        assert get(shop, f"/tasks/{task['id']}")["metadata"] == {"n": 1}


def test_snapshots_of_a_context_by_the_ids_of_their_callers(shop: TestClient, queue: str) -> None:
    made = flow(shop, queue, {"name": "a", "sealed": False})
    alias = f"plan of {queue}"
    append = {"verb": "append_context", "flow": made["id"], "payload": {"n": 1}, "alias": alias}
    first, again = post(shop, "/commands", {"commands": [append, append]})["verdicts"]
    id_ = first["value"]["id"]
    assert again["error"]["code"] == "alias_taken"
    read = post(shop, "/reads/context_by_id", {"context": alias})["value"]
    assert (read["id"], read["alias"], read["flow_id"], read["payload"]) == (id_, alias, made["id"], {"n": 1})
    assert refusal(sent(shop, "/reads/context_by_id", {"context": "nothing"})) == (404, "not_found")
    assert refusal(sent(shop, "/reads/context_by_id", {"context": ""})) == (400, "invalid_input")
    add = {"tasks": [{"kind": "k", "queue": queue, "context_id": alias}]}
    (task,) = post(shop, f"/stages/{made['stages'][0]}/tasks", add, 201)["tasks"]
    assert get(shop, f"/tasks/{task}")["context_id"] == id_
    add["tasks"][0]["context_id"] = "nothing"
    assert refusal(sent(shop, f"/stages/{made['stages'][0]}/tasks", add)) == (404, "not_found")

"""What the server makes of what the remote client sends, and of what others send in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import ticket_text
from onetray.domain.token import SCOPES, WORK
from onetray.domain.verbs import sendable_verbs
from onetray.engine import Engine, batch
from onetray.engine.api import ACTS, METHODS, READS, EngineApi
from onetray.engine.reads import ApiMethod, read
from onetray.http import problems
from onetray.http.auth.scopes import Principal
from onetray.http.json_answers import iso_time
from onetray.http.routes import commands, rpc, rpc_wait
from onetray.http.services import SERVICES, HttpConfig, Services
from onetray.remote.transport import REDACTED
from onetray.store.interned import InternedNames
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, submit, take

Caller = Callable[..., TestClient]


class As:
    """In the gate's place: everybody is this one."""

    def __init__(self, app: ASGIApp, principal: Principal) -> None:
        self._app, self._principal = app, principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["onetray.principal"], scope[SERVICES] = self._principal, scope["app"].state.services
        await self._app(scope, receive, send)


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    return shared_engine


@pytest.fixture(scope="module")
def caller(shared_engine: Engine) -> Iterator[Caller]:
    """Calls the routes in the name of somebody: each has an app, made once."""
    with ExitStack() as stack:

        @cache
        def of(*scopes: str, name: str = "ann", namespace: str = "default") -> TestClient:
            app = FastAPI()
            app.state.services = Services(shared_engine, HttpConfig())
            app.router.routes += [*commands.router.routes, *rpc.router.routes, *rpc_wait.router.routes]
            problems.install(app)
            app.add_middleware(As, principal=Principal(name, namespace, frozenset(scopes or SCOPES)))
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield of


def send(client: TestClient, *said: Any) -> list[dict[str, Any]]:
    answer = client.post("/api/v1/commands", json={"commands": said})
    assert answer.status_code == 200, answer.text
    verdicts: list[dict[str, Any]] = answer.json()["verdicts"]
    return verdicts


def ask(client: TestClient, name: str, **given: Any) -> Any:
    answer = client.post(f"/api/v1/reads/{name}", json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]


def test_each_command_has_its_own_verdict(caller: Caller) -> None:
    verdicts = send(caller(), {"verb": "submit", "kind": "k"}, {"verb": "submit"}, {"verb": "expire", "task": 1}, 7)
    assert verdicts[0]["value"]["state"] == "queued"
    assert [v["error"]["code"] for v in verdicts[1:]] == ["invalid_input", "unknown_verb", "invalid_input"]


def test_namespace_and_name_are_the_callers_whatever_the_body_says(caller: Caller, engine: Engine) -> None:
    for stray in ({"namespace": "x"}, {"actor": "system"}, {"actor_name": "root"}):
        (refused,) = send(caller(namespace="theirs"), {"verb": "submit", "kind": "k", **stray})
        assert (refused["error"]["code"], refused["error"]["field"]) == ("invalid_input", next(iter(stray)))
    (verdict,) = send(caller(namespace="theirs"), {"verb": "submit", "kind": "k"})
    (event,) = engine.events(verdict["value"]["id"], namespace="theirs")
    assert event.actor == "user:ann"


def test_another_namespace_is_as_if_nothing_were_there(caller: Caller, engine: Engine) -> None:
    id_, stranger = submit(engine, queue="strangers"), caller(namespace="elsewhere")
    held = take(engine, queue="strangers")
    report = {"verb": "succeed", "task": held.id, "fence": held.fence, "worker": "w"}
    verdicts = send(stranger, report, {**report, "ticket": ticket_text(held)})
    assert [v["error"]["code"] for v in verdicts] == ["not_found", "not_found"]
    assert stranger.post("/api/v1/reads/task", json={"task": id_}).status_code == 404
    assert ask(stranger, "held", keys=[held.key]) == []
    assert engine.task(id_).state == "assigned"


def test_a_ticket_of_an_older_version_is_taken(caller: Caller, engine: Engine) -> None:
    id_ = submit(engine, queue="older")
    held = take(engine, queue="older")
    *numbers, _, last = ticket_text(held).split("-")
    report = {"verb": "succeed", "task": held.id, "fence": held.fence, "worker": "w"}
    (verdict,) = send(caller("work"), {**report, "ticket": "-".join([*numbers, last])})
    assert verdict["value"]["state"] == "succeeded"
    assert engine.task(id_).attempts == 1


def test_a_worker_speaks_for_nobody_else(caller: Caller, engine: Engine) -> None:
    submit(engine, queue="mine")
    held, worker = take(engine, queue="mine"), caller("work")
    for said in (
        {"verb": "succeed", "task": held.id},
        {"verb": "succeed", "task": held.id, "ticket": ticket_text(held)},
    ):
        wrong = [said, {**said, "fence": held.fence}, {**said, "fence": held.fence, "worker": "another"},
                 {**said, "fence": held.fence + 1, "worker": "w"}]  # fmt: skip
        codes = [v["error"]["code"] for v in send(worker, *wrong)]
        assert codes == ["invalid_input", "invalid_input", "lease_lost", "lease_lost"]
    assert engine.task(held.id).state == "assigned"


def test_a_forged_ticket_touches_nothing_that_its_report_does_not_name_rightly(caller: Caller, engine: Engine) -> None:
    """The number of somebody else's task, under the id of one's own: fence, worker and namespace are compared there."""
    for _ in range(2):
        submit(engine, queue="forged")
    theirs = take(engine, queue="forged", worker="another")
    mine = take(engine, queue="forged")
    elsewhere = engine.submit("k", queue="forged", namespace="elsewhere")
    (strange,) = engine.claim("forged", worker="w", namespace="elsewhere")
    report = {"verb": "succeed", "task": mine.id, "fence": mine.fence, "worker": "w"}
    forged = [replace(victim, id=mine.id) for victim in (theirs, strange)]
    forged += [replace(one, lease=mine.lease, version=mine.version) for one in forged]
    for ticket in map(ticket_text, forged):
        (verdict,) = send(caller("work"), {**report, "ticket": ticket})
        assert verdict["error"]["code"] in ("lease_lost", "not_found"), ticket
    assert engine.task(theirs.id).state == engine.task(mine.id).state == "assigned"
    assert engine.task(elsewhere.id or "", namespace="elsewhere").state == "assigned"


def test_a_report_with_a_ticket_is_written_without_a_look_and_one_without_it_just_as_well(
    caller: Caller, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[object](), batch._run_commands
    monkeypatch.setattr(batch, "_run_commands", lambda *given, **more: looks.append(given) or look(*given, **more))
    worker = caller("work")
    for with_ticket in (True, False):
        submit(engine, queue="tickets")
        (claim,) = send(worker, {"verb": "claim", "queue": "tickets", "worker": "w"})
        (task,) = claim["value"]["tasks"]
        looks.clear()
        report = {"verb": "succeed", "task": task["id"], "fence": task["fence"], "worker": "w", "result": 7}
        (verdict,) = send(worker, {**report, "ticket": task["ticket"]} if with_ticket else report)
        assert (verdict["value"]["state"], verdict["value"]["id"]) == ("succeeded", task["id"])
        assert bool(looks) is not with_ticket


def test_values_are_as_in_all_of_the_api(caller: Caller, engine: Engine) -> None:
    at = "2031-01-02T03:04:05.000006Z"
    submitted, claimed = send(
        caller(), {"verb": "submit", "kind": "k", "queue": "words", "run_at": at},
        {"verb": "claim", "queue": "words", "worker": "w"},
    )  # fmt: skip
    assert iso_time(engine.task(submitted["value"]["id"]).run_at) == at
    assert (submitted["value"]["entity"], submitted["value"]["actions"]) == ("task", ["cancel"])
    assert claimed["value"] == {"tasks": []}
    (refused,) = send(caller(), {"verb": "cancel", "task": UNKNOWN_ID, "reason": "no"})
    assert (refused["error"]["status"], refused["error"]["code"]) == (404, "not_found")
    assert refused["error"]["type"].endswith("/not_found")


@each_case("scope", ["read", "submit", "work", "operate"])
def test_a_verb_needs_its_scope_and_without_it_nothing_of_the_batch_is_carried_out(
    caller: Caller, engine: Engine, scope: str
) -> None:
    client = caller(scope)
    needs = {verb: kind.declared.scope for verb, kind in sendable_verbs().items()}
    for verb, needed in needs.items():
        good = {"verb": "submit", "kind": "k", "queue": f"scope-{scope}"} if scope == "submit" else {"verb": verb}
        answer = client.post("/api/v1/commands", json={"commands": [good, {"verb": verb}]})
        assert answer.status_code == (200 if needed == scope else 403), verb
        if needed != scope:
            assert answer.json()["code"] == "forbidden"
    made = [q.ready for q in engine.queues() if q.name == f"scope-{scope}"]
    assert made == ([sum(needed == "submit" for needed in needs.values())] if scope == "submit" else [])


def test_a_worker_reads_what_its_handlers_need_and_no_more(caller: Caller) -> None:
    worker, submitter = caller("work"), caller("submit")
    for name, method in READS.items():
        refused = worker.post(f"/api/v1/reads/{name}", json={}).status_code == 403
        assert refused is (WORK not in method.scopes), name
        assert submitter.post(f"/api/v1/reads/{name}", json={}).status_code == 403, name
    for name, method in ACTS.items():
        refused = worker.post(f"/api/v1/acts/{name}", json={}).status_code == 403
        assert refused is (WORK not in method.scopes), name


def test_only_an_admin_expires_leases_before_their_time(caller: Caller, engine: Engine) -> None:
    task = engine.submit("k", queue="early", namespace="early").id
    theirs = engine.submit("k", queue="early").id
    engine.claim("early", worker="w", namespace="early")
    engine.claim("early", worker="w")
    later = engine.store.now() + 3_600_000_000
    for scope in ("work", "operate"):
        client = caller(scope, namespace="early")
        refused = client.post("/api/v1/acts/expire_tasks", json={"now": later})
        assert (refused.status_code, refused.json()["needs"]) == (403, ["admin"])
        for mild in ({}, {"now": None}):
            assert client.post("/api/v1/acts/expire_tasks", json=mild).json() == {"value": []}
    assert caller("read", namespace="early").post("/api/v1/acts/expire_tasks", json={}).status_code == 403
    admin = caller("admin", namespace="early")
    assert admin.post("/api/v1/acts/expire_tasks", json={"now": later}).json() == {"value": [task]}
    assert engine.task(str(theirs)).state == "assigned"


def test_jobs_are_pruned_and_events_read_by_name(caller: Caller, engine: Engine) -> None:
    flow = engine.submit_flow("run", sealed=True, namespace="prune")
    client = caller("operate", "read", namespace="prune")
    page = ask(client, "events_since", flow=flow.id, types=["flow.submitted"])
    assert ([event["type"] for event in page["events"]], page["next_cursor"] > 0) == (["flow.submitted"], True)
    assert [job["id"] for job in ask(client, "sorted_jobs", entity="flow")] == [flow.id]
    assert ask(client, "pending_tasks", kinds=["k"]) == []
    body = {"ended_before": engine.store.now() + 1, "states": ["succeeded"]}
    assert caller("operate", namespace="not-prune").post("/api/v1/acts/prune_jobs", json=body).json() == {"value": []}
    assert caller("read", "work", namespace="prune").post("/api/v1/acts/prune_jobs", json=body).status_code == 403
    assert client.post("/api/v1/acts/prune_jobs", json=body).json() == {"value": [flow.id]}
    assert client.post("/api/v1/reads/events_since", json={"flow": flow.id}).status_code == 404
    (note,) = ask(client, "events_since", types=["job.deleted"])["events"]
    assert note["entity_id"] == flow.id


STRAY = ("x", 2.5, True, None, ["x"], [1], {"a": 1}, -1, 10**30, "\0" + "x" * 10_000)
GOOD = {str: UNKNOWN_ID, int: 1, float: 1.0, Sequence[int]: [1], Sequence[str]: [UNKNOWN_ID]}


@each_case("name", [*METHODS])
def test_a_parameter_of_any_kind_is_taken_or_refused_by_its_name(caller: Caller, name: str) -> None:
    method, client = METHODS[name], caller()
    path = f"/api/v1/{'acts' if method.writes else 'reads'}/{name}"
    needed = {p.name: GOOD[p.annotation] for p in method.parameters.values() if p.default is p.empty}
    for field in method.parameters:
        for stray in STRAY:
            answer = client.post(path, json={**needed, field: stray})
            assert answer.status_code in (200, 400, 404, 409, 413), answer.text
    for wrong in ([], 5, {**needed, "namespace": "x"}, {**needed, "by": "x"}, {**needed, "stray": 1}):
        assert client.post(path, json=wrong).status_code == 400, wrong
    for field in needed:
        answer = client.post(path, json={f: value for f, value in needed.items() if f != field})
        assert answer.status_code == 400
        assert field in answer.text


def test_a_read_says_what_it_may_tell_and_only_a_declared_one_can_be_asked() -> None:
    with pytest.raises(TypeError):
        read()  # type: ignore[call-arg]
    every = {name: method for name, method in vars(EngineApi).items() if isinstance(method, ApiMethod)}
    assert {name for name, method in every.items() if method.scopes} == {*READS, *ACTS}
    assert every.keys() - METHODS.keys() == {
        "configure", "declare", "declare_flow", "declare_schedules", "worker_beat", "worker_leave",
    }  # fmt: skip
    asked = {route.path for route in rpc.router.routes if "/reads/" in route.path or "/acts/" in route.path}  # type: ignore[attr-defined]
    assert asked == {f"/api/v1/{'acts' if name in ACTS else 'reads'}/{name}" for name in METHODS}


def test_readers_get_what_is_redacted_and_workers_what_is_real(caller: Caller, engine: Engine) -> None:
    engine.configure("login", Policy(redact=("password",)), namespace="real")
    engine.submit("login", {"password": "hunter-2"}, namespace="real")
    (held,) = engine.claim(worker="w", namespace="real")
    engine.log(held, "with hunter-2")
    engine.checkpoint(held, {"password": "hunter-2"})
    reader, worker = caller("read", namespace="real"), caller("work", "read", namespace="real")

    def told(client: TestClient, **headers: str) -> list[Any]:
        answers = [
            client.post(f"/api/v1/reads/{name}", json={"task": held.id.upper()}, headers=headers).json()["value"]
            for name in ("task", "logs", "last_checkpoint")
        ]
        return [answers[0]["payload"], answers[1][0]["line"], answers[2]]

    redacted = [{"password": "***"}, "with ***", {"password": "***"}]
    assert told(reader) == redacted
    assert told(worker) == [{"password": "hunter-2"}, "with hunter-2", {"password": "hunter-2"}]
    assert told(worker, **{REDACTED: "1"}) == redacted


def test_the_results_of_a_stage_are_redacted_in_one_look_however_many_there_are(
    caller: Caller, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads all secrets of the flow: one for each result took a minute of CPU for a stage of 1,000."""
    engine.configure("login", Policy(redact=("password",)), namespace="looks")
    tasks = [TaskSpec("login", {"password": f"hunter-{n}"}, queue="looks") for n in range(5)]
    flow = engine.submit_flow("shop", [StageSpec("one", tasks)], namespace="looks")
    for task in engine.claim("looks", worker="w", limit=5, namespace="looks"):
        engine.succeed(task, {"password": 1, "said": task.payload["password"]})
    reader, reads, store_read = caller("read", namespace="looks"), list[str](), engine.store.read

    def counted(name: str, /, **params: Any) -> Any:
        reads.append(name)
        return store_read(name, **params)

    monkeypatch.setattr(engine.store, "read", counted)
    shown = ask(reader, "stage_results", stage=flow.stages[0])
    assert [row["result"] for row in shown] == [{"password": "***", "said": "***"}] * 5
    assert reads.count("redacted_tasks") == 1


def test_what_is_no_read_or_act_is_not_found(caller: Caller) -> None:
    client = caller()
    for path in ("reads/close", "reads/store", "reads/run", "reads/prune", "acts/close", "acts/prune", "acts/cancel"):
        assert client.post(f"/api/v1/{path}", json={}).status_code == 404


@each_case("body", [b"", b"{", b"[]", b"5", b'{"commands": 5}', b'{"commands": {}}', b"\xff"])
def test_a_body_that_is_no_batch_is_refused(caller: Caller, body: bytes) -> None:
    assert caller().post("/api/v1/commands", content=body).status_code == 400


def test_a_batch_past_the_limit_is_refused_whole(caller: Caller, engine: Engine) -> None:
    said = [{"verb": "x"}] * (engine.config.limits.batch + 1)
    assert caller().post("/api/v1/commands", json={"commands": said}).status_code == 413


def test_kinds_and_workers_are_declared_in_the_callers_namespace(caller: Caller, engine: Engine) -> None:
    worker = caller("work", namespace="fleet")
    assert worker.post("/api/v1/kinds", json={"policies": {"mail": {"max_attempts": 9}}}).status_code == 200
    policy = engine.policy_of("mail", namespace="fleet")
    assert policy is not None
    assert policy.max_attempts == 9
    beat = {"name": "w1", "host": "h", "pid": 1, "version": "0", "queues": ["a"]}
    assert worker.post("/api/v1/workers/beat", json=beat).status_code == 200
    assert [w.queues for w in engine.workers(namespace="fleet")] == [("a",)]
    assert worker.post("/api/v1/workers/leave", json={"name": "w1"}).status_code == 200
    assert engine.workers(namespace="fleet") == []


@each_case(
    ("scopes", "left"),
    [(["work"], ("pin", "card", "token")), (["work", "submit", "read"], ("pin", "card", "token")),
     (["work", "operate"], ("pin",)), (["admin"], ("pin",))],
)  # fmt: skip
def test_a_workers_declaration_takes_no_redaction_away(
    caller: Caller, engine: Engine, scopes: list[str], left: tuple[str, ...]
) -> None:
    """A worker of an older version of the app starts, or one that means ill: what is hidden stays hidden."""
    namespace = "-".join(scopes)
    engine.configure("pay", Policy(redact=("card", "token")), namespace=namespace)
    job = engine.submit("pay", {"card": "4111111111111111", "pin": "1234"}, namespace=namespace)
    declared = {"policies": {"pay": {"redact": ["pin"], "max_attempts": 7}, "new": {}}}
    answer = caller(*scopes, namespace=namespace).post("/api/v1/kinds", json=declared)
    assert answer.json() == ({"kept": {"pay": ["card", "token"]}} if len(left) > 1 else {"kept": {}})
    policy = engine.policy_of("pay", namespace=namespace)
    assert policy is not None
    assert (policy.redact, policy.max_attempts) == (left, 7)
    later = engine.submit("pay", {"card": "4111111111111111"}, namespace=namespace)
    hidden = [engine.redacted.task(x.id or "", namespace=namespace).payload["card"] for x in (job, later)]
    assert hidden == ["***", "***" if "card" in left else "4111111111111111"]


def test_workers_that_declare_a_kind_at_once_hide_what_either_of_them_hides(
    caller: Caller, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of two versions of an app start together: the second declaration comes while the first is written."""
    worker, intern = caller("work", namespace="both"), InternedNames.intern_policy

    def declare(**policy: Any) -> dict[str, list[str]]:
        answer = worker.post("/api/v1/kinds", json={"policies": {"pay": policy}})
        assert answer.status_code == 200, answer.text
        kept: dict[str, list[str]] = answer.json()["kept"]
        return kept

    def interrupted(self: InternedNames, policy: Policy) -> int:
        monkeypatch.setattr(InternedNames, "intern_policy", intern)
        assert declare(redact=["card"]) == {"pay": ["pin"]}
        return intern(self, policy)

    declare(redact=["pin"])
    monkeypatch.setattr(InternedNames, "intern_policy", interrupted)
    assert declare(max_attempts=7) == {"pay": ["card", "pin"]}
    policy = engine.policy_of("pay", namespace="both")
    assert policy is not None
    assert (policy.redact, policy.max_attempts) == (("card", "pin"), 7)


@each_case("body", [{}, {"policies": 5}, {"policies": {"k": 5}}, {"policies": {"": {}}}])
def test_a_declaration_that_is_none_is_refused(caller: Caller, body: Any) -> None:
    assert caller().post("/api/v1/kinds", json=body).status_code == 400


@each_case("body", [{}, {"name": "w"}, {"name": "w", "stray": 1}, {"name": 5}])
def test_a_beat_that_is_none_is_refused(caller: Caller, body: Any) -> None:
    assert caller().post("/api/v1/workers/beat", json=body).status_code == 400


def test_whoami_tells_the_limits_and_who_one_is(caller: Caller, engine: Engine) -> None:
    told = caller("read", namespace="theirs").get("/api/v1/whoami").json()
    assert (told["name"], told["namespace"], told["scopes"]) == ("ann", "theirs", ["read"])
    assert told["limits"]["batch"] == engine.config.limits.batch


def test_news_come_at_once_when_something_was_written_since(caller: Caller, engine: Engine) -> None:
    client = caller("read")
    first = client.get("/api/v1/news").json()
    submit(engine, queue="news")
    seen = {name: first[name] for name in ("boot", "generation")}
    later = client.get("/api/v1/news", params={**seen, "wait_s": 30}).json()
    assert later["generation"] > first["generation"]
    assert client.get("/api/v1/news", params={"boot": "another", "wait_s": 30}).json()["boot"] == first["boot"]


@each_case("query", ["wait_s=31", "wait_s=-1", "wait_s=nan", "generation=x", "work=-2", "boot=" + "x" * 101])
def test_a_question_for_news_is_checked(caller: Caller, query: str) -> None:
    assert caller().get(f"/api/v1/news?{query}").status_code == 400

"""A walk through every route that there is, by those who may not go there.

A route that is added is walked by itself. One that anybody may call has to be written down here, too, and so has the
scope of one that writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient
from uuid_utils import uuid4

from onetray.domain.clock import VirtualClock
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import ABOUT_TOKENS
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.domain.token import ADMIN, OPERATE, READ, SCOPES, SUBMIT, WORK
from onetray.engine import Engine
from onetray.engine.api import READS
from onetray.http.app import build
from onetray.http.auth import middleware
from onetray.http.auth.scopes import EXEMPT
from tests.http.callers import BASE, bearer
from tests.http.walking import Way, ways, without_key, without_what_is_fresh
from tests.support.cases import each_case
from tests.support.databases import Databases
from tests.support.engines import engine_on

OPEN = {
    *((method, path) for method in ("GET", "HEAD") for path in ("/", "/healthz", "/readyz", "/api/v1/version")),
    *((method, path) for method in ("GET", "HEAD") for path in ("/ui/login", "/ui/static/{name}")),
    ("POST", "/ui/login"),
}
"""What anybody may ask, once more: whoever opens a route has to say so twice."""
WRITES = {
    SUBMIT: (
        "/ui/submit", "/ui/jobs/{id}/open",
        "/v1/pipeline/jobs",
        "/api/v1/flow-definitions/{name:path}/submit",
        "/api/jobs", "/api/v1/jobs", "/api/v1/jobs/batch", "/api/v1/jobs/{id}/open", "/api/v1/jobs/{id}/seal",
        "/api/v1/jobs/{id}/stages", "/api/v1/stages/{id}/seal", "/api/v1/stages/{id}/tasks",
        "/v1/jobs", "/v1/jobs/{jobId}/stage", "/v1/stages/{stageId}/tasks",
    ),
    WORK: (
        "/api/v1/flow-definitions", "/api/v1/schedules/declare",
        "/api/v1/kinds", "/api/v1/tasks/claim", "/api/v1/tasks/reports", "/api/v1/tasks/{id}/beat",
        "/api/v1/tasks/{id}/checkpoint",
        "/api/v1/tasks/{id}/fail", "/api/v1/tasks/{id}/log", "/api/v1/tasks/{id}/pause", "/api/v1/tasks/{id}/progress",
        "/api/v1/tasks/{id}/release", "/api/v1/tasks/{id}/start", "/api/v1/tasks/{id}/succeed", "/api/v1/workers/beat",
        "/api/v1/workers/leave", "/v1/stages/{stageType}/tasks/dequeue", "/v1/tasks/{taskId}/status",
    ),
    OPERATE: (
        "/v1/pipeline/jobs/{id}/cancel",
        "/api/v1/acts/close_breaker", "/api/v1/acts/delete_job", "/api/v1/acts/forget_flow",
        "/api/v1/acts/open_breaker",
        "/api/v1/acts/pause_queue", "/api/v1/acts/prune_jobs", "/api/v1/acts/resume_queue",
        "/api/v1/flow-definitions/{name:path}/forget",
        "/api/v1/breakers/{kind:path}/close", "/api/v1/breakers/{kind:path}/open",
        "/api/v1/dead-letters/redrive", "/api/v1/dead-letters/{id}/redrive", "/api/v1/jobs/{id}",
        "/api/v1/jobs/{id}/cancel",
        "/api/v1/jobs/{id}/metadata", "/api/v1/jobs/{id}/pause", "/api/v1/jobs/{id}/priority",
        "/api/v1/jobs/{id}/resume", "/api/v1/jobs/{id}/retry",
        "/api/v1/queues/{queue:path}/pause", "/api/v1/queues/{queue:path}/resume", "/api/v1/stages/{id}/approve",
        "/api/v1/stages/{id}/cancel", "/api/v1/stages/{id}/metadata", "/api/v1/stages/{id}/reject",
        "/api/v1/stages/{id}/skip", "/api/v1/stages/{id}/wait",
        "/api/v1/tasks/{id}/metadata", "/api/v1/tasks/{id}/resume",
        "/v1/jobs/{jobId}", "/v1/jobs/{jobId}/priority", "/v1/jobs/{jobId}/status", "/v1/jobs/{jobId}/user-metadata",
        "/v1/stages/{stageId}/status", "/v1/stages/{stageId}/user-metadata", "/v1/tasks/{taskId}/user-metadata",
        "/ui/queues/{name:path}/pause", "/ui/queues/{name:path}/resume",
        "/api/v1/bulk", "/api/v1/bulk/{id}/stop", "/api/v1/bulk/{id}/resume", "/api/v1/acts/start_bulk",
        "/api/v1/acts/stop_bulk", "/api/v1/acts/resume_bulk", "/ui/bulk/start", "/ui/bulk/{id}/stop",
        "/ui/bulk/{id}/resume", "/ui/dead/{id}/redrive", "/ui/dead/{id}/delete",
        "/ui/jobs/{id}/cancel", "/ui/jobs/{id}/retry", "/ui/jobs/{id}/resume", "/ui/jobs/{id}/pause",
        "/ui/jobs/{id}/priority", "/ui/jobs/{id}/run-now", "/ui/jobs/{id}/stages/{stage}/{verb}",
        "/ui/waiting/stage/{id}", "/ui/waiting/task/{id}",
        "/api/v1/schedules", "/api/v1/acts/put_schedule",
        *(f"/api/v1/schedules/{{name:path}}/{verb}" for verb in ("pause", "resume", "trigger", "backfill", "remove")),
        *(f"/ui/schedules/{{name:path}}/{verb}" for verb in ("pause", "resume", "trigger")),
        *(f"/api/v1/acts/{verb}_schedule" for verb in ("pause", "resume", "trigger", "backfill", "remove")),
        "/api/v1/limits", "/api/v1/limits/weights", "/api/v1/limits/{id}", "/api/v1/limits/{id}/reset",
        "/api/v1/acts/set_limit", "/api/v1/acts/reset_limit", "/api/v1/acts/remove_limit", "/api/v1/acts/set_weight",
    ),
    READ: ("/api/v1/bulk/preview", "/api/v1/schedules/preview"),
    ADMIN: ("/ui/tokens", "/ui/tokens/{id}/revoke"),
}  # fmt: skip
"""The scope of each route that writes, once more: the walk itself believes what a route says."""
OF_WORKERS = frozenset({
    "aliases_of", "by_alias", "context", "context_by_id", "contexts", "dependencies", "find_aliases", "flow", "held",
    "inputs", "last_checkpoint", "limits", "now", "policy_of", "stage", "stage_results", "stages", "task",
    "tasks_by_id",
})  # fmt: skip
"""The reads that handlers need, once more. All others need the scope `read`."""
ALSO_SUBMIT = ("/api/v1/schedules", "/api/v1/schedules/declare")
"""What needs the scope `submit`, too: a schedule submits jobs."""
SEVERAL = {
    "/api/jobs/{id}/cancel": {SUBMIT, OPERATE},
    "/api/v1/acts/expire_tasks": {WORK, OPERATE},
    "/api/v1/acts/declare_limit": {WORK, OPERATE},
    "/api/v1/commands": {SUBMIT, WORK, OPERATE},
    **{f"/api/v1/reads/{name}": {READ, WORK} if name in OF_WORKERS else {READ} for name in READS},
    "/api/v1/news": set(SCOPES),
    "/api/v1/whoami": set(SCOPES),
    "/ui/logout": set(SCOPES),
    "/mcp": {READ, SUBMIT, WORK, OPERATE},
    "/ui/tokens": {ADMIN},
}
"""Where one of several scopes will do."""
JOBNIK_WORKERS_READ = ("/v1/jobs/{jobId}", "/v1/stages/{stageId}", "/v1/stages/{stageId}/summary", "/v1/tasks/{taskId}")
"""A worker of Jobnik reads the stage and the job of each task."""
NOBODYS = "00000000-0000-7000-8000-000000000000"
MARK, SAID = "only-ours", "said-among-us"


@dataclass
class House:
    """A server with two namespaces: ours, with something of everything in it, and theirs, with nothing."""

    engine: Engine
    api: TestClient
    held: Assignment
    things: list[str]
    """Ids of ours, and names."""

    def __post_init__(self) -> None:
        self.ways = ways(self.api.app)  # type: ignore[arg-type]
        self._tokens = {
            (ns, s): self.engine.tokens.create(f"{s}-{ns}", [s], namespace=ns).text
            for ns in (MARK, "theirs")
            for s in SCOPES
        }
        self.before = self.state()

    @property
    def guarded(self) -> list[Way]:
        return [way for way in self.ways if (way.method, way.path) not in OPEN]

    def who(self, scope: str, namespace: str = MARK) -> dict[str, str]:
        return bearer(self._tokens[namespace, scope])

    def state(self) -> Any:
        """All that somebody could have changed."""
        engine, ns = self.engine, {"namespace": MARK}
        jobs = engine.jobs(**ns).jobs
        # Without those of the tokens that the tests make themselves.
        events = [e for e in engine.feed.read(0, 10_000, namespace=MARK).events if e.type not in ABOUT_TOKENS]
        queues = [(q.name, q.paused_at) for q in engine.queues(**ns)]
        logs, workers = engine.logs(self.held.id, **ns), engine.workers(**ns)
        more = engine.breakers(**ns), engine.schedules(**ns), engine.progress_of(self.held.id, **ns)
        return jobs, events, queues, logs, workers, more


def furnished(engine: Engine) -> House:
    ns: Any = {"namespace": MARK}
    engine.configure("mail", Policy(max_attempts=1, lease_s=36_000.0), **ns)
    dead = engine.submit("mail", {"to": SAID}, queue=MARK, **ns).id
    [job] = engine.claim(MARK, worker="w1", **ns)
    engine.fail(job, SAID)
    task = engine.submit("mail", {"to": SAID}, **ns).id
    [held] = engine.claim("default", worker="w1", **ns)
    engine.log(held, SAID)
    engine.submit("mail", {"to": SAID}, **ns)
    stage = StageSpec("check", [TaskSpec(MARK)], approval=Approval(owner="ann"))
    flow = engine.submit_flow(MARK, [StageSpec("fetch", [TaskSpec(MARK, queue=MARK)]), stage], **ns).id
    stages = [s.id for s in engine.stages(flow, **ns)]
    engine.put_schedule(MARK, kind="mail", payload={"to": SAID}, every_s=3_600, **ns)
    client = TestClient(build(engine), base_url=BASE, raise_server_exceptions=False, client=("127.0.0.1", 1))
    return House(engine, client, held, [*map(str, (dead, task, flow, stages[1])), MARK])


@contextmanager
def opened(url: str) -> Iterator[House]:
    with engine_on(url, VirtualClock()) as engine:
        house = furnished(engine)
        with house.api:
            yield house


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """On SQLite: who is let in is decided before any database is asked about anything but the token."""
    with opened("sqlite://:memory:") as found:
        yield found


@pytest.fixture(scope="module")
def house_on_postgres(databases: Databases) -> Iterator[House]:
    with databases.database() as url, opened(url) as found:
        # Both databases run the same statements: some will do.
        found.things = found.things[::2]
        yield found


@pytest.fixture(autouse=True)
def _nothing_of_ours_is_changed(house: House) -> Iterator[None]:
    yield
    assert house.state() == house.before


def refusals(house: House, headers: dict[str, str]) -> dict[str, int]:
    """What each way answers to somebody."""
    return {str(w): house.api.request(**w.request(NOBODYS), headers=headers).status_code for w in house.guarded}


def test_nothing_is_open_but_what_is_written_here(house: House) -> None:
    assert EXEMPT == OPEN
    answered = {(w.method, w.path) for w in house.ways if house.api.request(**w.request(NOBODYS)).status_code != 401}
    assert answered == OPEN


def test_every_other_route_names_its_scope(house: House) -> None:
    assert [str(way) for way in house.guarded if not way.scopes] == []
    assert house.guarded


def test_every_route_needs_the_scope_that_is_written_here(house: House) -> None:
    writes = {path: {scope} for scope, paths in WRITES.items() for path in paths}
    for way in house.guarded:
        reads = {READ, WORK} if way.path in JOBNIK_WORKERS_READ else {READ}
        one = reads if way.method in ("GET", "HEAD") else writes.get(way.path, "it is not written here")
        assert way.scopes == SEVERAL.get(way.path, one), way


def test_those_with_a_token_that_is_no_good_get_nowhere(house: House) -> None:
    engine, clock = house.engine, house.engine.store.clock
    assert isinstance(clock, VirtualClock)
    expired = engine.tokens.create("late", SCOPES, namespace=MARK, expires_s=1)
    clock.advance(2)
    revoked = engine.tokens.create("gone", SCOPES, namespace=MARK)
    engine.tokens.revoke(revoked.token.id)
    good = engine.tokens.create("good", SCOPES, namespace=MARK).text
    broken = [good[:-1], good[:20] + good[20:][::-1]]
    for text in (expired.text, revoked.text, *broken):
        assert set(refusals(house, bearer(text)).values()) == {401}, text


def test_a_path_that_does_not_exist_is_not_told_from_one_that_does(house: House) -> None:
    there = house.api.get(f"/api/v1/jobs/{house.things[0]}")
    nowhere = house.api.get("/api/v1/nowhere")
    assert (there.status_code, there.text) == (nowhere.status_code, nowhere.text) == (401, nowhere.text)


@pytest.mark.parametrize("scope", [s for s in SCOPES if s != ADMIN])
def test_a_token_goes_where_its_scope_allows_and_nowhere_else(house: House, scope: str) -> None:
    headers = house.who(scope, "theirs")
    for way in house.guarded:
        if way.scopes and scope not in way.scopes:
            answer = house.api.request(**way.request(NOBODYS), headers=headers)
            told = answer.json() if answer.content else {}
            assert (answer.status_code, told.get("code", "forbidden").lower()) == (403, "forbidden"), way
        elif not way.endless or way.parameters:
            # Of commands, each has a scope of its own: tests/remote/test_routes.py.
            none: Any = {"commands": []} if way.path == "/api/v1/commands" else {}
            answer = house.api.request(**way.request(NOBODYS, **none), headers=headers)
            if way.method == "POST" and way.path in ALSO_SUBMIT:
                assert (answer.status_code, answer.json()["needs"]) == (403, [SUBMIT]), way
                continue
            assert answer.status_code not in (401, 403), way
            assert answer.status_code < 500, (way, answer.text)


@pytest.mark.parametrize("where", ["house", "house_on_postgres"])
def test_from_another_namespace_it_is_as_if_nothing_were_there(request: pytest.FixtureRequest, where: str) -> None:
    house: House = request.getfixturevalue(where)
    for number, way in enumerate(house.guarded):
        # HEAD answers what GET does, without its body.
        if way.method != "HEAD" and (not way.endless or way.parameters):
            # A namespace for each: what one way has made there, another would find.
            token = house.engine.tokens.create("they", [ADMIN], namespace=f"theirs-{number}")
            tells_nothing(house, way, bearer(token.text))
    assert house.state() == house.before


def tells_nothing(house: House, way: Way, headers: dict[str, str]) -> None:
    def asked(value: str) -> tuple[int, str]:
        answer = house.api.request(**way.request(value), headers=headers)
        for ours in (SAID, *house.things):
            assert ours == value or ours not in answer.text, way
        return answer.status_code, without_what_is_fresh(answer.text, value)

    # What it has in common with the answer about something that never was is all that may be learned.
    no_id, no_name = asked(NOBODYS), asked("only-theirs")
    for thing in house.things if way.parameters or way.body is not None else ():
        assert asked(thing) == (no_name if thing == MARK else no_id), way


def test_a_namespace_is_taken_from_nowhere_but_the_token(house: House) -> None:
    headers = {**house.who(ADMIN, "theirs"), "x-namespace": MARK, "onetray-namespace": MARK}
    for way in house.guarded:
        if way.endless:
            continue
        asked = way.request(house.things[1], namespace=MARK)
        asked["url"] += ("&" if "?" in asked["url"] else "?") + f"namespace={MARK}"
        assert SAID not in house.api.request(**asked, headers=headers).text, way


@each_case("scope", ["submit", "work", "operate"])
def test_without_read_no_answer_shows_what_is_in_a_job(scope: str) -> None:
    """In one's own namespace: also when somebody who may read has sent the same before, under the same key.

    Whoever claims a task gets its payload, and its handler reads what it needs: both are left out.
    """
    with opened("sqlite://:memory:") as house:
        ways = [
            w
            for w in house.guarded
            if scope in w.scopes and w.method == "POST" and READ not in w.scopes and "claim" not in w.path
        ]
        assert len(ways) > 5
        for way, thing in ((w, t) for w in ways for t in (house.things if w.parameters else house.things[:1])):
            key = {"Idempotency-Key": str(uuid4())}
            house.api.request(**way.request(thing), headers=house.who(ADMIN) | key)
            says_its_secret(house.engine)
            for headers in (house.who(scope) | key, house.who(scope)):
                answer = house.api.request(**way.request(thing), headers=headers)
                assert SAID not in answer.text, (way, answer.text)
                assert answer.status_code < 500, (way, answer.text)


def says_its_secret(engine: Engine) -> None:
    """Whatever can be claimed is done, and tells what readers alone may see."""
    for queue in ("default", MARK):
        for job in engine.claim(queue, worker="w9", limit=100, namespace=MARK):
            engine.log(job, SAID)
            engine.succeed(job, {"said": SAID})


def test_a_worker_reports_nothing_without_the_fence_and_the_name_of_its_claim(house: House) -> None:
    headers, id_ = house.who("work"), house.held.id
    reports = [w for w in house.guarded if "work" in w.scopes and w.method == "POST" and "{id}" in w.path]
    for way in reports:
        real = {"fence": house.held.fence, "worker": house.held.worker}
        whole = way.request(id_, **real)["json"]
        for bad in (
            {}, without_key(whole, "fence"), without_key(whole, "worker"), {**whole, "fence": real["fence"] + 1},
            {**whole, "worker": "w2"}, {**whole, "fence": None}, {**whole, "worker": ""},
        ):  # fmt: skip
            answer = house.api.request(way.method, way.at(id_), json=bad, headers=headers)
            assert 400 <= answer.status_code < 500, (way, bad)


def test_the_walk_sees_a_route_that_somebody_opens(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    app = build(house.engine)
    app.add_api_route("/rogue", lambda: "open", methods=["GET", "POST"])
    monkeypatch.setattr(middleware, "EXEMPT", EXEMPT | {("GET", "/rogue")})
    rogue = [way for way in ways(app) if way.path == "/rogue"]
    assert [(w.method, w.scopes) for w in rogue] == [("GET", frozenset()), ("POST", frozenset())]
    with TestClient(app, base_url=BASE, client=("127.0.0.1", 1)) as api:
        assert [api.request(**way.request()).status_code for way in rogue] == [200, 401]

"""A secret is planted wherever somebody can put a value; then every route, stream, command and log is searched for it.

A route or a command that is added later is walked, too: it need not be named here.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click import Argument, Context
from fastapi import APIRouter, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel

import onetray
from onetray import Onetray, ctx
from onetray.cli import main
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.engine.api import READS
from onetray.http.app import build
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute
from onetray.http.services import services_of
from onetray.log_format import JsonLines
from onetray.remote.transport import REDACTED
from tests.cli.run import called, every_command
from tests.http.callers import BASE
from tests.http.walking import ways
from tests.support.engines import engine_on
from tests.support.live import serving, stream
from tests.support.tasks import take

PLACES = (
    "payload", "input", "result", "checkpoint", "line_data", "config", "metadata", "context", "approval", "spawned",
    "raw_data", "raw_stage", "raw_context", "raw_approval", "raw_result", "late",
    "carried", "passed_on",
)  # fmt: skip
SECRETS = {place: f'planted {place} "{n}" ß' for n, place in enumerate(PLACES)}
SPELLINGS = {p: (s, json.dumps(s)[1:-1], json.dumps(s, ensure_ascii=False)[1:-1]) for p, s in SECRETS.items()}
SRC = Path(onetray.__file__).parent
SHORT = "q7Z"
"""Too short to be looked for: hidden by its path alone."""


class Config(BaseModel):
    secret: str
    pin: str = SHORT
    open: str = "seen"


@dataclass
class Scene:
    """What was run, and what the process that ran it has logged."""

    engine: Engine
    url: str
    tasks: list[str] = field(default_factory=list)
    flows: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    process_log: str = ""

    @property
    def ids(self) -> list[str]:
        return [*self.tasks, *self.flows, *self.stages]

    def leaks(self, text: str) -> list[str]:
        """The places whose secrets are in an answer, as they are or as JSON or Python writes them."""
        texts = (text, text.replace('\\"', '"').replace("\\\\", "\\").replace("\\u00df", "ß"))
        found = [place for place, forms in SPELLINGS.items() if any(form in t for form in forms for t in texts)]
        return found + ([SHORT] if SHORT in text else [])


def declared(url: str) -> Onetray:
    app = Onetray(url)

    @app.task(redact=["secret", "pin"], retries=0)
    def login(secret: str, pin: str, fails: bool) -> dict[str, str]:
        assert secret == SECRETS["payload"]
        given = ctx.wait_for_input("ann", f"needs more than {secret}")
        assert given["secret"] == SECRETS["input"]
        ctx.log(f"with {secret} and {given['secret']!r}", secret=SECRETS["line_data"], pin=pin, said={"deep": secret})
        ctx.progress(1, 2, f"at {secret}")
        ctx.checkpoint({"secret": SECRETS["checkpoint"], "said": secret})
        ctx.log(f"kept {SECRETS['checkpoint']!r}", level="warning")
        if fails:
            raise RuntimeError(f"{secret} was refused, {given['secret']!r}")
        return {"secret": SECRETS["result"], "said": secret, "pin": pin}

    @app.after
    def broken_hook(context: Any, result: Any) -> None:
        raise RuntimeError(f"the hook does not like {context.payload.get('secret')!r} {result!r:.20}")

    shop = app.flow("shop", config=Config, redact=["secret", "pin"])

    @shop.stage
    def fetch(config: Config) -> list[dict[str, str]]:
        ctx.log(f"fetches with {config.secret}")
        return [{"secret": SECRETS["spawned"], "pin": SHORT, "said": config.secret}]

    def wanted(config: Config) -> bool:
        ctx.log(f"asks whether {config.secret} is good")
        return True

    @shop.stage(each=fetch, when=wanted, compensate=lambda config, result: ctx.log(f"undoes {config.secret}"))
    def send(item: dict[str, str]) -> dict[str, str]:
        ctx.log(f"sends {item['secret']!r} {item['said']}", item=item)
        return item

    @shop.stage(approve="ann", retries=0)
    def pay(config: Config, approval: dict[str, Any], fetch: list[dict[str, str]]) -> str:
        assert approval["input"]["secret"] == SECRETS["approval"]
        said = f"{config.secret} {approval['input']['secret']!r} {fetch[0]['secret']}"
        ctx.log(said, approval=approval, config=config.model_dump(), stages={"fetch": fetch})
        raise RuntimeError(f"refused: {said}")

    return app


def run_all(app: Onetray, scene: Scene) -> None:
    """Tasks and flows of an app, run by a worker of its own."""
    engine = app.engine
    login, shop = app.tasks["login"], app.flows["shop"]
    jobs = [
        login.options(labels={"who": SECRETS["payload"]}).submit(secret=SECRETS["payload"], pin=SHORT, fails=fails)
        for fails in (False, True)
    ]
    flow = shop.submit(
        Config(secret=SECRETS["config"]), metadata={"secret": SECRETS["metadata"], "pin": SHORT},
        context={"secret": SECRETS["context"], "said": SECRETS["config"]}, labels={"who": SECRETS["config"]},
    )  # fmt: skip
    with app.worker(concurrency=2, name="w"):
        for job in jobs:
            _until(lambda job=job: job.view().state == "waiting_input")
            engine.resume(job.id, input={"secret": SECRETS["input"], "pin": SHORT}, cause=f"has {SECRETS['payload']}")
        _until(lambda: engine.flow(flow.id).current_stage == "pay")
        waits = engine.stages(flow.id)[2].id
        given = {"secret": SECRETS["approval"], "pin": SHORT}
        engine.approve_stage(waits, input=given, actor_name="ann", note=f"after {SECRETS['config']}")
        for job in (*jobs, flow):
            job.wait(60)
        _until(lambda: engine.flow(flow.id).compensation is not None)
        undone = engine.flow(flow.id).compensation
        assert undone is not None
        _until(lambda: engine.flow(undone).state == "succeeded")
    scene.tasks += [job.id for job in jobs]
    scene.flows += [flow.id, undone]


def run_raw(engine: Engine, scene: Scene) -> None:
    """A flow made by hand, whose tasks redact nothing: the flow alone does."""
    said = f"{SECRETS['raw_data']} {SECRETS['raw_stage']}"
    task = TaskSpec("plain", {"said": said, "pin": "open"}, policy=Policy(max_attempts=1))
    flow = engine.submit_flow(
        "by hand",
        [
            StageSpec("one", [task], data={"secret": SECRETS["raw_stage"]}),
            StageSpec("two", [task], approval=Approval(owner="ann", reason=said)),
        ],
        data={"secret": SECRETS["raw_data"]},
        redact=["secret", "pin"],
    ).id
    first = take(engine, kinds=("plain",))
    engine.log(first, ("info", said, {"secret": SHORT}))
    engine.succeed(
        first, {"secret": SECRETS["raw_result"], "said": SECRETS["raw_context"]},
        context={"secret": SECRETS["raw_context"]}, metrics={"said": said}, errors=[said],
    )  # fmt: skip
    engine.approve_stage(engine.stages(flow)[1].id, input={"secret": SECRETS["raw_approval"]}, actor_name="ann")
    second = take(engine, kinds=("plain",))
    engine.fail(second, f"{said} {SECRETS['raw_approval']}")
    scene.flows.append(flow)


def run_again(engine: Engine, scene: Scene) -> None:
    """A flow of which one task redacts, retried and undone: its secrets are passed on to flows of tasks that do not."""
    once = Policy(max_attempts=1)
    said = f"{SECRETS['carried']} {SECRETS['passed_on']}"
    login = TaskSpec("sign in", {"secret": SECRETS["passed_on"]}, policy=Policy(redact=("secret", "pin")))
    flow = engine.submit_flow("again", [
        StageSpec("one", [login], compensate=TaskSpec("give back", policy=once)),
        StageSpec("two", [TaskSpec("go on", policy=once)]),
    ]).id  # fmt: skip
    given = {"secret": SECRETS["carried"], "pin": SHORT, "said": SECRETS["passed_on"]}
    engine.succeed(take(engine, kinds=("sign in",)), given)
    engine.fail(take(engine, kinds=("go on",)), said)
    retried, undone = engine.retry_flow(flow, from_stage="two").id, engine.flow(flow).compensation
    assert undone is not None
    for kind in ("go on", "give back"):
        task = take(engine, kinds=(kind,))
        engine.log(task, said)
        engine.fail(task, said)
    # The retry has failed, too, and is undone with what it has carried over.
    engine.fail(take(engine, kinds=("give back",)), said)
    last = engine.flow(retried).compensation
    assert last is not None
    scene.flows += [flow, retried, undone, last]


def run_before_its_app(engine: Engine, scene: Scene) -> None:
    """A flow that was submitted before anybody said what it redacts."""
    flow = engine.submit_flow("late", [StageSpec("a", [TaskSpec("b")])], data={"secret": SECRETS["late"]}).id
    engine.configure("late", Policy(redact=("secret",)))
    # The stream of a job that goes on would not end.
    engine.cancel_flow(flow, cause=f"has {SECRETS['late']}")
    scene.flows.append(flow)


def _until(condition: Any) -> None:
    from tests.support.fleet import wait_until

    wait_until(condition, 60)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    url = f"sqlite:///{tmp_path_factory.mktemp('planted') / 'jobs.db'}"
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("onetray")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    with engine_on(url) as engine:
        scene, app = Scene(engine, url), declared(url)
        try:
            run_all(app, scene)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            app.close()
        run_raw(engine, scene)
        run_again(engine, scene)
        run_before_its_app(engine, scene)
        scene.process_log = said.getvalue()
        scene.stages += [stage.id for flow in scene.flows for stage in engine.stages(flow)]
        scene.tasks += [member.id for flow in scene.flows for member in engine.members(flow)]
        yield scene


def test_the_secrets_were_planted(scene: Scene) -> None:
    """What is searched for below is there, for whoever may see it."""
    engine = scene.engine
    there = str([
        [engine.task(id_) for id_ in scene.tasks], [engine.flow(id_) for id_ in scene.flows],
        [engine.stage(id_) for id_ in scene.stages], [engine.contexts(id_) for id_ in scene.flows],
        [engine.last_checkpoint(id_) for id_ in scene.tasks], [engine.logs(id_) for id_ in scene.tasks],
    ])  # fmt: skip
    assert [place for place in PLACES if place not in scene.leaks(there)] == []
    assert SHORT in there


def test_no_route_shows_one(scene: Scene) -> None:
    with TestClient(build(scene.engine), base_url=BASE, raise_server_exceptions=False) as client:
        answered = set()
        for way in ways(client.app):  # type: ignore[arg-type]
            if way.method != "GET" or (way.endless and not way.parameters):
                continue
            for id_ in scene.ids if way.parameters else [""]:
                answer = client.get(way.at(id_))
                assert scene.leaks(answer.text) == [], (str(way), id_)
                if answer.status_code == 200:
                    answered.add(str(way))
        assert {"GET /api/v1/jobs/{id}", "GET /api/v1/jobs/{id}/stream", "GET /api/jobs/{id}"} <= answered


def test_the_feed_shows_none(scene: Scene) -> None:
    wanted = len(scene.engine.feed.read(0, 1_000).events)

    async def told(port: int) -> list[Any]:
        async with stream(port, "/api/v1/feed/stream?cursor=0") as one:
            return list(await one.events(wanted))

    with serving(scene.engine) as live:
        events = asyncio.run(told(live.port))
    assert len(events) == wanted
    assert scene.leaks(json.dumps([e.data for e in events], ensure_ascii=False)) == []


def test_no_read_by_name_shows_one(scene: Scene) -> None:
    with TestClient(build(scene.engine), base_url=BASE, headers={REDACTED: "1"}) as client:
        for name, read in READS.items():
            needs = [p.name for p in read.parameters.values() if p.default is p.empty]
            if needs == ["keys"]:
                for first in (1, 101):
                    answer = client.post(f"/api/v1/reads/{name}", json={"keys": list(range(first, first + 100))})
                    assert answer.status_code == 200, answer.text
                    assert scene.leaks(answer.text) == [], name
                continue
            ids = {"flow": scene.flows, "stage": scene.stages}.get("".join(needs), scene.tasks)
            for id_ in ids if needs else [""]:
                answer = client.post(f"/api/v1/reads/{name}", json=dict.fromkeys(needs, id_))
                assert scene.leaks(answer.text) == [], (name, id_)


def test_a_route_that_is_added_and_knows_nothing_of_redaction_shows_none(scene: Scene) -> None:
    router = APIRouter(route_class=NativeRoute)

    @router.get("/api/v1/new/{name}/{id}")
    async def new(request: Request, name: str, id: str, principal: Principal = Reader) -> Json:
        engine = services_of(request).engine
        read = engine.feed.read if name == "feed" else getattr(engine, name)
        needs = () if name == "feed" else READS[name].parameters.values()
        given = {p.name: [*range(1, 101)] if p.name == "keys" else id for p in needs if p.default is p.empty}
        return Json(to_json(read(0) if name == "feed" else read(**given)))

    app = build(scene.engine)
    app.include_router(router)
    answered = set()
    with TestClient(app, base_url=BASE) as client:
        for name in (*READS, "feed"):
            needs = [] if name == "feed" else [p.name for p in READS[name].parameters.values() if p.default is p.empty]
            of = {"flow": scene.flows, "stage": scene.stages, "task": scene.tasks, "keys": ["-"], "": ["-"]}
            for id_ in of.get("".join(needs), scene.ids):
                answer = client.get(f"/api/v1/new/{name}/{id_}")
                assert scene.leaks(answer.text) == [], (name, id_)
                answered |= {name} if answer.status_code == 200 else set()
    assert {"task", "flow", "stages", "events", "logs", "inputs", "job_details", "own_events", "feed"} <= answered


def test_what_is_not_redacted_is_asked_for_by_its_name_and_in_few_places() -> None:
    """A new place is one more to be thought about: nothing that it reads may be shown to others."""
    places = {p.relative_to(SRC).as_posix() for p in SRC.rglob("*.py") if ".unredacted" in p.read_text("utf-8")}
    assert places == {
        "dashboard/view.py", "dashboard/views/waiting.py", "dialects/calls.py", "dialects/kit.py",
        "http/auth/token_cache.py", "http/claim_delivery.py", "http/idempotency.py",
        "http/routes/rpc.py", "http/services.py", "mcp/call.py", "mcp/parallel/reports.py", "mcp/route.py",
    }  # fmt: skip
    below = [p for part in ("dashboard", "dialects", "http/routes", "mcp") for p in (SRC / part).rglob("*.py")]
    assert [p.name for p in below if ".store" in p.read_text("utf-8")] == []


DO_NOTHING_WITH_JOBS = {
    "completion", "config", "demo", "doctor", "lifecycle", "mcp", "migrate", "prune", "serve", "up", "worker",
}  # fmt: skip


def test_no_command_prints_one(scene: Scene) -> None:
    some = [*scene.tasks[1:3], *scene.flows, scene.tasks[-2], scene.stages[2]]
    for words in every_command():
        command: Any = main
        for word in words:
            command = command.get_command(Context(main), word)
        if hasattr(command, "commands") or words[0] in DO_NOTHING_WITH_JOBS:
            continue
        takes_id = any(isinstance(p, Argument) for p in command.params)
        for n, id_ in enumerate(some if takes_id else [None, None]):
            as_json = ["--json"] if n % 2 else []
            done = called(*words, *([] if id_ is None else [id_]), *as_json, "--database", scene.url)
            assert scene.leaks(done.output) == [], (words, id_)


def test_the_log_of_the_worker_shows_none(scene: Scene) -> None:
    lines = [json.loads(line) for line in scene.process_log.splitlines()]
    assert any("with ***" in line["message"] for line in lines)
    assert any("an after hook of" in line["message"] for line in lines)
    assert any("asks whether *** is good" in line["message"] for line in lines)
    assert any("undoes ***" in line["message"] for line in lines)
    assert [line["message"] for line in lines if scene.leaks(json.dumps(line, ensure_ascii=False))] == []

"""The remote engine: what it gives, what it refuses, and what becomes of requests that are not answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from onetray import Onetray
from onetray.config import EngineConfig
from onetray.domain.errors import (
    AliasTaken,
    Forbidden,
    IllegalTransition,
    InvalidInput,
    JobFailed,
    LeaseLost,
    NoAttemptsLeft,
    NotFound,
    OutcomeUnknown,
    StoreError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.limits import Concurrency, Rate
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from onetray.http.auth.scopes import Principal
from onetray.remote.engine import NeedsDatabase, RemoteEngine
from onetray.remote.sender import MAX_BYTES
from tests.remote.conftest import at_work
from tests.support.cases import each_case
from tests.support.engines import migrated_sqlite
from tests.support.fleet import wait_until
from tests.support.servers import Served, listener, served
from tests.support.situations import FLOWS, STAGES, TASKS, Maker
from tests.support.wire import CUT_ANSWER, LOSE_ANSWER, LOSE_REQUEST, Wire

QUICK = EngineConfig(call_timeout_s=0.3)
PATIENT = EngineConfig(call_timeout_s=20.0)


@pytest.fixture
def near(tmp_path: Path) -> Iterator[tuple[Engine, Served]]:
    """The server, and its own engine to look with."""
    with at_work(migrated_sqlite(tmp_path)) as pair:
        yield pair


def test_limits_are_set_and_read_over_the_wire(near: tuple[Engine, Served]) -> None:
    own, server = near
    with RemoteEngine(server.url, config=PATIENT) as remote:
        remote.declare(
            {"send": Policy(concurrency=(Concurrency(1, key="tenant"),), rate=(Rate(9, 60),), fair_by="tenant")}
        )
        limit = remote.set_limit(kind="send", key="tenant", concurrency=2)
        remote.set_weight("send", '"acme"', 2.0)
        for _ in range(3):
            remote.submit("send", {"tenant": "acme"})
        held = remote.claim(worker="w", limit=3)
        assert (remote.limits(), remote.limit(limit)) == (own.limits(), own.limit(limit))
        assert (remote.limit_values(limit), remote.weights()) == (own.limit_values(limit), own.weights())
        assert {h.task for h in remote.limit_holders(limit, value='"acme"')} == {task.id for task in held}
        assert len(held) == 2
        remote.reset_limit(limit)
        assert remote.limit(limit).most == 1
        with pytest.raises(NotFound):
            remote.remove_limit(99_999)


def test_actions_are_the_same_at_the_server_and_over_the_wire(near: tuple[Engine, Served]) -> None:
    own, server = near
    with RemoteEngine(server.url, config=PATIENT) as remote:
        for make in TASKS.values():
            id_ = make(Maker(own)).id
            assert (remote.task(id_).actions, remote.job_status(id_).actions) == (own.task(id_).actions,) * 2
            assert remote.set_metadata(id_, 1).actions == own.task(id_).actions
        for make_flow in FLOWS.values():
            id_ = make_flow(Maker(own)).id
            assert remote.flow(id_).actions == remote.set_flow_metadata(id_, 1).actions == own.flow(id_).actions
        for make_stage in STAGES.values():
            id_ = make_stage(Maker(own))
            assert remote.stage(id_).actions == remote.set_stage_metadata(id_, 1).actions == own.stage(id_).actions


def test_a_failed_flow_says_over_the_wire_which_task_failed(near: tuple[Engine, Served]) -> None:
    own, server = near
    flow = own.submit_flow("f", [StageSpec("one", [TaskSpec("k", name="first")])])
    own.fail(own.claim(worker="w")[0], "no such user", error_class="UserError", retryable=False)
    with (
        Onetray(server.url) as app,
        pytest.raises(JobFailed, match="task first of stage 'one': UserError: no") as raised,
    ):
        app.job(flow.id).result(0)
    assert (raised.value.task, raised.value.stage) == (flow.tasks[0], "one")
    assert (raised.value.error_class, raised.value.error_message) == ("UserError", "no such user")


def test_verbs_and_reads_give_the_same_values_as_the_servers_own_engine(near: tuple[Engine, Served]) -> None:
    own, server = near
    with RemoteEngine(server.url) as remote:
        task = remote.submit("mail", {"to": "ann"}, labels={"a": "b"}).id
        flow = remote.submit_flow("f", [StageSpec("one", [TaskSpec("k", {"n": 1})]), StageSpec("two")]).id
        assert task is not None
        assert remote.task(task) == own.task(task)
        assert remote.task(task, actor="worker").actions == own.task(task, actor="worker").actions
        assert remote.events(task) == own.events(task)
        assert (remote.flow(flow), remote.stages(flow)) == (own.flow(flow), own.stages(flow))
        assert remote.progress(flow) == own.progress(flow)
        assert remote.jobs(labels={"a": "b"}) == own.jobs(labels={"a": "b"})
        assert remote.locate(task[-8:]) == own.locate(task[-8:])
        assert remote.explain(flow) == own.explain(flow)
        assert remote.config.limits == own.config.limits
        (claimed,) = remote.claim(worker="w", kinds=("mail",))
        assert isinstance(claimed, Assignment)
        assert (claimed.payload, claimed.policy) == ({"to": "ann"}, own.task(task).policy)
        remote.log(claimed, "a line")
        remote.checkpoint(claimed, {"at": 3})
        assert remote.held([claimed.key]) == own.held([claimed.key])
        assert (remote.last_checkpoint(task), [line.line for line in remote.logs(task)]) == ({"at": 3}, ["a line"])
        assert remote.succeed(claimed, {"sent": True}).state == "succeeded"
        assert own.task(task).result == {"sent": True}


def test_aliases_and_the_options_of_a_redrive_are_the_same_at_a_server(near: tuple[Engine, Served]) -> None:
    own, server = near
    with RemoteEngine(server.url) as remote:
        task = remote.submit("mail", alias="order/17").id
        stages = [StageSpec("one", [TaskSpec("k", alias="member", queue="q")])]
        flow = remote.submit_flow("f", stages, alias="run")
        assert remote.find_aliases(["order/17", "run", "member"]) == own.find_aliases(["order/17", "run", "member"])
        assert remote.by_alias("order/17").id == task
        with pytest.raises(AliasTaken) as e:
            remote.submit("mail", alias="run")
        assert (e.value.entity, e.value.id) == ("flow", flow.id)
        remote.fail(remote.claim(worker="w")[0], "no", reason_code="parse_error")
        new = remote.redrive(str(task), keep_attempts=True, run_at=own.now() + 60_000_000).id
        assert own.task(str(new)).attempts == 1
        assert own.by_alias("order/17").id == new
        remote.configure("once", Policy(max_attempts=1))
        once = remote.submit("once").id
        remote.fail(remote.claim(worker="w", kinds=("once",))[0], "no")
        with pytest.raises(NoAttemptsLeft):
            remote.redrive(str(once), keep_attempts=True)


def test_what_agents_ask_for_is_the_same_from_afar(near: tuple[Engine, Served]) -> None:
    own, server = near
    with RemoteEngine(server.url) as remote:
        run = remote.submit_flow("run", [StageSpec("all", sealed=False)], roll_up="drain", start=False)
        one = remote.append_context(run.id, {"n": 1}, alias="one")
        spec = TaskSpec("k", context_id="one", policy=Policy(max_attempts=1))
        (task,) = remote.add_tasks(run.stages[0], [spec], open=True).tasks
        assert (remote.task(task).context_id, remote.context_by_id("one")) == (one, own.context_by_id("one"))
        assert remote.pending_tasks(flow=run.id) == own.pending_tasks(flow=run.id) != []
        (held,) = remote.claim(worker="w", lease_s=3600, expiry_counts=True)
        assert held.lease_id == own.task(task).lease_id
        with pytest.raises(LeaseLost) as refused:
            remote.succeed(held, lease_id="1-0")
        assert refused.value.cause == "other_lease"
        assert remote.expire_tasks() == []
        assert remote.expire_tasks(now=own.store.now() + 3_601_000_000) == [task]
        assert remote.dead_lines(flow=run.id) == own.dead_lines(flow=run.id) != []
        assert remote.sorted_jobs(entity="flow") == own.sorted_jobs(entity="flow") != []
        page = remote.events_since(flow=run.id)
        assert (page, len(page.events) > 5) == (own.events_since(flow=run.id), True)
        remote.submit("mail", metadata={"n": 1}, queue="other")
        (mail,) = remote.claim("other", worker="w")
        remote.succeed(mail, metadata={"n": 2}, lease_id=mail.lease_id)
        assert own.task(mail.id).metadata == {"n": 2}
        ended = own.submit("mail", queue="third").id
        remote.cancel(str(ended))
        assert remote.prune_jobs(ended_before=own.store.now() + 1, entity="task") == [ended], "the others have keys"


def test_errors_are_the_same_as_the_engines_own(remote: RemoteEngine) -> None:
    with pytest.raises(NotFound, match="there is no task"):
        remote.task("01890a5d-ac96-774b-bcce-b302099a8057")
    with pytest.raises(InvalidInput) as refused:
        remote.submit("")
    assert refused.value.field == "kind"
    with pytest.raises(TooLarge):
        remote.submit("k", "x" * 1_000_001)
    with pytest.raises(InvalidInput, match="NaN"):
        remote.submit("k", float("nan"))
    job = remote.submit("k").id
    assert job is not None
    remote.cancel(job)
    with pytest.raises(IllegalTransition) as illegal:
        remote.cancel(job)
    assert illegal.value.allowed == list(remote.task(job).actions)


def test_what_needs_the_database_itself_says_so(remote: RemoteEngine) -> None:
    with Engine.open("sqlite://:memory:") as engine:
        only = {name for name in {*dir(engine)} - {*dir(remote)} if not name.startswith("_")}
        kept = {name for name, value in vars(RemoteEngine).items() if isinstance(value, NeedsDatabase)}
        assert only == {"open"}
        assert kept <= {*dir(engine)}
    for name in kept:
        with pytest.raises(StoreError, match="needs the database itself"):
            getattr(remote, name)
    with pytest.raises(AttributeError):
        _ = remote.nothing_of_this_name


def test_a_submit_inside_the_callers_transaction_is_refused(app: Onetray) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidInput, match="inside your own transaction"):
        work.options(connection=object()).submit()
    with pytest.raises(InvalidInput, match="inside your own transaction"):
        asyncio.run(work.options(connection=object()).aio.submit())


def test_another_namespace_than_the_tokens_is_refused_by_name(server: Served, remote: RemoteEngine) -> None:
    with pytest.raises(InvalidInput, match="the token is for the namespace 'default'"):
        remote.submit("k", namespace="theirs")
    with pytest.raises(InvalidInput, match="the token is for the namespace 'default'"):
        remote.jobs(namespace="theirs")


@each_case("url", ["http://", "http://u:p@host", "http://host?x=1", "ftp://host"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="http://host:port"):
        RemoteEngine(url)


def test_a_token_that_was_not_copied_whole_is_refused() -> None:
    with pytest.raises(InvalidInput, match="invalid characters"):
        RemoteEngine("http://host", token="ot_x\nX-Evil: 1")


def test_many_large_tasks_are_sent_in_parts(near: tuple[Engine, Served]) -> None:
    own, server = near
    with Onetray(server.url) as app:

        @app.task(kind="big")
        def big(text: str) -> None: ...

        jobs = big.submit_many([{"text": "x" * (MAX_BYTES // 3)}] * 7)
        assert len({job.id for job in jobs}) == len(own.jobs(kind="big").jobs) == 7
        assert len(big.submit_many([{"text": ""}] * 1201)) == 1201


# Answers that are lost.


@pytest.mark.parametrize("what", [LOSE_REQUEST, LOSE_ANSWER, CUT_ANSWER])
def test_a_lost_request_or_answer_leaves_one_job_one_claim_and_one_outcome(
    near: tuple[Engine, Served], what: str
) -> None:
    own, server = near
    with Wire(server.url) as wire, RemoteEngine(wire.url, config=PATIENT) as remote:
        remote.introduce()
        wire.lose_once(what)
        receipt = remote.submit("k", {"n": 1})
        assert not receipt.repeated
        wire.lose_once(what)
        (claimed,) = remote.claim(worker="w")
        assert claimed.id == receipt.id
        for report in (remote.start, remote.succeed):
            wire.lose_once(what)
            report(claimed)
        wire.lose_once(what, b"/api/v1/reads/task")
        assert remote.task(claimed.id).state == "succeeded"
        assert len(own.jobs().jobs) == 1
        types = [event.type for event in own.events(claimed.id)]
        assert types == ["task.submitted", "task.claimed", "task.started", "task.succeeded"]
        assert wire.fates[what] == 5


@pytest.mark.parametrize("what", [LOSE_ANSWER, CUT_ANSWER])
def test_many_tasks_whose_answer_is_lost_are_submitted_once(near: tuple[Engine, Served], what: str) -> None:
    own, server = near
    with Wire(server.url) as wire, Onetray(wire.url, config=PATIENT) as app:

        @app.task(kind="many")
        def many(n: int) -> None: ...

        app.engine.config  # noqa: B018
        wire.lose_once(what)
        jobs = many.submit_many([{"n": n} for n in range(5)])
        assert {job.id for job in jobs} == {job.id for job in own.jobs(kind="many").jobs}
        wire.lose_once(what)
        flow = app.engine.submit_flow("f", [StageSpec("one", [TaskSpec("k")])])
        assert [f.id for f in own.flows()] == [flow.id]


def test_what_cannot_be_repeated_is_sent_once_and_nobody_knows(near: tuple[Engine, Served]) -> None:
    own, server = near
    with Wire(server.url) as wire, RemoteEngine(wire.url, config=PATIENT) as remote:
        job = remote.submit("k").id
        assert job is not None
        wire.lose_once(LOSE_ANSWER)
        with pytest.raises(OutcomeUnknown):
            remote.cancel(job)
        assert own.task(job).state == "cancelled"


def test_what_did_not_arrive_is_told_from_what_may_have(near: tuple[Engine, Served]) -> None:
    _, server = near
    with listener() as found:
        nobody = f"http://127.0.0.1:{found.getsockname()[1]}"
    with RemoteEngine(nobody, config=QUICK) as remote, pytest.raises(Unavailable) as away:
        remote.submit("k")
    assert type(away.value) is Unavailable
    with Wire(server.url) as wire, RemoteEngine(wire.url, config=QUICK) as remote:
        remote.introduce()
        wire.fate = lambda head: LOSE_ANSWER if b"/commands" in head else "pass"
        with pytest.raises(OutcomeUnknown):
            remote.submit("k")
        wire.fate = lambda _: LOSE_ANSWER
        with pytest.raises(Unavailable) as unread:
            remote.now()
        assert type(unread.value) is Unavailable


def test_a_server_that_restarts_is_waited_for(tmp_path: Path) -> None:
    with at_work(migrated_sqlite(tmp_path)) as (own, first):
        port = first.port
        with RemoteEngine(first.url, config=PATIENT) as remote:
            remote.introduce()
            first.end()
            answers: list[object] = []
            asking = threading.Thread(target=lambda: answers.append(remote.submit("k").state))
            asking.start()
            with served(own, port):
                asking.join(60)
            assert answers == ["queued"]


@pytest.mark.parametrize("error", [Unauthorized, Forbidden])
def test_who_is_not_allowed_is_told_at_once(near: tuple[Engine, Served], error: type[Exception]) -> None:
    _, server = near

    def refuse(*_: object) -> Principal:
        raise error("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onetray.http.auth.scopes.principal_of", refuse)
        with RemoteEngine(server.url, config=EngineConfig(call_timeout_s=600)) as remote, pytest.raises(error):
            remote.declare({"k": Policy()})


def test_something_else_than_a_server_of_ours_is_named(tmp_path: Path) -> None:
    import http.server

    other = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with (
        RemoteEngine(f"http://127.0.0.1:{other.server_port}", config=QUICK) as remote,
        pytest.raises(InvalidInput) as no,
    ):
        remote.submit("k")
    assert "is not an onetray server" in str(no.value)
    other.shutdown()
    other.server_close()


def test_an_engine_that_was_opened_before_a_fork_is_refused(remote: RemoteEngine) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        for ask in (remote.now, lambda: remote.submit("k"), lambda: remote.pause_queue("q")):
            with pytest.raises(StoreError, match="before a fork"):
                ask()


# News.


def test_whoever_waits_hears_of_what_others_write(near: tuple[Engine, Served]) -> None:
    own, server = near
    with RemoteEngine(server.url) as remote:
        waiter, heard = remote.wake.waiter([("default", "default")]), threading.Event()

        def wait() -> None:
            # The ear says hello first.
            while waiter.queue is None or remote.wake.work < 2:
                waiter.polled()
                waiter.wait(waiter.seen(), 20.0)
            heard.set()

        threading.Thread(target=wait, daemon=True).start()
        own.submit("k")
        assert heard.wait(60)


class Worker:
    """A remote engine that waits for work in a queue, and how often it was woken for some."""

    def __init__(self, url: str, queue: str) -> None:
        self.engine = RemoteEngine(url)
        self.waiter = self.engine.wake.waiter([("default", queue)])
        self.woken = 0

    def wait(self) -> None:
        self.waiter.wait(self.waiter.seen(), 20.0)
        self.woken += self.waiter.queue is not None
        self.waiter.polled()

    def until_in_line(self, own: Engine, many: int) -> threading.Thread:
        """Have it wait at the server, behind as many others."""
        thread = threading.Thread(target=self.wait, daemon=True)
        thread.start()
        # The ear says hello first.
        thread.join(20)
        again = threading.Thread(target=self.wait, daemon=True)
        again.start()
        wait_until(lambda: len(own.wake._lines) == many + 1, 20)
        return again


@pytest.mark.usefixtures("no_polling", "only_rings")
def test_a_task_wakes_one_remote_worker_of_its_queue(near: tuple[Engine, Served]) -> None:
    own, server = near
    one, two, other = Worker(server.url, "a"), Worker(server.url, "a"), Worker(server.url, "b")
    own.wake.wait(own.wake.generation, 20)
    try:
        first, second, _ = (w.until_in_line(own, n) for n, w in enumerate((one, two, other)))
        own.submit("k", queue="a")
        first.join(20)
        assert not first.is_alive()
        # Its ear listens again, behind the others.
        own.submit("k", queue="a")
        second.join(20)
        assert (one.woken, two.woken, other.woken) == (2, 2, 1)
    finally:
        for worker in (one, two, other):
            worker.engine.close()


@pytest.mark.usefixtures("no_polling")
def test_a_remote_worker_without_a_place_leaves_a_task_to_another(near: tuple[Engine, Served]) -> None:
    own, server = near
    full, idle = Worker(server.url, "a"), Worker(server.url, "a")
    own.wake.wait(own.wake.generation, 20)
    try:
        gone = full.until_in_line(own, 0)
        waiting = idle.until_in_line(own, 1)
        # Nobody waits there any more, but the request that was under way still does, first in line.
        full.waiter.interrupt()
        gone.join(20)
        own.submit("k", queue="a")
        waiting.join(20)
        assert not waiting.is_alive()
        assert (full.woken, idle.woken) == (1, 2)
    finally:
        full.engine.close()
        idle.engine.close()


def test_closing_ends_a_request_that_waits_for_news(near: tuple[Engine, Served]) -> None:
    _, server = near
    remote = RemoteEngine(server.url)
    waiting = threading.Thread(target=lambda: remote.wake.wait(remote.wake.generation + 5, 600.0), daemon=True)
    waiting.start()
    remote.wake.wait(remote.wake.generation, 5.0)
    remote.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert not [t for t in threading.enumerate() if t.name == "onetray-listener" and t in remote.wake._threads]
    with pytest.raises(Unavailable, match="closed"):
        remote.now()


def test_the_past_and_the_timeline_are_the_same_over_the_wire(near: tuple[Engine, Served]) -> None:
    own, server = near
    stages = [StageSpec("a", [TaskSpec("a", {"n": 1}, name="first")]), StageSpec("b", [TaskSpec("b")])]
    flow = own.submit_flow("f", stages).id
    (held,) = own.claim(worker="w")
    own.succeed(held, {"x": 1})
    with RemoteEngine(server.url, config=PATIENT) as remote:
        for event in own.flow_events(flow):
            assert remote.at(flow, event.id) == own.at(flow, event.id)
        for event in own.events(held.id):
            assert remote.at(held.id, event.id) == own.at(held.id, event.id)
        here, there = own.timeline(flow), remote.timeline(flow)
        assert (there.intervals, there.cut, there.from_at) == (here.intervals, here.cut, here.from_at)
        with pytest.raises(NotFound, match="is none of the task"):
            remote.at(held.id, 2**60)


def test_a_remote_submit_is_debounced_and_throttled(either_app: Onetray) -> None:
    engine = either_app.engine
    first, again = (engine.submit("index", n, debounce_s=3600, debounce_key="a") for n in (1, 2))
    assert (again.id, again.repeated, again.window) == (first.id, True, "debounced")
    assert engine.task(str(first.id)).payload == 2
    first, again = (engine.submit("remind", n, throttle_s=3600) for n in (1, 2))
    assert (first.repeated, again.id, again.repeated, again.window) == (False, first.id, True, "throttled")

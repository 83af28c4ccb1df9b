"""Nobody listens: explain says which worker is missing, and how to start it."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.task import Blocker
from onetray.engine import Engine
from onetray.explain.flows import SCANNED_TASKS
from onetray.explain.tasks import is_claimable
from tests.support.cases import each_case
from tests.support.listening import register
from tests.support.tasks import submit


def only(blockers: list[Blocker]) -> Blocker:
    (blocker,) = blockers
    return blocker


def submitted(engine: Engine, queue: str = "mail", kind: str = "send", **fields: object) -> str:
    return engine.submit(kind, queue=queue, **fields).id or ""  # type: ignore[arg-type]


def test_without_any_worker_explain_says_how_to_start_one(engine: Engine) -> None:
    found = only(engine.explain(submitted(engine)))
    command = "onetray worker --app MODULE:APP --queues mail"
    assert (found.code, found.message) == ("no_worker", f"no worker is alive: start one, `{command}`")
    assert found.facts == {"queue": "mail", "kind": "send", "command": command}


def test_a_worker_on_the_queue_that_knows_the_kind_is_enough(engine: Engine) -> None:
    task = submitted(engine)
    register(engine, "mail", kinds=("send",))
    assert engine.explain(task) == []


@each_case("queues", [("mail:5",), ("other", " mail:1 "), ("mail",)])
def test_a_queue_with_a_limit_is_the_same_queue(engine: Engine, queues: tuple[str, ...]) -> None:
    register(engine, *queues)
    assert engine.explain(submitted(engine)) == []


def test_workers_on_other_queues_do_not_claim_it(engine: Engine) -> None:
    register(engine, "default", "mailing", "mail:x")
    found = only(engine.explain(submitted(engine)))
    assert (found.code, found.facts["command"]) == (
        "no_worker_on_queue", "onetray worker --app MODULE:APP --queues mail",
    )  # fmt: skip
    assert "no registered worker claims from queue 'mail'" in found.message


def test_workers_that_do_not_know_the_kind_do_not_claim_it(engine: Engine) -> None:
    for name in ("w1", "w2"):
        register(engine, "mail", name=name, kinds=("print", "sends"))
    found = only(engine.explain(submitted(engine)))
    assert found.code == "no_worker_for_kind"
    assert "2 workers claim from queue 'mail', but none of them knows the kind 'send'" in found.message
    register(engine, "mail", name="w3", kinds=())
    assert engine.explain(submitted(engine)) == []


def test_workers_of_another_namespace_do_not_claim_it_and_are_not_named(engine: Engine) -> None:
    register(engine, "mail", name="secret-worker", namespace="secret-shop")
    task = submitted(engine, namespace="shop")
    found = only(engine.explain(task, namespace="shop"))
    assert found.code == "no_worker_in_namespace"
    assert "no worker of the namespace 'shop' is alive" in found.message
    assert "secret" not in f"{found}"
    register(engine, "mail", namespace="shop")
    assert engine.explain(task, namespace="shop") == []


def test_a_worker_whose_registration_has_expired_is_said_to_be_silent(engine: Engine, clock: VirtualClock) -> None:
    register(engine, "mail", name="w7", ttl_s=30.0)
    task = submitted(engine)
    clock.advance(29)
    assert engine.explain(task) == []
    clock.advance(61)
    found = only(engine.explain(task))
    assert (found.code, "worker 'w7' has not been seen for 90 s" in found.message) == ("no_worker", True)


def test_a_worker_that_stops_claims_nothing_more(engine: Engine) -> None:
    register(engine, "mail", name="w7", state="stopping")
    found = only(engine.explain(submitted(engine)))
    assert (found.code, "worker 'w7' is stopping" in found.message) == ("no_worker", True)


def test_a_worker_that_has_stopped_is_said_to_have_stopped_and_when(engine: Engine, clock: VirtualClock) -> None:
    register(engine, "mail", name="w7")
    submitted(engine, priority=5)
    engine.claim(worker="w7", queue="mail")
    engine.worker_leave("w7")
    clock.advance(120)
    engine.worker_leave("w7")
    found = only(engine.explain(submitted(engine)))
    assert (found.code, "no worker is alive; worker 'w7' stopped 2 min ago: start one" in found.message) == (
        "no_worker", True,
    )  # fmt: skip
    assert "unregistered" not in found.facts
    register(engine, "mail", name="w7")
    assert engine.explain(submitted(engine)) == []


def test_workers_without_a_free_slot_are_busy_and_the_oldest_of_their_tasks_is_named(
    engine: Engine, clock: VirtualClock
) -> None:
    register(engine, "mail", name="w1", kinds=("send",), concurrency=2, running=2)
    register(engine, "mail", "post", name="w2", concurrency=3, running=3)
    register(engine, "mail", name="w3", kinds=("other",), concurrency=1, running=0)
    old, new = submitted(engine, kind="report"), submitted(engine)
    for worker, kind in (("w2", "report"), ("w1", "send")):
        (held,) = engine.claim(worker=worker, queue="mail", kinds=(kind,))
        engine.start(held)
        clock.advance(60)
    task = submitted(engine)
    found = only(engine.explain(task))
    assert found.code == "workers_busy"
    assert found.message == (
        f"all 2 workers that claim from queue 'mail' are busy: 5 slots are taken; the oldest running task is {old} "
        "(report), which started 2 min ago: wait, or start another worker, "
        "`onetray worker --app MODULE:APP --queues mail`"
    )
    assert (found.facts["workers"], found.facts["slots"], found.facts["oldest_running"]["id"]) == (2, 5, old)
    assert is_claimable([found])
    register(engine, "mail", "post", name="w2", concurrency=3, running=2)
    assert engine.explain(task) == []
    assert engine.explain(new)[0].code == "running"


def test_a_busy_worker_is_no_reason_of_a_task_that_waits_for_something_else(engine: Engine) -> None:
    register(engine, "mail", name="w1", running=1)
    assert [b.code for b in engine.explain(submitted(engine, delay_s=60))] == ["delayed"]
    (found,) = engine.explain(submitted(engine))
    assert found.message.startswith("the worker that claims from queue 'mail' is busy: 1 slot is taken: wait, or")


def test_a_stage_that_has_not_begun_says_that_all_workers_are_busy(engine: Engine) -> None:
    register(engine, running=1)
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("x")])])
    assert [b.code for b in engine.explain(flow.id)] == ["pending", "workers_busy"]
    (held,) = engine.claim(worker="listener")
    engine.start(held)
    assert [b.code for b in engine.explain(flow.id)] == ["running"]


def test_who_claims_without_a_registration_may_come_again(engine: Engine, clock: VirtualClock) -> None:
    task, other = submitted(engine), submitted(engine, "post")
    submitted(engine, priority=5)
    engine.claim(worker="agent-1", queue="mail")
    clock.advance(180)
    found = only(engine.explain(task))
    assert (found.code, found.facts["unregistered"]) == ("no_worker", "agent-1")
    assert (
        "'agent-1', which is not registered now, claimed from this queue 3 min ago and may do so again" in found.message
    )
    assert "unregistered" not in only(engine.explain(other)).facts
    clock.advance(3_600)
    assert "unregistered" not in only(engine.explain(task)).facts


def test_the_last_claim_of_a_registered_worker_is_no_hint_of_another(engine: Engine, clock: VirtualClock) -> None:
    register(engine, "mail", name="w7", ttl_s=30.0)
    task = submitted(engine)
    submitted(engine, priority=5)
    engine.claim(worker="w7", queue="mail")
    clock.advance(31)
    found = only(engine.explain(task))
    assert "unregistered" not in found.facts
    assert "has not been seen" in found.message


def test_a_task_that_waits_for_something_else_lacks_a_worker_besides(engine: Engine) -> None:
    delayed = submitted(engine, delay_s=60)
    assert [b.code for b in engine.explain(delayed)] == ["delayed", "no_worker"]
    engine.pause_queue("mail", by="ann")
    engine.open_breaker("send", for_s=60, by="ann")
    paused, breaker, missing = engine.explain(submitted(engine))
    assert (paused.code, breaker.code, missing.code) == ("queue_paused", "breaker_open", "no_worker")
    assert paused.message == "the queue mail was paused by ann: resume it, `onetray queues resume mail`"
    assert breaker.message.endswith("to close it now, `onetray breakers close send`")


def test_a_task_that_somebody_holds_or_that_has_ended_lacks_no_worker(engine: Engine) -> None:
    task = submitted(engine)
    (held,) = engine.claim(worker="w", queue="mail")
    assert [b.code for b in engine.explain(task)] == ["assigned"]
    engine.pause(held, owner="ann", reason="asks")
    (blocked,) = engine.explain(task)
    assert (blocked.code, blocked.facts["command"]) == ("blocked", f"onetray jobs resume {task}")
    engine.cancel(task)
    assert [b.code for b in engine.explain(task)] == ["cancelled"]


def test_a_flow_and_its_stage_say_which_of_their_tasks_nobody_claims(engine: Engine) -> None:
    tasks = [TaskSpec("resize", queue="images"), TaskSpec("send", queue="mail"), TaskSpec("send", queue="mail")]
    flow = engine.submit_flow("f", [StageSpec("a", tasks), StageSpec("b", [TaskSpec("late", queue="late")])])
    register(engine, "images", kinds=("other",))
    for id_ in (flow.id, flow.stages[0]):
        state, kind, queue = engine.explain(id_)
        assert (state.code, kind.code, queue.code) == ("pending", "no_worker_for_kind", "no_worker_on_queue")
        assert (kind.facts["stage"], kind.facts["kind"], queue.facts["queue"]) == ("a", "resize", "mail")
    register(engine, "images", "mail", name="w2")
    assert [b.code for b in engine.explain(flow.id)] == ["pending"]


def test_the_condition_of_a_stage_needs_a_worker_too(engine: Engine) -> None:
    stage = StageSpec("a", [TaskSpec("x", queue="work")], when=TaskSpec("decide", queue="control"))
    flow = engine.submit_flow("f", [stage])
    register(engine, "work")
    condition, missing = engine.explain(flow.id)
    assert (condition.code, missing.code, missing.facts["kind"]) == ("condition", "no_worker_on_queue", "decide")


def test_a_flow_whose_tasks_all_run_lacks_no_worker(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    engine.claim(worker="w")
    assert [b.code for b in engine.explain(flow.id)] == ["pending"]


def test_a_large_stage_is_looked_at_from_its_end(engine: Engine) -> None:
    tasks = [TaskSpec("old", queue="a"), *(TaskSpec("new", queue="b") for _ in range(SCANNED_TASKS))]
    flow = engine.submit_flow("f", [StageSpec("s", tasks)])
    _, missing = engine.explain(flow.id)
    assert missing.facts["kind"] == "new"


@pytest.mark.parametrize(
    ("queue", "command"),
    [
        ("my mail", "ONETRAY_QUEUES='my mail' onetray worker --app MODULE:APP"),
        ("a;rm -rf", "ONETRAY_QUEUES='a;rm -rf' onetray worker --app MODULE:APP"),
        ("$(x)", "onetray worker --app MODULE:APP --queues '$(x)'"),
    ],
)
def test_a_command_can_be_pasted_whatever_the_name_of_the_queue(engine: Engine, queue: str, command: str) -> None:
    assert only(engine.explain(submitted(engine, queue))).facts["command"] == command


def test_a_task_of_a_dead_worker_says_that_nobody_is_there_to_requeue_it(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    engine.claim(worker="w", lease_s=3)
    (held,) = engine.explain(id_)
    assert "the worker renews its lease while it runs" in held.message
    clock.advance(4)
    held, missing = engine.explain(id_)
    assert ("its lease has expired" in held.message, missing.code) == (True, "no_worker")
    register(engine)
    assert [reason.code for reason in engine.explain(id_)] == ["assigned"]


def test_a_flow_says_once_that_a_queue_has_no_worker(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y"), TaskSpec("z", queue="mail")])])
    commands = [b.facts["command"] for b in engine.explain(flow.id) if b.code == "no_worker"]
    worker = "onetray worker --app MODULE:APP --queues"
    assert commands == [f"{worker} default", f"{worker} mail"]

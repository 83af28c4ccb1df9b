"""Lists: jobs, members of flows, queues, dead letters, and the parts of ids. They are the same on every database."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine, list_scan
from tests.support.cases import each_case
from tests.support.flows import run_all
from tests.support.tasks import UNKNOWN_ID, in_state, submit, take


def flow_of(engine: Engine, name: str = "report", tasks: int = 2, **fields: Any) -> str:
    stages = [StageSpec("fetch", [TaskSpec("fetch") for _ in range(tasks)]), StageSpec("send", [TaskSpec("send")])]
    return engine.submit_flow(name, stages, **fields).id


def ids(engine: Engine, **wanted: Any) -> list[str]:
    return [job.id for job in engine.jobs(**wanted).jobs]


def test_single_tasks_and_flows_are_one_list_newest_first(engine: Engine) -> None:
    first = submit(engine)
    flow = flow_of(engine)
    last = submit(engine)
    jobs = engine.jobs().jobs
    assert [(j.entity, j.id) for j in jobs] == [("task", last), ("flow", flow), ("task", first)]
    assert (jobs[1].kind, jobs[1].queue, jobs[1].stages, jobs[1].stages_open) == ("report", None, 2, 2)
    assert (jobs[0].kind, jobs[0].queue, jobs[0].attempts, jobs[0].max_attempts) == ("mail", "default", 0, 3)


def test_jobs_are_found_by_state_kind_queue_and_time(engine: Engine, clock: VirtualClock) -> None:
    old = submit(engine)
    clock.advance(7200)
    done = in_state(engine, "succeeded", queue="fast").id
    flow = flow_of(engine)
    assert ids(engine, states=["succeeded"]) == [done]
    assert ids(engine, states=["queued", "pending"]) == [flow, old]
    assert ids(engine, kind="report") == [flow]
    assert ids(engine, kind="mail") == [done, old]
    assert ids(engine, queue="fast") == [done]
    assert ids(engine, since=clock.now() - 3600 * SECOND) == [flow, done]
    assert ids(engine, since=clock.now() + 1) == []
    assert ids(engine, namespace="other") == []


def test_jobs_are_found_by_entity_priority_and_their_latest_time(engine: Engine, clock: VirtualClock) -> None:
    old = submit(engine, priority=5)
    clock.advance(7200)
    new, flow = submit(engine), flow_of(engine, priority=5)
    assert ids(engine, entity="flow") == [flow]
    assert ids(engine, entity="task") == [new, old]
    assert ids(engine, priority=5) == [flow, old]
    assert ids(engine, priority=5, until=clock.now() - 3600 * SECOND) == [old]
    assert [job.priority for job in engine.jobs().jobs] == [5, 0, 5]


def test_jobs_are_counted_by_state(engine: Engine, clock: VirtualClock) -> None:
    in_state(engine, "succeeded", queue="fast")
    clock.advance(10)
    for _ in range(3):
        submit(engine, labels={"a": "b"})
    flow_of(engine)
    assert engine.job_counts() == {"succeeded": 1, "queued": 3, "pending": 1}
    assert engine.job_counts(entity="task", since=clock.now()) == {"queued": 3}
    assert engine.job_counts(labels={"a": "b"}, states=["queued"]) == {"queued": 3}
    assert engine.job_counts(kind="report") == {"pending": 1}
    assert engine.job_counts(namespace="other") == {}


@each_case("wanted", [{"entity": "stage"}, {"priority": 2**31}, {"priority": "1"}, {"until": -1}])
def test_a_bad_filter_of_jobs_is_refused_by_its_name(engine: Engine, wanted: dict[str, Any]) -> None:
    for read in (engine.jobs, engine.job_counts):
        with pytest.raises(InvalidInput) as refused:
            read(**wanted)
        assert refused.value.field in wanted


def test_stages_are_found_across_flows_by_type_state_and_time(engine: Engine, clock: VirtualClock) -> None:
    old = engine.submit_flow("f", [StageSpec(type="t", tasks=[TaskSpec("x")]), StageSpec("u")], sealed=False)
    clock.advance(60)
    new = engine.submit_flow("g", [StageSpec(type="t", tasks=[TaskSpec("x")], metadata={"m": 1})])

    def found(**wanted: Any) -> list[str]:
        return [stage.id for stage in engine.find_stages(**wanted).stages]

    assert found() == [new.stages[0], old.stages[1], old.stages[0]]
    assert found(type="t") == [new.stages[0], old.stages[0]]
    assert found(states=["created"]) == [old.stages[1]]
    assert found(until=clock.now() - 1) == [old.stages[1], old.stages[0]]
    assert found(since=clock.now()) == [new.stages[0]]
    assert found(namespace="other") == []
    assert engine.find_stages(type="t").stages[0].metadata == {"m": 1}
    first = engine.find_stages(limit=2)
    assert [s.id for s in engine.find_stages(before=first.before).stages] == [old.stages[0]]


def test_tasks_are_found_across_jobs_by_kind_stage_type_state_and_time(engine: Engine, clock: VirtualClock) -> None:
    alone = submit(engine)
    flow = engine.submit_flow("f", [StageSpec(type="t", tasks=[TaskSpec("x"), TaskSpec("y")]), StageSpec(type="u")])
    clock.advance(60)
    held = take(engine).id
    late = submit(engine)

    def found(**wanted: Any) -> list[str]:
        return [task.id for task in engine.find_tasks(**wanted).tasks]

    assert found() == [late, *reversed(flow.tasks), alone]
    assert found(stage_type="t") == list(reversed(flow.tasks))
    assert found(stage_type="u") == []
    assert found(kind="x") == [flow.tasks[0]]
    assert found(states=["assigned"]) == [held]
    assert found(since=clock.now()) == [late]
    assert found(until=clock.now() - 1, kind="mail") == [alone]
    pages, before = [], None
    while True:
        page = engine.find_tasks(limit=1, before=before)
        pages += [task.id for task in page.tasks]
        before = page.before
        if before is None:
            break
    assert pages == found()


def test_a_bad_search_is_refused_by_its_name(engine: Engine) -> None:
    for read, wanted in (
        (engine.find_stages, {"type": ""}), (engine.find_stages, {"states": ["queued"]}),
        (engine.find_tasks, {"stage_type": 5}), (engine.find_tasks, {"states": ["created"]}),
        (engine.find_tasks, {"limit": 0}), (engine.find_stages, {"before": -1}),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as refused:
            read(**wanted)
        assert refused.value.field in wanted


def test_jobs_are_found_by_their_correlation(engine: Engine) -> None:
    alone = submit(engine)
    task, flow = submit(engine, correlation_id="order-7"), flow_of(engine, correlation_id="order-7")
    submit(engine, correlation_id="order-8")
    assert ids(engine, correlation_id="order-7") == [flow, task]
    assert ids(engine, correlation_id="order-7", kind="mail") == [task]
    assert ids(engine, correlation_id=alone) == [alone]
    page = engine.jobs(correlation_id="order-7", limit=1)
    assert ids(engine, correlation_id="order-7", before=page.before) == [task]


def test_jobs_are_found_by_all_their_labels(engine: Engine) -> None:
    both = submit(engine, labels={"team": "a", "tier": "1"})
    flow = flow_of(engine, labels={"team": "a"})
    submit(engine, labels={"team": "b", "a": "team"})
    submit(engine, correlation_id="order-7")
    assert ids(engine, labels={"team": "a"}) == [flow, both]
    assert ids(engine, labels={"team": "a", "tier": "1"}) == ids(engine, labels={"tier": "1", "team": "a"}) == [both]
    assert ids(engine, labels={"team": "a"}, kind="report") == [flow]
    assert ids(engine, labels={"team": "a"}, correlation_id="order-7") == ids(engine, labels={"team": "c"}) == []
    first = engine.jobs(labels={"team": "a"}, limit=1)
    assert ids(engine, labels={"team": "a"}, before=first.before) == [both]


def test_pages_go_through_all_jobs_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [submit(engine) if i % 3 else flow_of(engine) for i in range(9)]
    monkeypatch.setattr(list_scan, "SCAN", 4)
    seen, before = [], None
    while True:
        page = engine.jobs(limit=2, before=before)
        seen += [job.id for job in page.jobs]
        before = page.before
        if before is None:
            break
    assert seen == made[::-1]
    monkeypatch.undo()
    assert ids(engine, before=engine.job_key(made[1]), limit=5) == [made[0]]


def test_a_walk_jumps_over_what_was_pruned(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = submit(engine, queue="later")
    for _ in range(10):
        in_state(engine, "succeeded")
    submit(engine)
    clock.advance(2 * 86_400)
    assert engine.prunable(86_400) == (10, 0)
    assert engine.prunable(86_400, namespace="other") == (0, 0)
    assert len(engine.prune(86_400)) == 10
    assert engine.prunable(86_400) == (0, 0)
    monkeypatch.setattr(list_scan, "SCAN", 2)
    first = engine.jobs(limit=5)
    assert ids(engine, before=first.before) == [kept]


def test_a_part_of_an_id_is_enough_when_only_one_has_it(engine: Engine) -> None:
    task = submit(engine)
    flow = flow_of(engine)
    stage = engine.stages(flow)[0].id
    assert engine.locate(task) == ("task", task)
    assert engine.locate(flow[-8:]) == ("flow", flow)
    assert engine.locate(stage[-8:].upper()) == ("stage", stage)
    with pytest.raises(InvalidInput, match="could be any of"):
        engine.locate(task[:6])
    with pytest.raises(NotFound, match="whole id"):
        engine.locate("ffffffff")
    with pytest.raises(NotFound, match="no task"):
        engine.locate(flow, among=("task",))
    with pytest.raises(NotFound):
        engine.locate(UNKNOWN_ID)
    for bad in ("abc", "not-an-id", "'; drop"):
        with pytest.raises(InvalidInput, match="is no id"):
            engine.locate(bad)


def test_members_of_a_flow_come_in_the_order_of_its_stages(engine: Engine) -> None:
    flow = flow_of(engine, tasks=3)
    fetch, send = (s.id for s in engine.stages(flow))
    everyone = engine.members(flow)
    assert [(m.stage, m.kind) for m in everyone] == [("fetch", "fetch")] * 3 + [("send", "send")]
    assert engine.members(flow, limit=2) == everyone[:2]
    assert engine.members(flow, after=everyone[1].id) == everyone[2:]
    assert engine.members(flow, stage=fetch, after=everyone[0].id) == everyone[1:3]
    assert engine.members(flow, stage=send) == everyone[3:]
    engine.fail(take(engine), "no such shop", retryable=False)
    (failed,) = engine.members(flow, states=["failed"])
    assert (failed.id, failed.error["message"]) == (everyone[0].id, "no such shop")
    with pytest.raises(NotFound):
        engine.members(flow, after=UNKNOWN_ID)
    with pytest.raises(NotFound):
        engine.members(flow_of(engine), stage=fetch)


def test_pages_have_numbers_and_a_list_has_a_total(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCAN", "COUNTED_SPAN"):
        monkeypatch.setattr(list_scan, name, 3)
    old = submit(engine, correlation_id="c", labels={"team": "a"})
    clock.advance(2 * 3600)
    flows = [flow_of(engine, tasks=2, correlation_id="c", labels={"team": "a"}) for _ in range(3)]
    made = [*flows[::-1], old]
    submit(engine, "other", namespace="theirs")
    for filters in ({}, {"correlation_id": "c"}, {"labels": {"team": "a"}}):
        pages = [engine.jobs(page=n, limit=3, total=True, **filters) for n in (1, 2, 3)]
        assert [[job.id for job in page.jobs] for page in pages] == [made[:3], made[3:], []]
        assert {page.total for page in pages} == {4}
        assert engine.jobs(limit=1, **filters).total is None
        first = engine.jobs(page=1, limit=3, **filters)
        assert [job.id for job in engine.jobs(before=first.before, **filters).jobs] == [old]
    assert engine.jobs(total=True, since=clock.now() - 1).total == engine.jobs(total=True, entity="flow").total == 3
    tasks = [t.id for n in (1, 2, 3) for t in engine.find_tasks(kind="fetch", page=n, limit=2).tasks]
    assert tasks == [t.id for t in engine.find_tasks(kind="fetch", page=1).tasks]
    assert engine.find_tasks(kind="fetch", total=True, limit=1).total == len(tasks) == 6
    stages = engine.redacted.find_stages(type="send", page=2, limit=2, total=True)
    assert ([s.flow_id for s in stages.stages], stages.total) == ([flows[0]], 3)
    monkeypatch.setattr(list_scan, "MAX_TOTAL", 2)
    assert engine.jobs(total=True).total == 2, "counting stops"


def test_a_queue_tells_what_is_ready_delayed_and_held(engine: Engine, clock: VirtualClock) -> None:
    submitted_at = clock.now()
    for _ in range(3):
        submit(engine)
    submit(engine, delay_s=60)
    submit(engine, queue="fast")
    take(engine)
    engine.pause_queue("fast", by="ann")
    clock.advance(5)
    default, fast = engine.queues()
    assert (default.name, default.ready, default.delayed, default.held) == ("default", 2, 1, 1)
    assert (default.oldest_ready_at, default.paused_by) == (submitted_at, None)
    assert (fast.name, fast.ready, fast.paused_by, fast.paused_at) == ("fast", 1, "ann", submitted_at)
    assert engine.queues(namespace="other") == []


def test_dead_letters_that_say_the_same_are_one_group(engine: Engine, clock: VirtualClock) -> None:
    for kind, message in (("mail", "mailbox full"), ("mail", "mailbox full"), ("sync", "shop is closed")):
        engine.configure(kind, Policy(max_attempts=1))
        submit(engine, kind)
        engine.fail(take(engine), message, error_class="HTTP 503")
        clock.advance(1)
    mail, sync = engine.dead_groups()
    assert (mail.kind, mail.reason_code, mail.error_class) == ("mail", "exhausted_retries", "HTTP 503")
    assert (mail.message, mail.count, mail.newest_at - mail.oldest_at) == ("mailbox full", 2, SECOND)
    assert (sync.kind, sync.count) == ("sync", 1)
    assert [g.kind for g in engine.dead_groups(kind="sync")] == ["sync"]
    assert [g.kind for g in engine.dead_groups(error="503: shop")] == ["sync"]
    assert engine.dead_groups(reason="parse_error") == engine.dead_groups(error="%") == []
    lines = engine.dead_lines(kind="mail")
    assert [(line.message, line.flow_id) for line in lines] == [("mailbox full", None)] * 2
    assert engine.dead_lines(kind="mail", after=lines[0].key) == lines[1:]


def test_what_was_redriven_is_left_out_unless_it_is_asked_for(engine: Engine) -> None:
    letter = in_state(engine, "dead_lettered").id
    new = engine.redrive(letter).id
    assert engine.dead_groups() == engine.dead_lines() == []
    assert [g.redriven for g in engine.dead_groups(redriven=True)] == [1]
    assert [line.successor_id for line in engine.dead_lines(redriven=True)] == [new]


def test_a_letter_of_a_flow_names_it_and_says_whether_it_ended(engine: Engine) -> None:
    engine.configure("fetch", Policy(max_attempts=1))
    flow = flow_of(engine, tasks=1, roll_up="drain")
    engine.fail(take(engine), "no")
    run_all(engine)
    (line,) = engine.dead_lines()
    assert (line.flow_id, line.flow_finished_at) == (flow, engine.flow(flow).finished_at)


@each_case(
    ("read", "wrong"),
    [
        ("jobs", {"limit": 0}),
        ("jobs", {"limit": 10_001}),
        ("jobs", {"states": ["done"]}),
        ("jobs", {"before": -1}),
        ("jobs", {"page": 0}),
        ("jobs", {"page": 2, "before": 9}),
        ("find_tasks", {"page": True}),
        ("find_stages", {"page": 1_000_001}),
        ("jobs", {"since": "yesterday"}),
        ("jobs", {"kind": ""}),
        ("jobs", {"labels": ["team"]}),
        ("jobs", {"labels": {"team": 5}}),
        ("jobs", {"labels": {str(n): "a" for n in range(21)}}),
        ("jobs", {"correlation_id": "\0"}),
        ("queues", {"limit": -1}),
        ("dead_groups", {"reason": "bad luck"}),
        ("dead_lines", {"error": "x" * 3_000}),
        ("dead_lines", {"after": True}),
        ("locate", {"part": "abcdef", "among": ["parcel"]}),
        ("prunable", {"older_than_s": -1}),
    ],
)
def test_a_wrong_filter_is_refused_by_its_name(shared_engine: Engine, read: str, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        getattr(shared_engine, read)(**wrong)

"""Flows in Python: stages from functions, what they are given, and how they fan out."""

from typing import Any

import pytest
from pydantic import BaseModel

from onetray import Engine, InvalidInput, Job, JobFailed, Onetray, PermanentError, ctx
from onetray.domain.commands import Succeed, ticket
from onetray.testing import Harness
from tests.support.waits import yield_once


class Config(BaseModel, extra="forbid"):
    names: list[str] = ["ann", "bob"]
    publish: bool = True


class Card(BaseModel):
    name: str
    length: int = 0


def test_a_flow_hands_on_typed_values(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("cards", config=Config)

    @flow.stage
    def fetch(config: Config) -> list[Card]:
        return [Card(name=name) for name in config.names]

    @flow.stage(each=fetch)
    async def measure(item: Card, config: Config) -> Card:
        assert isinstance(config, Config)
        await yield_once()
        return item.model_copy(update={"length": len(item.name)})

    @flow.stage
    def total(measure: list[Card], fetch: list[Card]) -> int:
        assert len(fetch) == len(measure)
        return sum(card.length for card in measure)

    job = flow.submit(Config(names=["ann", "barbara"]))
    anywhere.drain()
    assert job.result(0)["total"] == 10
    assert job.view().data == {"names": ["ann", "barbara"], "publish": True}
    assert app.job(job.id).progress().percentage == 100


def test_a_flow_runs_in_a_worker(app: Onetray, engine: Engine) -> None:
    app.use(engine)
    flow = app.flow("squares")

    @flow.stage
    def numbers() -> list[int]:
        return list(range(20))

    @flow.stage(each=numbers)
    async def square(item: int) -> int:
        return item * item

    @flow.stage
    def total(square: list[int]) -> int:
        return sum(square)

    with app.worker(concurrency=8):
        assert flow.submit().result(30)["total"] == sum(n * n for n in range(20))


@pytest.mark.parametrize(
    "each",
    [["ann", "bob"], iter(["ann", "bob"]), lambda config: config.names, lambda config: iter(config.names)],
    ids=["list", "iterator", "function", "function-iterator"],
)
def test_a_stage_is_fanned_out_over_what_is_known_at_the_submit(app: Onetray, harness: Harness, each: Any) -> None:
    flow = app.flow("greet", config=Config)

    @flow.stage(each=each)
    def greet(item: str) -> str:
        return f"hello {item}"

    for _ in range(2):
        job = flow.submit()
        harness.drain()
        assert job.result(0) == {"greet": ["hello ann", "hello bob"]}


@pytest.mark.parametrize("each", [[], lambda config: [], "names"], ids=["list", "function", "stage"])
def test_a_stage_over_nothing_is_skipped(app: Onetray, anywhere: Harness, each: Any) -> None:
    flow = app.flow("greet")

    @flow.stage
    def names() -> list[str]:
        return []

    @flow.stage(each=each)
    def greet(item: str) -> str:
        return item

    @flow.stage
    def count(greet: list[str]) -> int:
        return len(greet)

    job = flow.submit()
    anywhere.drain()
    assert job.result(0)["count"] == 0
    assert {s.name: s.state for s in anywhere.engine.stages(job.id)}["greet"] == "skipped"


def test_a_fan_out_over_a_fan_out_has_a_task_for_each_result(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("chain")

    @flow.stage
    def numbers() -> list[int]:
        return [1, 2, 3]

    @flow.stage(each=numbers)
    def double(item: int) -> int:
        return 2 * item

    @flow.stage(each=double)
    def describe(item: int) -> str:
        return f"<{item}>"

    job = flow.submit()
    anywhere.drain()
    assert job.result(0)["describe"] == ["<2>", "<4>", "<6>"]


def test_two_stages_fan_out_over_the_same_one(app: Onetray, harness: Harness) -> None:
    flow = app.flow("twice")
    flow.stage(name="numbers")(lambda: [1, 2])
    flow.stage(name="up", each="numbers")(lambda item: item + 1)
    flow.stage(name="down", each="numbers")(lambda item: item - 1)
    job = flow.submit()
    harness.drain()
    assert job.result(0) == {"numbers": [1, 2], "up": [2, 3], "down": [0, 1]}


def test_more_results_than_a_stage_collects_are_handed_on_all_the_same(app: Onetray, harness: Harness) -> None:
    flow = app.flow("many")
    flow.stage(name="each_one", each=range(1_500))(lambda item: item)

    @flow.stage(when=lambda each_one: len(each_one) == 1_500)
    def total(each_one: list[int]) -> int:
        assert len(each_one) == 1_500
        return sum(each_one)

    job = flow.submit()
    # By hand: the way from a claim to a report is another test's.
    while held := harness.engine.claim(worker="w1", limit=500, kinds=("many.each_one",)):
        harness.engine.run([Succeed(result=task.payload["item"], **ticket(task)) for task in held])
    harness.drain()
    assert job.result(0) == {"each_one": list(range(1_500)), "total": sum(range(1_500))}


# Conditions, approvals, compensation.


@pytest.mark.parametrize("publish", [True, False])
def test_a_condition_sees_the_config(app: Onetray, anywhere: Harness, publish: bool) -> None:
    flow = app.flow("news", config=Config)
    flow.stage(name="write")(lambda: "text")

    @flow.stage(when=lambda config: config.publish)
    def publish_it(write: str) -> str:
        return write.upper()

    job = flow.submit({"publish": publish})
    anywhere.drain()
    assert job.result(0) == {"write": "text", "publish_it": "TEXT" if publish else None}
    assert job.state == "succeeded"


@pytest.mark.parametrize(
    "when",
    [
        lambda score: score > 5,
        lambda results: results["score"] > 5,
        lambda config, score: score > 5 and config.publish,
        lambda score, least=5: score > least,
    ],
    ids=["by-name", "all", "with-config", "with-default"],
)
def test_a_condition_sees_the_results_so_far(app: Onetray, harness: Harness, when: Any) -> None:
    flow = app.flow("quality", config=Config)
    given = [7, 3]
    flow.stage(name="score")(lambda: given.pop(0))
    flow.stage(name="praise", when=when)(lambda: "well done")
    good, poor = flow.submit(), flow.submit()
    harness.drain()
    assert good.result(0) == {"score": 7, "praise": "well done"}
    assert poor.result(0) == {"score": 3, "praise": None}


def test_a_condition_that_raises_fails_its_stage(app: Onetray, harness: Harness) -> None:
    flow = app.flow("odd", config=Config)

    def when(config: Config) -> bool:
        raise PermanentError("cannot tell")

    flow.stage(name="only", when=when)(lambda: 1)
    job = flow.submit()
    harness.drain()
    with pytest.raises(JobFailed, match="is failed"):
        job.result(0)


def test_a_failed_flow_says_which_task_of_which_stage_failed_and_why(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("news")
    fetch = flow.stage(name="fetch")(lambda: [1, 2])

    @flow.stage(each=fetch)
    def parse(item: int) -> int:
        if item == 2:
            raise PermanentError("not a feed")
        return item

    flow.stage(name="publish")(lambda parse: parse)
    job = flow.submit()
    anywhere.drain()
    with pytest.raises(JobFailed) as raised:
        job.result(0)
    why = raised.value
    failed = [
        task for task in anywhere.engine.stage_tasks(job_stages(anywhere, job)["parse"]) if task.state == "failed"
    ]
    assert (why.job, why.state, why.stage, why.task) == (job.id, "failed", "parse", failed[0].id)
    assert (why.error_class, why.error_message) == ("PermanentError", "not a feed")
    assert str(why).startswith(f"job {job.id} is failed: task ")
    assert str(why).endswith(" of stage 'parse': PermanentError: not a feed")
    assert why.error == {"message": "1 of 3 stages failed"}
    assert f"onetray jobs retry {job.id}" in job.explain()[0].message


def test_a_rejected_flow_says_who_rejected_it(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("gate")
    flow.stage(name="pay", approve="ann")(lambda: 1)
    job = flow.submit()
    anywhere.engine.reject_stage(job_stages(anywhere, job)["pay"], actor_name="ann", note="too much")
    with pytest.raises(JobFailed, match=r"is failed: stage 'pay': rejected by user:ann: too much") as raised:
        job.result(0)
    assert (raised.value.stage, raised.value.task, raised.value.error_class) == ("pay", None, None)


def test_a_flow_that_missed_its_deadline_says_so(app: Onetray, harness: Harness) -> None:
    flow = app.flow("slow", deadline_s=5)
    flow.stage(name="only")(lambda: 1)
    job = flow.submit()
    harness.advance(6)
    with pytest.raises(JobFailed, match=r"is failed: .*deadline") as raised:
        job.result(0)
    assert (raised.value.stage, raised.value.task) == (None, None)


def job_stages(harness: Harness, job: Job[Any]) -> dict[str, str]:
    return {stage.name: stage.id for stage in harness.engine.stages(job.id)}


def test_an_approval_reaches_the_function(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("pay")
    flow.stage(name="offer")(lambda: 100)

    @flow.stage(approve="ann")
    def pay(offer: int, approval: dict[str, Any]) -> list[Any]:
        return [offer, approval["input"], approval["by"]]

    job = flow.submit()
    assert anywhere.drain() == 1
    anywhere.assert_state(job, "waiting")
    assert job.explain()[0].held_by == "ann"
    anywhere.approve(job, "pay", input={"limit": 50}, by="ann")
    anywhere.drain()
    assert job.result(0)["pay"] == [100, {"limit": 50}, "user:ann"]


def test_what_was_done_is_undone_when_a_later_stage_fails(app: Onetray, anywhere: Harness) -> None:
    undone = []
    flow = app.flow("trip", config=Config)

    def cancel_seat(result: str, config: Config) -> None:
        undone.append((result, config.names))

    @flow.stage(compensate=cancel_seat)
    def book() -> str:
        return "seat 4"

    @flow.stage(compensate=lambda result: undone.append(result))
    def insure() -> str:
        return "policy 9"

    @flow.stage
    def pay() -> None:
        raise PermanentError("no money")

    job = flow.submit()
    anywhere.drain()
    anywhere.assert_state(job, "failed")
    assert undone == ["policy 9", ("seat 4", ["ann", "bob"])]


@pytest.mark.parametrize(
    ("roll_up", "on_failure", "state"),
    [("strict", "stop", "failed"), ("mixed", "continue", "partial"), ("drain", "ignore", "succeeded")],
)
def test_a_failure_is_treated_as_the_stage_says(
    app: Onetray, harness: Harness, roll_up: str, on_failure: str, state: str
) -> None:
    flow = app.flow("some", roll_up=roll_up)

    @flow.stage(each=[1, 2], on_failure=on_failure)
    def half(item: int) -> int:
        if item == 2:
            raise PermanentError("not this one")
        return item

    flow.stage(name="last")(lambda: "there")
    job = flow.submit()
    harness.drain()
    harness.assert_state(job, state)
    assert job.results()["last"] == (None if on_failure == "stop" else "there")


def test_a_flow_is_retried_from_the_stage_that_failed(app: Onetray, anywhere: Harness) -> None:
    ran = []
    flow = app.flow("again")
    flow.stage(name="first")(lambda: ran.append("first") or 1)

    @flow.stage
    def second(first: int) -> int:
        ran.append("second")
        if ran.count("second") == 1:
            raise PermanentError("once")
        return first + 1

    job = flow.submit()
    anywhere.drain()
    again = job.retry()
    anywhere.drain()
    assert again.result(0) == {"first": 1, "second": 2}
    assert ran == ["first", "second", "second"]


def test_a_stage_says_more_than_its_result(app: Onetray, harness: Harness) -> None:
    flow = app.flow("measured", roll_up="mixed")

    @flow.stage
    def fetch() -> int:
        ctx.say(partial=True, errors=["one feed was away"], metrics={"feeds": 2})
        return 1

    job = flow.submit()
    harness.drain()
    harness.assert_state(job, "partial")
    assert job.result(0) == {"fetch": 1}


def test_keys_and_labels_hold_for_flows(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("one")
    flow.stage(name="only")(lambda: 1)
    first = flow.submit(unique_key="u", labels={"team": "sales"})
    assert flow.submit(unique_key="u").id == first.id
    assert first.view().labels == {"team": "sales"}
    assert flow.submit(idempotency_key="k").id == flow.submit(idempotency_key="k").id


# What is refused.


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"names": 3}, "names: Input should be a valid list"),
        ({"nmes": []}, "nmes: Extra inputs are not permitted"),
        ([1], "Input should be a valid dictionary"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_at_the_submit(
    app: Onetray, harness: Harness, config: Any, told: str
) -> None:
    flow = app.flow("news", config=Config)
    flow.stage(name="only")(lambda: 1)
    with pytest.raises(InvalidInput, match=rf"the config of flow news: .*{told}"):
        flow.submit(config)
    assert harness.engine.flows() == []


def test_an_unknown_option_of_a_flow_is_refused(app: Onetray, harness: Harness) -> None:
    flow = app.flow("one")
    flow.stage(name="only")(lambda: 1)
    with pytest.raises(InvalidInput, match="prio"):
        flow.submit(prio=3)


def test_an_item_that_does_not_fit_is_refused_at_the_submit(app: Onetray, harness: Harness) -> None:
    flow = app.flow("greet", config=Config)

    @flow.stage(each=lambda config: [1, "two"])
    def count(item: int) -> None: ...

    with pytest.raises(InvalidInput, match="item: Input should be a valid integer"):
        flow.submit()


@pytest.mark.parametrize("items", [3, None, "ann", {"ann": 1}], ids=["number", "nothing", "text", "dict"])
def test_what_is_no_list_is_not_fanned_out_over(app: Onetray, harness: Harness, items: Any) -> None:
    at_the_submit, at_the_end = app.flow("early", config=Config), app.flow("late")
    at_the_submit.stage(name="greet", each=lambda config: items)(lambda item: item)
    with pytest.raises(InvalidInput, match="greet: each must be a list"):
        at_the_submit.submit()

    at_the_end.stage(name="names", retries=3)(lambda: items)
    at_the_end.stage(name="greet", each="names")(lambda item: item)
    job = at_the_end.submit()
    assert harness.drain() == 1
    harness.assert_state(job, "failed")
    [task] = harness.engine.stage_tasks(harness.engine.stages(job.id)[0].id)
    assert task.error["message"] == "names must return a list: greet fans out over it"


def test_a_result_that_does_not_fit_the_next_stage_fails_its_own(app: Onetray, harness: Harness) -> None:
    flow = app.flow("greet")
    flow.stage(name="names", retries=3)(lambda: ["ann"])

    @flow.stage(each="names")
    def count(item: int) -> None: ...

    job = flow.submit()
    assert harness.drain() == 1
    harness.assert_state(job, "failed")


def test_a_stage_over_a_skipped_one_is_skipped(app: Onetray, harness: Harness) -> None:
    flow = app.flow("greet", config=Config)
    flow.stage(name="names", when=lambda config: not config.publish)(lambda: ["ann"])
    flow.stage(name="greet", each="names")(lambda item: item)

    @flow.stage
    def count(names: list[str] | None, greet: list[str]) -> list[Any]:
        return [names, greet]

    job = flow.submit()
    harness.drain()
    assert job.result(0) == {"names": None, "greet": None, "count": [None, []]}


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"name": "config"}, "the stage name 'config' is reserved"),
        ({"name": "first"}, "the stage name 'first' is reserved"),
        ({"each": "frist"}, "no earlier stage 'frist'"),
        ({"each": 3}, "second: each must be a list, an earlier stage, or a function .* not 3"),
        ({"on_failure": "shrug"}, "on_failure must be one of stop, continue, ignore"),
        ({"wen": 1}, "unknown setting 'wen'"),
        ({"when": lambda moon: True}, "no value for the parameter 'moon'; available: config, first, results"),
        ({"compensate": lambda first: True}, "no value for the parameter 'first'; available: config, result"),
    ],
)
def test_a_wrong_stage_is_refused_where_it_is_declared(app: Onetray, rules: dict[str, Any], told: str) -> None:
    flow = app.flow("odd")
    flow.stage(name="first")(lambda: 1)
    with pytest.raises(InvalidInput, match=told):
        flow.stage(**{"name": "second", **rules})(lambda: 2)
    assert list(flow.stages) == ["first"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("fetch.token", "the result of 'fetch' is redacted on that stage"),
        ("fetch", "the result of 'fetch' is redacted on that stage"),
        ("approval.pin", "approval.input.pin"),
        ("a..b", "policy.redact"),
    ],
)
def test_a_path_that_would_hide_nothing_of_a_stage_is_refused_where_it_is_declared(
    app: Onetray, path: str, told: str
) -> None:
    flow = app.flow("f", redact=["secret"])
    flow.stage(name="fetch")(lambda: None)
    with pytest.raises(InvalidInput, match=told):
        flow.stage(name="use", redact=[path])(lambda fetch: None)
    with pytest.raises(InvalidInput, match="redact"):
        app.flow("g", redact=[""])


def test_what_a_flow_redacts_is_declared_for_its_name_and_for_all_its_tasks(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("cards", redact=["secret"])

    @flow.stage(redact=["config.also", "item.pin", "approval.input.code"], approve="ann")
    def first(config: dict[str, str], approval: dict[str, Any]) -> str:
        return config["secret"] + approval["input"]["code"]

    assert app.policies["cards"].redact == ("secret",)
    assert app.policies["cards.first"].redact == ("secret", "config.also", "item.pin", "approval.input.code")
    job = flow.submit({"secret": "one-secret", "also": "x", "open": "seen"})
    anywhere.approve(job, "first", input={"code": "-two"})
    anywhere.drain()
    assert job.result(0) == {"first": "one-secret-two"}
    engine = anywhere.engine
    assert engine.redacted.flow(job.id).data == {"secret": "***", "also": "***", "open": "seen"}
    (stage,) = engine.redacted.stages(job.id)
    assert (stage.answer["input"], stage.result) == ({"code": "***"}, "******")


def test_the_deadline_of_a_flow_is_that_of_the_whole_and_the_deadline_of_a_stage_that_of_its_tasks(
    app: Onetray, anywhere: Harness
) -> None:
    flow = app.flow("slow", deadline_s=7200, idempotency_ttl_s=60)
    flow.stage(name="first", deadline_s=10_000)(lambda: 1)
    flow.stage(name="second", approve="ann")(lambda: 2)
    assert [flow.stages[name].task.policy.deadline_s for name in flow.stages] == [10_000, None]
    assert app.policies["slow"].idempotency_ttl_s == 60
    job, patient = flow.submit(), flow.submit(deadline_s=8000)
    anywhere.drain()
    anywhere.advance(7201)
    assert (job.state, patient.state) == ("failed", "waiting")
    assert "timed out or was orphaned" in job.view().error["message"]
    anywhere.advance(800)
    assert patient.state == "failed"
    with pytest.raises(InvalidInput, match="deadline_s"):
        app.flow("never", deadline_s=-1)


def test_a_condition_and_a_compensation_are_retried_as_their_stage(app: Onetray, anywhere: Harness) -> None:
    flow, tried = app.flow("stubborn", max_attempts=2, lease_s=9), {"when": 0, "undo": 0}

    def flaky(what: str) -> bool:
        tried[what] += 1
        if tried[what] < 4:
            raise RuntimeError("not yet")
        return True

    rules = {"retries": 3, "backoff_base_s": 1, "jitter": False, "timeout_s": 5, "deadline_s": 900, "lease_s": 3}
    when, undo = lambda: flaky("when"), lambda result: flaky("undo")
    flow.stage(name="only", when=when, compensate=undo, **rules)(lambda: 1)
    flow.stage(name="last")(lambda: int("no number"))
    for kind in ("stubborn.only.when", "stubborn.only.undo"):
        policy = app.policies[kind]
        assert (policy.max_attempts, policy.backoff_base_s, policy.timeout_s) == (4, 1, 5)
        assert (policy.deadline_s, policy.lease_s) == (None, 9)
    assert app.policies["stubborn.last"].max_attempts == 2
    job = flow.submit()
    for _ in range(20):
        anywhere.drain()
        anywhere.advance(10)
    assert (job.state, tried) == ("failed", {"when": 4, "undo": 4})


def test_a_parameter_that_is_no_earlier_stage_is_refused(app: Onetray) -> None:
    flow = app.flow("odd")
    with pytest.raises(InvalidInput, match=r"no value for the parameter 'later'; available: approval, config$"):

        @flow.stage
        def early(later: int) -> None: ...

    assert (flow.stages, app.tasks) == ({}, {})


def test_a_parameter_with_a_default_is_left_to_it(app: Onetray, harness: Harness) -> None:
    flow = app.flow("odd")

    @flow.stage
    def early(limit: int = 5) -> int:
        return limit

    job = flow.submit()
    harness.drain()
    assert job.result(0) == {"early": 5}


def test_two_flows_of_one_name_and_a_flow_of_no_stages_are_refused(app: Onetray, harness: Harness) -> None:
    flow = app.flow("one")
    with pytest.raises(InvalidInput, match="the flow 'one' is declared twice"):
        app.flow("one")
    with pytest.raises(InvalidInput, match="has no stages"):
        flow.submit()


def test_a_stage_of_another_flow_is_refused(app: Onetray) -> None:
    stage = app.flow("one").stage(name="first")(lambda: [1])
    with pytest.raises(InvalidInput, match="'first' is a stage of another flow"):
        app.flow("two").stage(name="second", each=stage)(lambda item: item)


def test_called_as_a_function_a_stage_just_runs(app: Onetray) -> None:
    flow = app.flow("one")

    @flow.stage
    def double(config: int) -> int:
        return 2 * config

    assert double(4) == 8

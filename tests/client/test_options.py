"""What a submit may say besides the arguments."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from onetray import InvalidInput, KeyReused, Onetray, Task, TooLarge
from onetray.app.tasks import Options
from onetray.config import EngineConfig, Limits
from onetray.domain.clock import SECOND
from onetray.testing import Harness

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def send(app: Onetray):
    @app.task
    def send(to: str = "ann") -> str:
        return to

    return send


def view(job) -> Task:
    found = job.view()
    assert isinstance(found, Task)
    return found


def test_each_option_reaches_the_task(send, anywhere: Harness) -> None:
    job = send.options(
        queue="mail", priority=7, max_attempts=9, labels={"team": "sales"}, correlation_id="order-1", trace=TRACE,
        cause="a click", unique_key="u", idempotency_key="k", metadata={"m": 1}, tracestate="a=1", alias="order/17",
    ).submit()  # fmt: skip
    task = view(job)
    assert (task.queue, task.priority, task.max_attempts, task.labels) == ("mail", 7, 9, {"team": "sales"})
    assert (task.correlation_id, task.trace, task.tracestate) == ("order-1", TRACE, "a=1")
    assert (task.metadata, task.alias) == ({"m": 1}, "order/17")
    [submitted] = job.events()
    assert submitted.cause == "a click"


def test_a_delay_holds_the_task(send, anywhere: Harness) -> None:
    job = send.options(delay_s=60).submit()
    assert anywhere.drain() == 0
    assert job.explain()
    anywhere.advance(60)
    assert anywhere.drain() == 1


def test_a_time_to_run_at_may_be_a_datetime_of_any_zone(send, harness: Harness) -> None:
    now = datetime.fromtimestamp(harness.clock.now() / SECOND, UTC)
    at = (now + timedelta(minutes=1)).astimezone()
    assert view(send.options(run_at=at).submit()).run_at == harness.clock.now() + 60 * SECOND
    assert view(send.options(run_at=harness.clock.now() + 5).submit()).run_at == harness.clock.now() + 5


def test_a_time_without_a_zone_is_refused(send, harness: Harness) -> None:
    with pytest.raises(InvalidInput, match="has no time zone"):
        send.options(run_at=datetime(2030, 1, 1)).submit()


def test_an_idempotency_key_makes_one_job(send, anywhere: Harness) -> None:
    once = send.options(idempotency_key="k")
    first, again = once.submit(to="ann"), once.submit(to="ann")
    assert (first.id, first.repeated, again.repeated) == (again.id, False, True)
    with pytest.raises(KeyReused):
        once.submit(to="bob")


def test_a_unique_key_makes_one_job_at_a_time(send, anywhere: Harness) -> None:
    one = send.options(unique_key="u")
    first, again = one.submit(to="ann"), one.submit(to="bob")
    assert (first.id, again.repeated) == (again.id, True)
    anywhere.drain()
    assert not one.submit(to="bob").repeated


def test_options_add_up_and_leave_the_task_as_it_was(send, harness: Harness) -> None:
    assert view(send.options(priority=1).options(queue="q").options(priority=2).submit()).priority == 2
    assert (view(send.submit()).priority, view(send.submit()).queue) == (0, "default")


def test_an_unknown_option_is_refused_with_the_nearest_or_all(send, app: Onetray) -> None:
    with pytest.raises(InvalidInput, match=r"unknown option 'prio': did you mean 'priority'\?") as raised:
        send.options(prio=1)
    assert raised.value.field == "prio"
    with pytest.raises(InvalidInput, match="unknown option 'nonsense'; options of a task: queue, priority, delay_s"):
        app.submit("send", {}, nonsense=1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue", ""), ("priority", "high"), ("delay_s", -1), ("run_at", "soon"), ("max_attempts", 0),
        ("idempotency_key", ""), ("unique_key", 3), ("labels", {"a": 1}), ("correlation_id", "x" * 501),
        ("trace", "nonsense"), ("cause", 4), ("alias", "a\nb"), ("debounce_s", 0), ("throttle_s", "1"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_and_named(send, harness: Harness, option: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=option) as raised:
        send.options(**{option: value}).submit()
    assert raised.value.field.startswith(option)
    assert harness.engine.tasks() == []


def test_every_option_is_tried_here() -> None:
    tried = {"queue", "priority", "delay_s", "run_at", "max_attempts", "idempotency_key", "unique_key", "labels"}
    assert set(Options.__annotations__) == tried | {
        "correlation_id", "trace", "tracestate", "metadata", "cause", "connection", "alias",
        "debounce_s", "debounce_key", "debounce_max_s", "throttle_s", "throttle_key",
    }  # fmt: skip


# Many at once.


@pytest.mark.parametrize("n", [0, 1, 3])
def test_many_are_submitted_in_their_order(send, anywhere: Harness, n: int) -> None:
    jobs = send.submit_many({"to": str(i)} for i in range(n))
    assert anywhere.drain() == n
    assert [job.result(0) for job in jobs] == [str(i) for i in range(n)]


def test_more_than_one_batch_is_submitted(app: Onetray, harness: Harness) -> None:
    @app.task
    def small() -> None: ...

    jobs = small.submit_many([{}] * 10_001)
    assert len({job.id for job in jobs}) == 10_001
    assert app.job(jobs[-1].id).state == "queued"


def test_of_many_none_is_submitted_when_one_does_not_fit(send, harness: Harness) -> None:
    with pytest.raises(InvalidInput, match="to: Input should be a valid string"):
        send.submit_many([{"to": "ann"}, {"to": 3}])
    with pytest.raises(InvalidInput, match="each call must be a dict of arguments, not str"):
        send.submit_many(["ann"])
    assert harness.engine.tasks() == []


def test_many_without_anything_of_their_own_are_one_command(send, harness: Harness, monkeypatch) -> None:
    run, seen = harness.engine.run, []
    monkeypatch.setattr(harness.engine, "run", lambda commands, **how: seen.extend(commands) or run(commands, **how))
    send.submit_many([{"to": "ann"}, {"to": "bob"}])
    send.options(labels={"a": "b"}).submit_many([{"to": "ann"}, {"to": "bob"}])
    assert [type(command).__name__ for command in seen] == ["SubmitMany", "Submit", "Submit"]


def test_of_many_only_those_past_a_limit_are_refused(app: Onetray, anywhere: Harness) -> None:
    @app.task
    def keep(text: str) -> None: ...

    with pytest.raises(TooLarge, match="payload has 1000015 bytes"):
        keep.submit_many([{"text": "a"}, {"text": "b" * 1_000_004}, {"text": "c\0"}, {"text": "d"}])
    assert [task.payload["text"] for task in anywhere.engine.tasks()] == ["d", "a"]


def test_arguments_of_many_are_kept_as_those_of_one(app: Onetray, anywhere: Harness) -> None:
    @app.task
    def rich(at: datetime, rate: float = 1.0, tags: set[str] | None = None, more: Any = None) -> None: ...

    calls: list[dict[str, Any]] = [
        {"at": datetime(2026, 1, 2, tzinfo=UTC)},
        {"at": "2026-01-02T00:00:00Z", "rate": 2, "tags": {"a"}, "more": (1, None, "x")},
        MappingProxyType({"at": datetime(2026, 1, 2, tzinfo=UTC), "more": Path("/tmp")}),
    ]
    for some in (calls[:2], calls):
        many = [job.view().payload for job in rich.submit_many(some)]
        assert many == [rich.submit(**call).view().payload for call in some]


@pytest.mark.parametrize("bad", [float("nan"), [1.0, float("-inf")]])
def test_of_many_none_is_submitted_when_one_is_not_a_number(app: Onetray, harness: Harness, bad: object) -> None:
    @app.task
    def loose(value) -> None: ...

    with pytest.raises(InvalidInput, match="JSON has no NaN and no Infinity"):
        loose.submit_many([{"value": 1}, {"value": bad}])
    assert harness.engine.tasks() == []


@pytest.mark.parametrize("config", [EngineConfig(bulk=3), EngineConfig(limits=Limits(batch=3))])
def test_many_go_into_as_many_transactions_as_the_engine_is_told(
    app: Onetray, database_url: str, config: EngineConfig
) -> None:
    app._config = config

    @app.task
    def small(n: int) -> None: ...

    with Harness(app, database=database_url) as harness:
        jobs = small.submit_many({"n": n} for n in range(8))
        assert [job.view().payload for job in jobs] == [{"n": n} for n in range(8)]
        assert harness.drain() == 8


def test_a_setting_of_the_task_among_the_options_is_named(send) -> None:
    with pytest.raises(InvalidInput, match=r"it is a setting of the task: @app\.task\(timeout_s=…\)"):
        send.options(timeout_s=3)
    with pytest.raises(InvalidInput, match="unknown option 'eta': use 'run_at'"):
        send.options(eta=3)

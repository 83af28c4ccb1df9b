"""Policies: what a kind asks for, and that a task keeps what it was submitted under."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.tasks import counts, running, state, submit, take


def test_a_task_keeps_the_policy_that_it_was_submitted_under(engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=1, lease_s=10))
    old = submit(engine)
    engine.configure("mail", Policy(max_attempts=5, lease_s=99))
    new = submit(engine)
    assert [engine.task(i).policy.max_attempts for i in (old, new)] == [1, 5]
    first, second = running(engine), running(engine)
    assert [first.lease_s, second.lease_s] == [10, 99]
    engine.fail(first, "no")
    engine.fail(second, "no")
    assert [state(engine, i) for i in (old, new)] == ["dead_lettered", "queued"]


def test_a_submit_may_bring_its_own_policy(engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=5))
    own = submit(engine, policy=Policy(max_attempts=2, on_exhaustion="fail"))
    plain = submit(engine)
    assert engine.task(own).policy == Policy(max_attempts=2, on_exhaustion="fail")
    assert engine.task(plain).policy == Policy(max_attempts=5)


def test_max_attempts_of_a_submit_is_part_of_its_policy(engine: Engine) -> None:
    id_ = submit(engine, max_attempts=7)
    task = engine.task(id_)
    assert (task.max_attempts, task.policy) == (7, Policy(max_attempts=7))


def test_a_kind_that_was_never_configured_has_the_defaults(engine: Engine) -> None:
    assert engine.task(submit(engine)).policy == Policy()


def test_policies_of_namespaces_are_apart(engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=9), namespace="a")
    assert engine.task(submit(engine, namespace="a"), namespace="a").max_attempts == 9
    assert engine.task(submit(engine)).max_attempts == 3


def test_the_same_policy_is_stored_once(engine: Engine) -> None:
    for kind in ("a", "b", "c"):
        engine.configure(kind, Policy(max_attempts=9))
        submit(engine, kind, policy=Policy(max_attempts=9))
    assert counts(engine)["policy"] == 2


def test_another_engine_learns_a_new_policy_at_once_when_it_asks_each_time(
    engine: Engine, database_url: str, clock: VirtualClock
) -> None:
    from onetray.config import EngineConfig

    with engine_on(database_url, clock, config=EngineConfig(names_ttl_s=-1)) as second:
        submit(second)
        engine.configure("mail", Policy(max_attempts=9))
        assert second.task(submit(second)).max_attempts == 9


def test_a_policy_survives_the_database(engine: Engine) -> None:
    policy = Policy(
        max_attempts=4, backoff_base_s=1.5, backoff_factor=3, backoff_max_s=9, jitter=False, retry_on=("A", "b.C"),
        no_retry_on=("D",), lease_s=33, heartbeat_s=20, timeout_s=5, queue_ttl_s=6, deadline_s=7, cancel_grace_s=0,
        on_exhaustion="fail", record_heartbeats=True, durable_start=True, idempotency_ttl_s=8,
        breaker_failures=3, breaker_window_s=2.5, breaker_open_s=4,
    )  # fmt: skip
    engine.configure("mail", policy)
    id_ = submit(engine)
    assert engine.task(id_).policy == policy
    assert take(engine).policy == policy


def test_a_policy_of_a_newer_version_is_read_by_what_is_known() -> None:
    body = Policy(max_attempts=4).body[:-1] + ',"from_the_future":true}'
    assert Policy.from_body(body) == Policy(max_attempts=4)


def test_a_base_above_the_maximum_that_an_earlier_version_has_stored_is_cut_to_it() -> None:
    body = Policy(backoff_base_s=30).body.replace('"backoff_base_s":30', '"backoff_base_s":300')
    assert Policy.from_body(body).backoff_base_s == 60


def test_a_maximum_below_the_default_base_needs_no_other_base() -> None:
    assert Policy(backoff_max_s=0.1).backoff_max_s == 0.1


def test_a_heartbeat_is_half_the_lease_unless_it_is_given() -> None:
    assert Policy(lease_s=30).heartbeat_s == 15
    assert Policy(lease_s=30).with_(lease_s=90).heartbeat_s == 45
    assert Policy(lease_s=30, heartbeat_s=20).heartbeat_s == 20


@each_case("lease_s", [0.001, 0.0015, 30, 120, 86_400])
def test_any_lease_is_allowed(lease_s: float) -> None:
    assert Policy(lease_s=lease_s).lease_s == lease_s


BAD: list[tuple[str, Any]] = [
    *[("max_attempts", v) for v in (0, -1, 1.5, True, "3", None, 10**7, 10**5000, float("nan"))],
    *[
        (name, v)
        for name in ("backoff_base_s", "backoff_max_s", "cancel_grace_s")
        for v in (-1, "1", None, True, float("nan"), float("inf"), 10**5000)
    ],
    *[("backoff_factor", v) for v in (0.5, 1001, "2", None, float("nan"))],
    *[
        (n, v)
        for n in ("lease_s", "idempotency_ttl_s", "breaker_window_s", "breaker_open_s")
        for v in (0, -1, "1", None, True, float("inf"), 10**12)
    ],
    *[("heartbeat_s", v) for v in (0, -1, "1", True, float("inf"))],
    *[(n, v) for n in ("timeout_s", "queue_ttl_s", "deadline_s") for v in (0, -1, "1", True, float("nan"), 10**12)],
    *[("breaker_failures", v) for v in (0, -1, 1001, 1.5, True, "3", float("nan"), 10**5000)],
    *[("on_exhaustion", v) for v in ("explode", None, 3, ["fail"])],
    *[(name, v) for name in ("jitter", "record_heartbeats", "durable_start") for v in (1, None, "yes")],
    *[
        (name, v)
        for name in ("retry_on", "no_retry_on")
        for v in ("KeyError", 5, None, (1,), ("",), ("a\0b",), ("\ud800",), ("x" * 5000,))
    ],
]


def _id(value: object) -> str:
    return "huge" if value == 10**5000 else ascii(value)[:30]


@each_case(("field", "value"), BAD, ids=_id)
def test_a_bad_policy_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        Policy(**{field: value})  # type: ignore[arg-type]
    assert refused.value.field == f"policy.{field}"


def test_a_lease_longer_than_two_heartbeats_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        Policy(lease_s=61, heartbeat_s=30)
    assert refused.value.field == "policy.lease_s"


@each_case(
    ("fields", "field"),
    [
        ({"kind": ""}, "kind"),
        ({"kind": 5}, "kind"),
        ({"kind": "a\0b"}, "kind"),
        ({"namespace": ""}, "namespace"),
        ({"policy": {"max_attempts": 3}}, "policy"),
    ],
)
def test_a_bad_configuration_names_its_field(engine: Engine, fields: dict[str, Any], field: str) -> None:
    before = counts(engine)
    with pytest.raises(InvalidInput) as refused:
        engine.configure(**{"kind": "mail", "policy": Policy(), **fields})
    assert refused.value.field == field
    assert counts(engine) == before

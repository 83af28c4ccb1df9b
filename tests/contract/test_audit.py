"""What changes without a job leaves an event: queues, breakers, tokens. One for each change, in its transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.lifecycle import AUDIT_TYPES
from onetray.domain.policy import Policy
from onetray.domain.task import Event
from onetray.engine import Engine
from tests.support.engines import must_verify
from tests.support.tasks import submit, take

FRAGILE = Policy(breaker_failures=2, breaker_open_s=10, max_attempts=9, backoff_base_s=0)


def audited(engine: Engine, **fields: Any) -> list[Event]:
    return [e for e in engine.feed.read(0, 10_000, **fields).events if e.type in AUDIT_TYPES]


def what(engine: Engine) -> list[tuple[str, str]]:
    return [(e.type, e.actor) for e in audited(engine)]


def test_a_queue_that_is_paused_and_resumed_says_who_when_and_why(engine: Engine, clock: VirtualClock) -> None:
    submit(engine, queue="mail")
    engine.pause_queue("mail", by="ann", reason="the provider is down")
    engine.pause_queue("mail", by="bob")
    clock.advance(5)
    engine.resume_queue("mail", by="bob")
    engine.resume_queue("mail", by="ann")
    paused, resumed = audited(engine)
    assert (paused.type, paused.actor, paused.cause) == ("queue.paused", "user:ann", "the provider is down")
    assert (resumed.type, resumed.actor, resumed.cause) == ("queue.resumed", "user:bob", None)
    assert resumed.ts - paused.ts == 5 * SECOND
    assert paused.payload == {"id": paused.entity_id, "queue": "mail"}
    assert (paused.entity_id, paused.job_id) == (resumed.entity_id, resumed.job_id)
    assert (paused.version, paused.state, paused.namespace) == (None, None, "default")
    assert engine.redacted.feed.read(0).events == engine.feed.read(0).events
    must_verify(engine)


def test_who_pauses_a_paused_queue_does_not_replace_who_did_it_first(engine: Engine) -> None:
    submit(engine, queue="mail")
    engine.pause_queue("mail", by="ann")
    engine.pause_queue("mail", by="bob")
    assert [q.paused_by for q in engine.queues()] == ["ann"]


def test_a_breaker_that_is_opened_and_closed_by_hand(engine: Engine) -> None:
    engine.open_breaker("mail", for_s=60, by="ann", why="maintenance")
    engine.close_breaker("mail", by="bob", reason="done")
    engine.close_breaker("mail", by="bob")
    opened, closed = audited(engine)
    assert (opened.type, opened.actor, opened.cause) == ("breaker.opened", "user:ann", "maintenance")
    assert (closed.type, closed.actor, closed.cause) == ("breaker.closed", "user:bob", "done")
    assert opened.payload == {"id": opened.entity_id, "kind": "mail", "open_until": opened.ts + 60 * SECOND}
    must_verify(engine)


def test_a_breaker_that_opens_and_closes_by_itself(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", FRAGILE)
    submit(engine)
    for _ in range(2):
        engine.fail(take(engine), "no", error_class="SmtpError")
    (opened,) = audited(engine)
    assert (opened.type, opened.actor) == ("breaker.opened", "system:engine")
    assert "2 attempts failed" in (opened.cause or "")
    clock.advance(11)
    engine.fail(take(engine), "still no")
    clock.advance(11)
    engine.succeed(take(engine))
    assert what(engine) == [("breaker.opened", "system:engine")] * 2 + [("breaker.closed", "system:engine")]
    must_verify(engine)


def test_a_success_that_closes_nothing_leaves_no_event(engine: Engine) -> None:
    engine.configure("mail", FRAGILE)
    submit(engine)
    engine.fail(take(engine), "no")
    engine.succeed(take(engine))
    assert audited(engine) == []


def test_a_token_says_who_made_and_revoked_it_but_not_its_secret(engine: Engine) -> None:
    new = engine.tokens.create("ann", ["read", "operate"], namespace="shop", groups=["editor"], by="root")
    engine.tokens.revoke(new.token.id, by="bob")
    engine.tokens.revoke(new.token.id, by="root")
    with pytest.raises(NotFound):
        engine.tokens.revoke("nope")
    created, revoked = audited(engine)
    assert (created.type, created.actor, created.namespace) == ("token.created", "user:root", "shop")
    assert (revoked.type, revoked.actor, revoked.namespace) == ("token.revoked", "user:bob", "shop")
    assert created.payload == {
        "id": created.entity_id, "token": new.token.id, "name": "ann", "scopes": ["read", "operate"],
        "groups": ["editor"],
    }  # fmt: skip
    secret = new.text.rpartition("_")[2]
    for value in engine.store.read_sql("SELECT * FROM onetray.event_batch"):
        assert secret not in str(value)
        assert new.token.hash not in str(value)
    must_verify(engine)


def test_an_event_about_a_namespace_is_read_there_only(engine: Engine) -> None:
    engine.pause_queue("mail", namespace="a")
    engine.open_breaker("mail", for_s=1, namespace="b")
    assert [e.type for e in audited(engine, namespace="a")] == ["queue.paused"]
    assert [e.type for e in engine.events_since(namespace="b").events] == ["breaker.opened"]
    assert engine.events_since(namespace="default").events == []


def test_events_about_tokens_are_read_only_by_whom_asks_for_them(engine: Engine) -> None:
    engine.tokens.create("ann", ["read"])
    engine.pause_queue("mail")
    assert [e.type for e in engine.events_since().events] == ["queue.paused"]
    assert [e.type for e in engine.events_since(tokens=True).events] == ["token.created", "queue.paused"]


@pytest.mark.parametrize("change", [
    lambda e: e.pause_queue("q", by=""), lambda e: e.resume_queue("q", by="\0"),
    lambda e: e.pause_queue("q", reason="x" * 3_000), lambda e: e.close_breaker("mail", by=""),
    lambda e: e.tokens.create("ann", ["read"], by=""), lambda e: e.tokens.revoke("t", by=""),
])  # fmt: skip
def test_bad_input_changes_nothing(engine: Engine, change: Callable[[Engine], None]) -> None:
    engine.pause_queue("q", namespace="other")
    with pytest.raises(InvalidInput):
        change(engine)
    assert len(audited(engine)) == 1


def test_the_retention_removes_old_ones(engine: Engine, clock: VirtualClock) -> None:
    engine.pause_queue("mail", by="ann")
    clock.advance(100)
    engine.resume_queue("mail", by="ann")
    engine.prune(50)
    assert what(engine) == [("queue.resumed", "user:ann")]
    must_verify(engine)

"""What /metrics tells: what has happened since the server began, what there is now, and of one name space alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import LeaseLost, Unavailable
from onetray.domain.policy import Policy
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.http.observe import counters, event_metrics, metrics
from onetray.http.observe.counters import Counter
from onetray.http.observe.event_metrics import EventMetrics
from tests.http.callers import served, token
from tests.support.engines import engine_on
from tests.support.waits import wait_until
from tests.support.workers import Traces, workers

Found = dict[tuple[str, tuple[str, ...]], float]


def scraped(api: TestClient) -> Found:
    """Every number under its name and the values of its labels."""
    answer = api.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(v for _, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture
def fresh(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A server that looks again at each scrape, and has begun to count."""
    monkeypatch.setattr(metrics, "CACHE_S", 0.0)
    monkeypatch.setattr(metrics, "CACHE_FACTOR", 0)
    with served(engine) as client:
        scraped(client)
        yield client


def test_what_happens_to_tasks_is_counted_by_kind(fresh: TestClient, engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(max_attempts=2, jitter=False, backoff_base_s=1.0, lease_s=60))
    for _ in range(3):
        engine.submit("mail")
    good, bad, lost = engine.claim(worker="w", limit=3)
    clock.advance(2)
    engine.beat(lost)
    engine.succeed(good)
    engine.fail(bad, "no")
    clock.advance(61)
    engine.sweep()
    with pytest.raises(LeaseLost):
        engine.succeed(lost)
    for again in engine.claim(worker="w", limit=2):
        engine.fail(again, "no")
    found = scraped(fresh)
    assert found["onetray_claims_total", ("mail",)] == 5
    assert found["onetray_retries_total", ("mail",)] == 2
    assert found["onetray_lease_expiries_total", ("mail",)] == 1
    assert found["onetray_dead_letters_total", ("mail", "exhausted_retries")] == 1
    assert found["onetray_lease_renewals_total", ()] == 1
    assert found["onetray_claim_conflicts_total", ()] == 1
    assert found["onetray_events_total", ("task.submitted",)] == 3
    assert found["onetray_commands_total", ("ok", "submit")] == 3
    assert found["onetray_commit_seconds_count", ()] > 3
    assert found["onetray_up", ()] == 1
    assert found["onetray_events_behind", ()] == 0


def test_failures_are_those_that_end_a_task(fresh: TestClient, engine: Engine) -> None:
    engine.configure("mail", Policy(on_exhaustion="fail", max_attempts=1))
    engine.submit("mail")
    engine.fail(engine.claim(worker="w")[0], "no")
    assert scraped(fresh)["onetray_failures_total", ("mail",)] == 1


def test_how_long_tasks_wait_and_run_is_told_by_kind(fresh: TestClient, engine: Engine, clock: VirtualClock) -> None:
    engine.submit("mail")
    clock.advance(3)
    (job,) = engine.claim(worker="w")
    engine.start(job)
    clock.advance(0.2)
    engine.succeed(job)
    found = scraped(fresh)
    for name, sum_s, below, above in (("queue", 3.0, "2.5", "5.0"), ("run", 0.2, "0.1", "0.25")):
        assert found[f"onetray_{name}_seconds_sum", ("mail",)] == pytest.approx(sum_s)
        assert found[f"onetray_{name}_seconds_bucket", ("mail", below)] == 0
        assert found[f"onetray_{name}_seconds_bucket", ("mail", above)] == 1
        assert found[f"onetray_{name}_seconds_count", ("mail",)] == 1


def test_queues_and_workers_are_told_as_they_stand(fresh: TestClient, engine: Engine, clock: VirtualClock) -> None:
    engine.submit("mail", queue="post")
    engine.submit("mail", queue="post")
    engine.submit("mail", queue="post", delay_s=60)
    engine.claim("post", worker="w")
    engine.pause_queue("post")
    engine.worker_beat(WorkerBeat(name="w", host="h", pid=1, version="1", running=1, claimed=4))
    clock.advance(7)
    found = scraped(fresh)
    assert [found["onetray_queue_depth", ("post", state)] for state in ("ready", "delayed", "held")] == [1, 1, 1]
    assert found["onetray_queue_oldest_seconds", ("post",)] == pytest.approx(7)
    assert found["onetray_queue_paused", ("post",)] == 1
    assert found["onetray_workers_alive", ()] == 1
    assert found["onetray_worker_tasks", ("claimed", "w")] == 4


def test_who_does_not_register_holds_what_its_leases_say(fresh: TestClient, engine: Engine) -> None:
    for _ in range(3):
        engine.submit("mail")
    one, *_ = engine.claim(worker="curl", limit=2)
    engine.start(one)
    engine.claim(worker="curl, too")
    engine.submit("mail", namespace="theirs")
    engine.claim(worker="other", namespace="theirs")
    found = scraped(fresh)
    held = {labels: n for (name, labels), n in found.items() if name == "onetray_worker_tasks"}
    assert held == {("claimed", "curl"): 2, ("running", "curl"): 1, ("claimed", "curl, too"): 1,
                    ("running", "curl, too"): 0}  # fmt: skip
    assert found["onetray_workers_alive", ()] == 0


def test_workers_beyond_those_that_are_listed_are_counted(
    fresh: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_LISTED", 2)
    for n in range(5):
        engine.worker_beat(WorkerBeat(name=f"w{n}", host="h", pid=n, version="1", running=1, ttl_s=100))
    engine.worker_beat(WorkerBeat(name="gone", host="h", pid=9, version="1", ttl_s=1))
    clock.advance(2)
    found = scraped(fresh)
    assert found["onetray_workers_alive", ()] == 5
    assert [labels for name, labels in found if name == "onetray_worker_tasks"] == [
        ("running", "w0"), ("claimed", "w0"), ("running", "w1"), ("claimed", "w1"),
    ]  # fmt: skip


def test_what_a_worker_in_another_process_does_is_counted(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "CACHE_S", 0.0)
    monkeypatch.setattr(metrics, "CACHE_FACTOR", 0)
    traces, short = Traces(tmp_path), Policy(lease_s=3, max_attempts=9, backoff_base_s=0)
    with engine_on(database_url) as engine, served(engine) as api:
        scraped(api)
        with workers(database_url, tmp_path):
            for _ in range(2):
                engine.submit("doze", traces.asked, policy=short)
            wait_until(lambda: scraped(api).get(("onetray_lease_renewals_total", ()), 0) >= 1)
            (name,) = {labels[1] for metric, labels in scraped(api) if metric == "onetray_worker_tasks"}
            wait_until(lambda: scraped(api).get(("onetray_worker_tasks", ("running", name))) == 2)
            traces.let_go()
            wait_until(lambda: scraped(api).get(("onetray_run_seconds_count", ("doze",)), 0) == 2)
            found = scraped(api)
        assert found["onetray_claims_total", ("doze",)] >= 2
        assert found["onetray_events_total", ("task.succeeded",)] == 2
        assert found["onetray_queue_seconds_count", ("doze",)] == 2
        assert ("onetray_commands_total", ("ok", "beat")) not in found, "those are of the process"


OF_THE_PROCESS = {
    "onetray_requests_total", "onetray_request_seconds", "onetray_requests_open", "onetray_streams_open",
    "onetray_commit_seconds", "onetray_events_behind",
}  # fmt: skip


def families_for(api: TestClient, headers: dict[str, str]) -> dict[str, str]:
    """The text of each family that a token is shown."""
    answer = api.get("/metrics", headers=headers)
    assert answer.status_code == 200
    parts = re.split(r"^# HELP (\S+) ", answer.text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("scopes", [["read"], ["admin"]])
def test_what_another_name_space_does_changes_no_number_of_ours(
    fresh: TestClient, engine: Engine, scopes: list[str]
) -> None:
    """Not by a request, a command or a commit: whoever sees them grow knows how much the others do."""
    ours, theirs = (token(engine, *scopes, namespace=name) for name in ("ours", "theirs"))
    worker = token(engine, "admin", namespace="theirs")
    families_for(fresh, theirs)
    before = families_for(fresh, ours)
    fresh.post("/api/v1/jobs", json={"kind": "mail"}, headers=worker)
    [job] = engine.claim(worker="w", namespace="theirs")
    engine.beat(job)
    after = families_for(fresh, ours)
    assert not OF_THE_PROCESS & set(after)
    assert after == before
    assert "onetray_lease_renewals_total 1.0" in families_for(fresh, theirs)["onetray_lease_renewals_total"]


def test_the_numbers_of_the_process_are_for_the_admins_of_the_default_name_space(
    fresh: TestClient, engine: Engine
) -> None:
    """And for `local`: both run the server. Tenants have name spaces of their own."""
    assert set(families_for(fresh, {})) >= OF_THE_PROCESS
    assert set(families_for(fresh, token(engine, "admin"))) >= OF_THE_PROCESS
    assert not set(families_for(fresh, token(engine, "read"))) & OF_THE_PROCESS


def test_past_the_most_name_spaces_nobody_is_shown_the_numbers_of_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_metrics, "MAX_SERIES", 2)
    counted = EventMetrics(engine)
    counted.begin()
    for namespace in ("a", "b", "c", "d"):
        engine.submit(f"kind-{namespace}", namespace=namespace)
    counted.update()
    shown = [counted.for_namespace(namespace).events.family().samples for namespace in "abcd"]
    # PostgreSQL may return the namespaces in any order.
    assert sorted(len(samples) for samples in shown) == [0, 0, 1, 1]


def test_another_name_space_shows_nothing_of_its_own(fresh: TestClient, engine: Engine) -> None:
    engine.submit("secret", queue="hidden", namespace="other")
    engine.claim("hidden", worker="spy", namespace="other")
    engine.worker_beat(WorkerBeat(name="spy", host="h", pid=1, version="1"), namespace="other")
    text = fresh.get("/metrics").text
    assert "secret" not in text
    assert "hidden" not in text
    assert "spy" not in text


def test_requests_are_counted_by_route_never_by_path(fresh: TestClient) -> None:
    for path in ("/api/v1/jobs/nonsense", "/api/v1/jobs/other", "/nowhere/17"):
        fresh.get(path)
    fresh.request("BREW", "/nowhere")
    found = scraped(fresh)
    assert found["onetray_requests_total", ("GET", "/api/v1/jobs/{id}", "400")] == 2
    assert found["onetray_requests_total", ("GET", "(none)", "404")] == 1
    assert found["onetray_requests_total", ("OTHER", "(none)", "404")] == 1
    assert found["onetray_request_seconds_count", ("(none)",)] == 2


def test_a_look_is_kept_for_a_while(api: TestClient, engine: Engine) -> None:
    scraped(api)
    engine.submit("mail")
    assert ("onetray_queue_depth", ("default", "ready")) not in scraped(api)


def test_a_database_that_is_away_leaves_what_the_server_knows_itself(
    fresh: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("away")

    monkeypatch.setattr(engine, "queues", away)
    found = scraped(fresh)
    assert found["onetray_up", ()] == 0
    assert found["onetray_requests_total", ("GET", "/metrics", "200")] == 1
    assert not any(name == "onetray_workers_alive" for name, _ in found)


def test_a_look_after_a_long_time_is_bounded_and_the_next_one_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_metrics, "ROWS_PER_READ", 3)
    monkeypatch.setattr(event_metrics, "MAX_READS", 2)
    counted = EventMetrics(engine)
    counted.begin()
    for _ in range(7):
        engine.submit("mail")
    behind = []
    for _ in range(3):
        counted.update()
        behind.append(counted.behind > 0)
    assert behind == [True, False, False]
    (sample,) = counted.for_namespace("default").events.family().samples
    assert sample.value == 7


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MAX_SERIES", 2)
    counter = Counter("x", "x", "kind")
    for kind in "abcda":
        counter.add(kind)
    assert {s.labels["kind"]: s.value for s in counter.family().samples} == {"a": 2, "b": 1, "other": 2}

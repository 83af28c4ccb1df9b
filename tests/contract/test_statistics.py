"""Statistics: every event is counted once, whoever counts, and a chart is right up to the last commit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.commands import Start, Submit, Succeed, ticket
from onetray.domain.errors import InvalidInput
from onetray.domain.overview import Statistics, StatisticsBucket
from onetray.engine import Engine, statistics
from onetray.engine.statistics import StatisticsCounter, bucket_of, quantile_s
from onetray.store.base import Store
from onetray.verify import verify
from tests.support.engines import must_verify, open_migrated
from tests.support.fleet import wait_until
from tests.support.tasks import in_state, running, submit, take

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def count_all(engine: Engine, limit: int = 20_000) -> None:
    counter = StatisticsCounter(engine.store)
    while counter.count_window(limit):
        pass


def numbers(engine: Engine) -> dict[tuple[int, str], int]:
    """The counts by length of time and type."""
    rows = engine.store.read_sql("SELECT span, type, sum(number) FROM onetray.statistic WHERE bucket = 0 GROUP BY 1, 2")
    return {(span, type_): int(number) for span, type_, number in rows if type_ not in ("queue_time", "run_time")}


def logged(engine: Engine) -> Counter[str]:
    return Counter(type_ for (type_,) in engine.store.read_sql("SELECT type FROM onetray.event"))


def must_agree(engine: Engine) -> None:
    """What is counted is what the log has, by minute and by hour."""
    for span in (60, 3_600):
        assert {t: n for (s, t), n in numbers(engine).items() if s == span} == logged(engine)


def run_some(engine: Engine, clock: VirtualClock) -> None:
    for state in (
        "succeeded",
        "failed",
        "cancelled",
        "dead_lettered",
        "waiting_input",
        "running",
        "assigned",
        "queued",
    ):
        in_state(engine, state, queue=state)
        clock.advance(20)


def parts(total: StatisticsBucket) -> dict[str, Any]:
    return {name: getattr(total, name) for name in ("submitted", "started", "succeeded", "failed", "cancelled",
                                                    "dead_lettered", "retried", "lease_expired")}  # fmt: skip


EXPECTED = {"submitted": 8, "started": 6, "succeeded": 1, "failed": 1, "cancelled": 1, "dead_lettered": 1,
            "retried": 0, "lease_expired": 0}  # fmt: skip


def test_each_event_is_counted_once_however_the_log_is_cut(engine: Engine, clock: VirtualClock) -> None:
    for limit in (1, 2, 3, 20_000):
        run_some(engine, clock)
        count_all(engine, limit)
        must_agree(engine)
    count_all(engine)
    must_agree(engine)


def test_a_chart_is_the_same_before_and_after_counting(engine: Engine, clock: VirtualClock) -> None:
    run_some(engine, clock)
    before = engine.statistics()
    assert (parts(before.total), before.is_complete) == (EXPECTED, True)
    count_all(engine, 5)
    assert engine.statistics() == before
    in_state(engine, "succeeded")
    assert parts(engine.statistics().total) == EXPECTED | {"submitted": 9, "started": 7, "succeeded": 2}


def test_events_of_one_row_of_the_log_are_counted_in_their_own_minutes_and_namespaces(
    engine: Engine, clock: VirtualClock
) -> None:
    engine.run([Submit(kind="mail"), Submit(kind="mail", namespace="other"), Submit(kind="mail")])
    held = engine.claim(worker="w", limit=2, lease_s=3_600)
    clock.advance(600)
    times = [clock.now() - 10 * MINUTE, clock.now() - 5 * MINUTE]
    for verdict in engine.run([Succeed(**ticket(a), ran_s=600 - 300 * i) for i, a in enumerate(held)]):
        verdict.unwrap()
    assert len(engine.store.read_sql("SELECT 1 FROM onetray.event_batch")) < 8, "these events share rows"
    for _ in range(2):
        series = engine.statistics()
        assert [(b.at, b.started) for b in series.buckets if b.started] == [(at - at % MINUTE, 1) for at in times]
        assert (series.total.submitted, engine.statistics(namespace="other").total.submitted) == (2, 1)
        count_all(engine)
    must_agree(engine)


def test_the_times_of_a_task_are_from_claimable_to_start_and_from_start_to_end(
    engine: Engine, clock: VirtualClock
) -> None:
    submit(engine, delay_s=100)
    clock.advance(100)
    engine.do_due()
    clock.advance(4)
    claimed = running(engine)
    clock.advance(30)
    engine.succeed(claimed)
    for _ in range(2):
        total = engine.statistics().total
        assert total.queue_p50_s == pytest.approx(4, rel=0.2)
        assert (total.run_p50_s, total.run_p95_s) == (pytest.approx(30, rel=0.2), pytest.approx(30, rel=0.2))
        count_all(engine)


def test_there_are_no_times_without_a_task_that_was_started_and_ended(engine: Engine) -> None:
    engine.cancel(submit(engine))
    submit(engine)
    running(engine)
    total = engine.statistics().total
    assert (total.queue_p50_s, total.queue_p95_s, total.run_p50_s, total.run_p95_s) == (None, None, None, None)


def test_a_sample_stands_for_all_tasks(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten tasks run for a second, one for a minute; a small namespace is not lost beside a large one."""
    monkeypatch.setattr(statistics, "MAX_SAMPLE", 20)
    engine.run([Submit(kind="mail") for _ in range(200)])
    submit(engine, namespace="small")
    held = engine.claim(worker="w", limit=200)
    engine.run([Start(**ticket(a)) for a in held])
    alone = take(engine, namespace="small")
    engine.start(alone)
    clock.advance(1)
    engine.run([Succeed(**ticket(a)) for i, a in enumerate(held) if i % 10])
    engine.succeed(alone)
    clock.advance(59)
    engine.run([Succeed(**ticket(a)) for a in held[::10]])
    count_all(engine)
    histogram = engine.store.read_sql(
        "SELECT s.bucket, s.number FROM onetray.statistic AS s WHERE s.type = 'run_time' AND s.span = 60 "
        "AND s.ns = (SELECT n.key FROM onetray.namespace AS n WHERE n.name = 'default')"
    )
    assert sum(int(n) for _, n in histogram) == 200
    assert 5 <= sum(int(n) for bucket, n in histogram if bucket > bucket_of(10 * SECOND)) <= 40
    assert engine.statistics(namespace="small").total.run_p50_s == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("us", [0, 1, 2, 900, 1_000_000, 3_600_000_000, 10**13])
def test_a_quantile_is_near_the_value(us: int) -> None:
    for share in (0.05, 0.5, 0.95):
        found = quantile_s({bucket_of(us): 7}, share)
        assert found is not None
        assert abs(found * 1e6 - us) <= max(2, 0.2 * us)


def test_quantiles_are_in_order_and_none_of_an_empty_histogram() -> None:
    histogram = {bucket_of(10): 90, bucket_of(1_000): 9, bucket_of(100_000): 1}
    median, most, last = (quantile_s(histogram, share) or 0 for share in (0.5, 0.95, 1.0))
    assert median < 20e-6 < 500e-6 < most < 2_000e-6 < 50_000e-6 < last
    assert quantile_s({}, 0.5) is None


def test_two_who_count_the_same_rows_count_them_once(engine: Engine, clock: VirtualClock) -> None:
    run_some(engine, clock)
    first, second = StatisticsCounter(engine.store), StatisticsCounter(engine.store)
    read = statistics.read_window
    with pytest.MonkeyPatch.context() as patch:

        def read_and_be_overtaken(store: Store, after: int, upto: int, limit: int) -> statistics.Window:
            window = read(store, after, upto, limit)
            patch.setattr(statistics, "read_window", read)
            second.count_window()
            return window

        patch.setattr(statistics, "read_window", read_and_be_overtaken)
        assert not first.count_window()
    must_agree(engine)


def test_the_janitor_counts_at_most_once_in_a_while(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(engine)
    janitors = [StatisticsCounter(engine.store) for _ in range(2)]
    assert [janitor.step() for janitor in janitors] == [0, 0]
    must_agree(engine)
    submit(engine)
    for janitor in janitors:
        monkeypatch.setattr(janitor, "_count_at", 0.0)
        janitor.step()
    assert numbers(engine)[60, "task.submitted"] == 1, "another has counted within this second"
    clock.advance(1)
    monkeypatch.setattr(janitors[0], "_count_at", 0.0)
    janitors[0].step()
    must_agree(engine)


def test_a_running_janitor_counts(engine: Engine) -> None:
    submit(engine)
    engine.janitor(0.01).start()
    wait_until(lambda: numbers(engine).get((60, "task.submitted")) == 1)


def test_what_is_counted_outlives_its_jobs(engine: Engine, clock: VirtualClock) -> None:
    run_some(engine, clock)
    count_all(engine)
    before = engine.statistics(since=clock.now() - HOUR, until=clock.now() + MINUTE)
    clock.advance(5)
    assert engine.prune(1)
    in_state(engine, "succeeded")
    count_all(engine)
    after = engine.statistics(since=before.since_at, until=before.until_at)
    assert parts(after.total) == parts(before.total) | {"submitted": 9, "started": 7, "succeeded": 2}
    must_verify(engine)


def test_old_minutes_are_deleted_and_their_hours_stay(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now()
    in_state(engine, "succeeded")
    count_all(engine)
    counter = StatisticsCounter(engine.store)
    assert counter.prune() == 0
    clock.advance(9 * 86_400)
    in_state(engine, "succeeded")
    count_all(engine)
    monkeypatch.setattr(statistics, "MAX_PRUNED", 2)
    assert counter.prune() == 2
    while counter.prune():
        pass
    assert numbers(engine)[60, "task.submitted"] == 1
    series = engine.statistics(since=began, until=clock.now(), buckets=1_000)
    assert (series.bucket_s, series.total.submitted, series.total.run_p50_s) == (3_600, 2, 0.000001)
    must_verify(engine)
    clock.advance(91 * 86_400)
    while counter.prune():
        pass
    assert numbers(engine) == {}


def spans(series: Statistics) -> tuple[int, int, int]:
    return series.bucket_s, len(series.buckets), (series.until_at - series.since_at) // SECOND


@pytest.mark.parametrize(("length", "buckets", "expected"), [
    (HOUR, 60, (60, 60, 3_600)), (HOUR, 7, (540, 7, 3_780)), (MINUTE, 60, (60, 1, 60)), (1, 1, (60, 1, 60)),
    (24 * HOUR, 24, (3_600, 24, 86_400)), (24 * HOUR, 1_000, (120, 720, 86_400)),
    (7 * 24 * HOUR, 60, (10_800, 56, 604_800)), (30 * 24 * HOUR, 1_000, (3_600, 720, 2_592_000)),
])  # fmt: skip
def test_a_range_is_divided_into_whole_minutes_or_hours(
    engine: Engine, clock: VirtualClock, length: int, buckets: int, expected: tuple[int, int, int]
) -> None:
    end = clock.now() - clock.now() % (24 * HOUR)
    series = engine.statistics(since=end - length, until=end, buckets=buckets)
    assert spans(series) == expected
    assert [b.at for b in series.buckets] == [
        series.since_at + i * series.bucket_s * SECOND for i in range(expected[1])
    ]
    assert series.since_at <= end - length
    assert series.until_at >= end


def test_a_long_end_of_the_log_is_cut_and_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.engine.statistics_api.MAX_TAIL", 3)
    for _ in range(5):
        submit(engine)
    series = engine.statistics()
    assert (series.is_complete, series.total.submitted) == (False, 3)
    count_all(engine)
    series = engine.statistics()
    assert (series.is_complete, series.total.submitted) == (True, 5)


def test_an_unknown_namespace_has_no_events(engine: Engine) -> None:
    submit(engine)
    assert engine.statistics(namespace="nobody's").total.events == {}


@pytest.mark.parametrize(("arguments", "field"), [
    ({"buckets": 0}, "buckets"), ({"buckets": 1_001}, "buckets"), ({"buckets": "x"}, "buckets"),
    ({"since": -1}, "since"), ({"until": 2**63}, "until"), ({"since": 5, "until": 5}, "since"),
    ({"since": 2**60}, "since"), ({"namespace": ""}, "namespace"), ({"since": 1.5}, "since"),
])  # fmt: skip
def test_bad_arguments_are_named(engine: Engine, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        engine.statistics(**arguments)
    assert refused.value.facts["field"] == field


@pytest.mark.parametrize("damage", [
    "UPDATE onetray.statistic SET number = number + 1 WHERE type = 'task.submitted'",
    "UPDATE onetray.statistic SET number = number - 1 WHERE type = 'task.submitted'",
    "UPDATE onetray.statistic_cursor SET upto = upto - 1",
])  # fmt: skip
def test_the_verifier_finds_what_is_counted_wrongly(database_url: str, clock: VirtualClock, damage: str) -> None:
    with open_migrated(database_url) as engine:
        submit(engine)
        submit(engine)
        count_all(engine)
        assert verify(engine.store).ok
        engine.store.write(lambda tx: tx.fetch(damage, {}))
        assert [v.name for v in verify(engine.store).violations] == ["counted_once"]


def test_an_event_that_is_committed_late_is_counted(migrated_url: str) -> None:
    """On PostgreSQL a later event may be visible first: the janitor counts only what nothing can come before."""
    with open_migrated(migrated_url) as engine, psycopg.connect(migrated_url) as slow:
        engine.submit("mail", connection=slow)
        submit(engine)
        assert not StatisticsCounter(engine.store).count_window()
        assert numbers(engine).get((60, "task.submitted"), 0) <= 1
        assert engine.statistics().total.submitted == 1
        slow.commit()
        wait_until(lambda: StatisticsCounter(engine.store).count_window() or engine.store.upto() > 1_024)
        count_all(engine)
        must_agree(engine)
        assert engine.statistics().total.submitted == 2

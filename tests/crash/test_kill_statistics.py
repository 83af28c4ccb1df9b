"""A janitor that is killed while it counts has counted all of the events or none; the next one counts each once."""

from __future__ import annotations

from pathlib import Path

from onetray.domain.clock import VirtualClock
from onetray.engine.statistics import StatisticsCounter
from onetray.failpoints import COUNT_POINTS
from tests.support import fleet
from tests.support.dying_processes import do_step_and_die
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import Ledger
from tests.support.generations import KILLED
from tests.support.tasks import in_state


def test_a_kill_while_counting_counts_nothing_twice_and_loses_nothing(
    database_url: str, tmp_path: Path, clock: VirtualClock
) -> None:
    with engine_on(database_url, clock) as engine:
        for n, point in enumerate((*COUNT_POINTS, "committing", "committed"), 1):
            in_state(engine, "succeeded")
            ledger = tmp_path / point
            process = fleet.start(do_step_and_die, database_url, clock.now(), "count", point, str(ledger))
            fleet.end_all([process], 60, exitcode=KILLED)
            assert not Ledger.read(ledger), "the call returned before its point"
            counted = engine.store.read_sql(
                "SELECT number FROM onetray.statistic WHERE type = 'task.submitted' AND span = 60"
            )
            assert counted == ([(n,)] if point == "committed" else []), point
            assert engine.statistics().total.submitted == n
            must_verify(engine)
        assert not StatisticsCounter(engine.store).count_window(), "all of it is counted"
        assert engine.statistics().total.succeeded == n

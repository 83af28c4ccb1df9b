"""`./go bench targets`: what is to be reached, and how it is judged."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import measured
from benchmarks.catalogue import ON_POSTGRES, PYTHON
from benchmarks.commands import report
from benchmarks.measured import Measured
from benchmarks.targets import AT_LEAST, AT_MOST, GROUPS, Judged, targets


def side(**figures: float) -> dict[str, float]:
    rates, times = {"drain": 100.0, "bulk": 100.0}, {"pickup_p50_ms": 4.0, "pickup_p99_ms": 8.0}
    return {**rates, **times, "bytes_per_job": 800.0, **figures}


@pytest.fixture
def made() -> Any:
    """A run in which every ratio is 1, every rate 100, every time 4 ms, and a job has 800 bytes."""
    names = ("onetray-sqlite", "onetray-postgres", *ON_POSTGRES, "huey-sqlite")
    calls = {"one": {"to_by_hand": 1.0}, "threads": {"to_one": 1.0}, "aio": {"to_one": 1.0}}
    answered = {"onetray": {"to_bare": 1.0, "p50_ms": 4.0, "p99_ms": 8.0}}
    return SimpleNamespace(
        peers={name: side() for name in names},
        handlers={name: side() for name in PYTHON},
        pickup={"sqlite_same_process": {"median_ms": 4.0, "p99_ms": 8.0}},
        limit={store: {"best": "fused", "best_drain": 100.0} for store in ("sqlite", "postgres")},
        submit=dict.fromkeys(("sqlite", "postgres"), calls),
        history={"sqlite": {"history_ratio": 1.0, "page_ratio": 1.0}},
        http={"sqlite": {"1": dict.fromkeys(("submit", "claim_report"), answered)}},
        workers={"sqlite": {"1": {str(count): side() for count in (1, 4, 8)}}},
        **{
            name: {"sqlite": {"share": 1.0, "peak_mib": 1.0, "ratio": 1.0}}
            for name in ("idle", "queued", "finished", "held", "memory", "flow")
        },
    )


@pytest.mark.parametrize(
    ("bound", "reached", "met"),
    [
        (AT_LEAST, 1.0, True),
        (AT_LEAST, 0.99, False),
        (AT_MOST, 1.0, True),
        (AT_MOST, 1.01, False),
        (AT_MOST, None, False),
    ],
)
def test_a_target_is_met_at_its_bound(bound: str, reached: float | None, met: bool) -> None:
    assert Judged("a measure", bound, 1.0, reached).met is met


def test_equal_sides_meet_just_the_targets_that_ask_for_no_more(made: Any) -> None:
    judged = targets(made, list(GROUPS))
    assert {measure for measure, verdict in judged.items() if not verdict["met"]} == {
        "drain, onetray-postgres, to pgqueuer",
        "drain, onetray-postgres, to pg-boss",
        "drain, onetray-sqlite, to huey-sqlite",
        "bytes a job, onetray-sqlite",
        "pickup p50, onetray-sqlite, ms",
        "pickup p50, sqlite in one process, ms",
        *(
            f"submits of 64 {way}, {store}, to one caller"
            for way in ("threads", "aio")
            for store in ("sqlite", "postgres")
        ),
    }
    assert judged["drain, onetray-postgres, to the limit"] == {
        "target": "at least 0.7", "reached": 1.0, "met": True, "note": "fused",
    }  # fmt: skip


def test_beside_every_peer_the_fastest_counts(made: Any) -> None:
    made.peers["pg-boss"] = side(bulk=400.0)
    (verdict,) = targets(made, ["bulk"]).values()
    assert (verdict["reached"], verdict["met"], verdict["note"]) == (0.25, False, "pg-boss")


def test_nothing_is_reached_beside_a_peer_that_is_missing(made: Any) -> None:
    del made.peers["graphile-worker"], made.handlers["dbos"]
    judged = targets(made, ["drain", "bytes", "bulk", "pickup", "handlers"])
    unknown = {measure: verdict["note"] for measure, verdict in judged.items() if verdict["reached"] is None}
    assert unknown == {
        "drain, onetray-postgres, to graphile-worker": "",
        "bulk submit, onetray-postgres, to every peer": "without graphile-worker",
        "pickup p50, onetray-postgres, to graphile-worker": "",
        "handlers of 1 ms, onetray-sqlite, to every peer": "without dbos",
        "handlers of 1 ms, onetray-postgres, to every peer": "without dbos",
    }


def test_only_what_is_asked_for_is_measured_and_its_figures_are_kept(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (measured, report):
        monkeypatch.setattr(module, "STORES", ("sqlite",))
    result = run("targets", "--quick", "--only", "submit")
    assert set(result) == {"targets", "missing", "submit", "machine"}
    assert {measure.split(",")[0] for measure in result["targets"]} == {
        "single submit", "submits of 64 threads", "submits of 64 aio",
    }  # fmt: skip


@pytest.mark.usefixtures("forked_workers")
def test_what_is_read_served_and_shared_out_is_set_beside_what_it_could_be(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (measured, report):
        monkeypatch.setattr(module, "STORES", ("sqlite",))
    result = run("targets", "--quick", "--only", "history", "--only", "http", "--only", "workers", "--only", "queued")
    assert set(result["targets"]) == {
        "history of a job among 10,000,000 events, sqlite, to one by hand",
        "feed page of 1,000 among 10,000,000 events, sqlite, to one by hand",
        *(f"HTTP {what}, sqlite, to a bare route" for what in ("submit", "claim + report")),
        *(f"HTTP {what}, sqlite, p99 to p50" for what in ("submit", "claim + report")),
        *(f"{count} workers together, sqlite, to one" for count in (4, 8)),
        "claims beside 1,000,000 queued, sqlite",
    }  # fmt: skip
    assert all(verdict["reached"] > 0 for verdict in result["targets"].values())


def test_figures_have_the_names_of_the_commands_that_plot_reads() -> None:
    made = Measured(None, None, print)  # type: ignore[arg-type]
    vars(made).update(peers={"a": 1}, idle={"b": 2}, finished={"c": 3})
    assert made.figures() == {"peers": {"a": 1}, "growth": {"idle": {"b": 2}, "finished": {"c": 3}}}


def test_unknown_groups_are_refused(refused: Callable[..., str]) -> None:
    assert "--only" in refused("targets", "--only", "speed")

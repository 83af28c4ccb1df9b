"""`./go bench dashboard`: every page has a time, and open pages have a price."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import dashboard, mixed_crowd
from onetray.dashboard.pages import PAGES, load_views

FEW = ("--jobs", "100", "--requests", "2", "--seconds", "0.2", "--open", "3", "--rate", "10")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_crowd, "HOURS", 1)
    monkeypatch.setattr(mixed_crowd, "FLOWS", 4)
    monkeypatch.setattr(mixed_crowd, "RUNNING", 5)
    monkeypatch.setattr(mixed_crowd, "KINDS", mixed_crowd.KINDS[:4])
    monkeypatch.setattr(dashboard, "SETTLE_S", 0.1)
    monkeypatch.setattr(dashboard, "LOOKS", 2)


def test_every_page_is_measured(run: Callable[..., Any]) -> None:
    found = run("dashboard", "--store", "sqlite", "--part", "views", *FEW)["dashboard"]["sqlite"]["views"]
    load_views()
    for page in PAGES.values():
        assert any(name.split(":")[0].split(" ")[0] == page.name for name in found), page.name
    assert all(figures["p50_ms"] > 0 for figures in found.values())


def test_open_pages_are_measured_under_load(run: Callable[..., Any]) -> None:
    found = run("dashboard", "--store", "postgres", "--part", "live", *FEW)["dashboard"]["postgres"]["live"][
        "open pages"
    ]
    assert found["messages"] > 0
    assert found["seen_p50_ms"] > 0
    assert found["cores_of_pages"] == pytest.approx(found["cores_open"] - found["cores_without"], abs=0.002)

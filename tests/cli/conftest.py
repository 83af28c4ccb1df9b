"""A SQLite file with jobs in it, for the commands to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.tasks import submit, take


@dataclass(frozen=True)
class Place:
    """A database by its URL, with an engine beside the commands."""

    url: str
    engine: Engine

    @property
    def at(self) -> tuple[str, str]:
        return "--database", self.url

    def dead(self, kind: str = "sync", message: str = "shop is closed", detail: Any = None) -> str:
        """A task that was set aside."""
        self.engine.configure(kind, Policy(max_attempts=1))
        id_ = submit(self.engine, kind)
        self.engine.fail(take(self.engine, kinds=(kind,)), message, error_class="HTTP 503", detail=detail)
        return id_

    def flow(self, tasks: int = 2) -> str:
        """A flow whose second stage waits for ann."""
        return self.engine.submit_flow(
            "report",
            [
                StageSpec("fetch", [TaskSpec("fetch", {"shop": i}) for i in range(tasks)]),
                StageSpec("check", [TaskSpec("check")], approval=Approval(owner="ann", reason="looks at it")),
            ],
        ).id


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    url = migrated_sqlite(tmp_path)
    with engine_on(url) as engine:
        yield Place(url, engine)

"""RedactedEngine: an engine whose reads and feed hide the fields that kinds redact.

Each read declares how its answer is redacted (engine/reads.py). HTTP routes, streams, dialects and the command line use
this engine. Commands pass through unchanged, and so do claims: a worker gets real payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from onetray.domain.commands import Command
from onetray.domain.task import Verdict
from onetray.engine.api import EngineApi
from onetray.engine.reads import ApiMethod
from onetray.feed import PAGE, Feed, Page
from onetray.redaction.answers import plain
from onetray.redaction.job_secrets import JobRedaction

if TYPE_CHECKING:
    from onetray.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RedactedEngine(EngineApi):
    """The same verbs and reads, with redacted answers. Closing it does not close the engine behind it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine._committer, engine.wake)
        self._engine, self.config, self.piggyback = engine, engine.config, engine.piggyback
        self.feed, self.reserve_key = RedactedFeed(engine.feed, engine.redaction), engine.reserve_key

    @property
    def redacted(self) -> RedactedEngine:
        return self

    def bind(self, method: ApiMethod[P, R]) -> Callable[P, R]:
        # By name: a method that a test or a program has replaced on the engine is redacted, too.
        read: Callable[P, R] = getattr(self._engine, method.name)
        if method.redact is plain:
            return read

        def read_and_redact(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = method.arguments(args, kwargs)
            return method.redact(self._engine.redaction, read(*args, **kwargs), arguments)  # type: ignore[no-any-return]

        return read_and_redact

    def redact(self, values: list[T]) -> list[T]:
        """Redact values that were read from the engine behind this one."""
        return self._engine.redaction.redacted(values)

    def run(self, commands: Sequence[Command], *, connection: Any = None) -> list[Verdict]:
        return self._engine.run(commands, connection=connection)

    def _submit_within(self, connection: object, commands: Sequence[Command]) -> list[Verdict]:
        return self._engine._submit_within(connection, commands)

    def close(self) -> None:
        """Does nothing: the engine behind it owns all resources."""


class RedactedFeed:
    """The feed, with redacted events."""

    def __init__(self, feed: Feed, redaction: JobRedaction) -> None:
        self._feed, self._redaction = feed, redaction

    def read(
        self, after: int, limit: int = PAGE, *, namespace: str | None = None, types: Sequence[str] | None = None
    ) -> Page:
        page = self._feed.read(after, limit, namespace=namespace, types=types)
        return page._replace(events=self._redaction.redacted(page.events))

    def kinds_of(self, ids: Sequence[str]) -> dict[str, str]:
        """The kinds of tasks, and the names of flows, by their ids."""
        return dict(self._feed.store.read("kinds_of_ids", ids=list(ids)))

    @property
    def held_up(self) -> bool:
        """Whether an open transaction keeps the feed from advancing."""
        return self._feed.store.held_up

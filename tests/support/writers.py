"""Writers that hold their transaction open: they have event ids that nobody can see yet."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from onetray.config import Limits
from onetray.domain.commands import Command, Submit
from onetray.domain.errors import Unavailable
from onetray.domain.task import Verdict
from onetray.engine import Engine
from onetray.engine.batch import run_in_batch
from onetray.engine.batch_context import BatchContext
from onetray.engine.flows.create import intern_flows
from onetray.engine.submit import intern
from onetray.store.postgres import PostgresTx


class RolledBack(Exception):
    pass


class Writer:
    """A transaction that is carried out step by step."""

    def __init__(self, engine: Engine, tx: PostgresTx) -> None:
        self._engine, self._tx = engine, tx
        self.gone = False

    def run(self, commands: list[Command]) -> list[Verdict]:
        for command in commands:
            command.check(Limits())
        names = self._engine.store.names
        specs = intern(names, commands, 60.0)
        scope = BatchContext(self._tx, len(commands), random.Random(1), Limits())
        run_in_batch(scope, commands, specs, intern_flows(names, commands, 60.0))
        # Now, and not only with the COMMIT.
        self._tx._send()
        return scope.verdicts

    def submit(self, count: int) -> list[int]:
        """Submit tasks, and say which event ids they took."""
        before = self._ids()
        self.run([Submit(kind="mail") for _ in range(count)])
        return sorted(self._ids() - before)

    def roll_back(self) -> None:
        raise RolledBack

    @property
    def pid(self) -> int:
        return self._tx._connection.info.backend_pid

    def _ids(self) -> set[int]:
        sql = "SELECT id FROM onetray.event"
        return {id for (id,) in self._tx._connection.execute(sql).fetchall()}


@contextmanager
def writing(engine: Engine) -> Iterator[Writer]:
    """A writer whose transaction ends with the block: committed, or rolled back when it was told to."""
    writer: Writer | None = None
    try:
        with engine.store.transaction() as tx:
            assert isinstance(tx, PostgresTx)
            writer = Writer(engine, tx)
            yield writer
    except RolledBack:
        pass
    except Unavailable:
        assert writer is not None
        if not writer.gone:
            raise

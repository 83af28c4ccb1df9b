"""Submit inside the caller's own transaction: the job exists exactly if that transaction commits.

Owns which commands are allowed there. store/caller_connection.py checks the connection.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from onetray.config import EngineConfig
from onetray.domain.commands import Command, Submit
from onetray.domain.errors import Conflict, InvalidInput, NotFound
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Verdict
from onetray.engine.batch import run_in_batch
from onetray.engine.batch_context import BatchContext
from onetray.engine.flows.create import intern_flows
from onetray.engine.submit import intern
from onetray.store.base import ForeignTransaction, Store

_REFUSALS = (Conflict, NotFound, InvalidInput)


def require_submits(commands: Sequence[object]) -> None:
    """Other commands take locks that the caller's transaction might keep for long."""
    for command in commands:
        if isinstance(command, Command) and not isinstance(command, Submit | SubmitFlow):
            raise InvalidInput(
                f"{command.verb} cannot be part of your transaction: only submit and submit_flow can", field="commands"
            )


def submit_within(
    store: Store, connection: object, commands: Sequence[Command], rng: random.Random, config: EngineConfig
) -> list[Verdict]:
    """Run all the commands or, if this raises, none. The caller can go on using the transaction in either case."""
    caller_tx = store.borrow(connection)
    if len(commands) == 1:
        return [_write_one(store, caller_tx, commands[0], rng, config)]
    with caller_tx.savepoint():
        try:
            return _write(store, caller_tx, commands, rng, config)
        except _REFUSALS:
            return [_write_one(store, caller_tx, command, rng, config) for command in commands]


def _write_one(
    store: Store, caller_tx: ForeignTransaction, command: Command, rng: random.Random, config: EngineConfig
) -> Verdict:
    """Run one command in its own savepoint, so that its error does not affect the others."""
    try:
        return _write(store, caller_tx, [command], rng, config)[0]
    except _REFUSALS as e:
        return Verdict(error=e)


def _write(
    store: Store, caller_tx: ForeignTransaction, commands: Sequence[Command], rng: random.Random, config: EngineConfig
) -> list[Verdict]:
    # On the engine's own connection: a number that the caller's transaction rolls back must not be cached.
    specs = intern(store.names, commands, config.names_ttl_s)
    drafts = intern_flows(store.names, commands, config.names_ttl_s)
    with caller_tx.savepoint() as tx:
        batch = BatchContext(tx, len(commands), rng, config.limits)
        batch.drafts = drafts
        run_in_batch(batch, commands, specs, drafts)
    return batch.verdicts

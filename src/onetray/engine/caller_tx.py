"""Submit inside a transaction that is somebody else's: the job exists exactly when that one commits.

Owns what may be done there. The connection, and what it must be, is in store/caller_connection.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from onetray.config import EngineConfig
from onetray.domain.commands import Command, Submit
from onetray.domain.errors import Conflict, InvalidInput, NotFound
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Verdict
from onetray.engine.batch import within
from onetray.engine.batch_context import BatchContext
from onetray.engine.flows.create import intern_flows
from onetray.engine.submit import intern
from onetray.store.base import ForeignTransaction, Store

_REFUSALS = (Conflict, NotFound, InvalidInput)


def must_be_submits(commands: Sequence[object]) -> None:
    """All else takes locks that a stranger's transaction might keep for long."""
    for command in commands:
        if isinstance(command, Command) and not isinstance(command, Submit | SubmitFlow):
            raise InvalidInput(
                f"{command.verb} cannot be part of your transaction: only submit and submit_flow can", field="commands"
            )


def submit_within(
    store: Store, connection: object, commands: Sequence[Command], chance: random.Random, config: EngineConfig
) -> list[Verdict]:
    """Write all of them or, when this raises, nothing. The transaction stays usable for its owner in any case."""
    guest = store.borrow(connection)
    if len(commands) == 1:
        return [_alone(store, guest, commands[0], chance, config)]
    with guest.savepoint():
        try:
            return _write(store, guest, commands, chance, config)
        except _REFUSALS:
            return [_alone(store, guest, command, chance, config) for command in commands]


def _alone(
    store: Store, guest: ForeignTransaction, command: Command, chance: random.Random, config: EngineConfig
) -> Verdict:
    """One of them could not be written: each for itself says which, and lets the others pass."""
    try:
        return _write(store, guest, [command], chance, config)[0]
    except _REFUSALS as e:
        return Verdict(error=e)


def _write(
    store: Store, guest: ForeignTransaction, commands: Sequence[Command], chance: random.Random, config: EngineConfig
) -> list[Verdict]:
    # On the engine's own connection: a number must not be remembered from a transaction that is rolled back.
    specs = intern(store.names, commands, config.names_ttl_s)
    drafts = intern_flows(store.names, commands, config.names_ttl_s)
    with guest.savepoint() as tx:
        batch = BatchContext(tx, len(commands), chance, config.limits)
        batch.drafts = drafts
        within(batch, commands, specs, drafts)
    return batch.verdicts

"""Submit inside a transaction that is somebody else's: the job exists exactly when that one commits.

Owns what may be done there. The connection, and what it must be, is in store/borrowed.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from onetray.commands import Command, Submit
from onetray.config import EngineConfig
from onetray.engine.batch import within
from onetray.engine.members import intern_flows
from onetray.engine.scope import Scope
from onetray.engine.submit import intern
from onetray.errors import Conflict, InvalidInput, NotFound
from onetray.flowcommands import SubmitFlow
from onetray.model import Verdict
from onetray.store.base import Guest, Store

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


def _alone(store: Store, guest: Guest, command: Command, chance: random.Random, config: EngineConfig) -> Verdict:
    """One of them could not be written: each for itself says which, and lets the others pass."""
    try:
        return _write(store, guest, [command], chance, config)[0]
    except _REFUSALS as e:
        return Verdict(error=e)


def _write(
    store: Store, guest: Guest, commands: Sequence[Command], chance: random.Random, config: EngineConfig
) -> list[Verdict]:
    # On the engine's own connection: a number must not be remembered from a transaction that is rolled back.
    specs = intern(store.names, commands, config.names_ttl_s)
    drafts = intern_flows(store.names, commands, config.names_ttl_s)
    with guest.savepoint() as tx:
        scope = Scope(tx, len(commands), chance, config.limits)
        scope.drafts = drafts
        within(scope, commands, specs, drafts)
    return scope.verdicts

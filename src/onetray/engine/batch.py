"""Carry out a batch of commands in one transaction, and answer each of them.

Owns the order: all tasks of the batch are locked first, sorted; then the commands about them, then the submits, then
the claims, which wait for nobody. A task gets its commands in the order they arrived.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from onetray.commands import Claim, Command, Submit, TaskCommand
from onetray.engine import controls, reports, system
from onetray.engine.claim import claim
from onetray.engine.scope import Scope
from onetray.engine.submit import Spec, intern, submit
from onetray.errors import NotFound
from onetray.model import Row, Verdict
from onetray.store.base import Store, Tx

HANDLERS: dict[str, Callable[[Scope, list[tuple[int, Any, Row]]], None]] = {
    "start": reports.start,
    "beat": reports.beat,
    "succeed": reports.succeed,
    "fail": reports.fail,
    "release": reports.release,
    "pause": reports.pause,
    "log": reports.log,
    "resume": controls.resume,
    "cancel": controls.cancel,
    "redrive": controls.redrive,
    "set_priority": controls.set_priority,
    "reschedule": controls.reschedule,
    "expire": system.expire,
    "time_out": system.time_out,
    "promote": system.promote,
    "end_cancel": system.end_cancel,
    "dead_letter": system.dead_letter,
}


def carry_out(store: Store, commands: Sequence[Command], chance: random.Random, names_ttl_s: float) -> list[Verdict]:
    """One transaction for all of them: everything that was accepted is durable, or nothing was."""
    specs = intern(store.names, commands, names_ttl_s)
    with store.transaction() as tx:
        scope = Scope(tx, len(commands), chance)
        within(scope, commands, specs)
    return scope.verdicts


def within(scope: Scope, commands: Sequence[Command], specs: dict[int, Spec]) -> None:
    about = [(i, c) for i, c in enumerate(commands) if isinstance(c, TaskCommand)]
    if about:
        _about_tasks(scope, about)
    new = [(i, c, spec) for i, spec in specs.items() if isinstance(c := commands[i], Submit)]
    if new:
        submit(scope, new)
    claims = [(i, c) for i, c in enumerate(commands) if isinstance(c, Claim)]
    if claims:
        claim(scope, claims)


def _about_tasks(scope: Scope, about: list[tuple[int, TaskCommand]]) -> None:
    keys = _keys(scope.tx, about)
    scope.rows = {row.key: row for row in scope.tx.lock(sorted(set(keys.values())))}
    while about:
        about = _round(scope, about, keys)


def _keys(tx: Tx, about: list[tuple[int, TaskCommand]]) -> dict[int | str, int]:
    """The key of each task, by what the commands call it. Unknown tasks have none."""
    keys: dict[int | str, int] = {c.task: c.task for _, c in about if isinstance(c.task, int)}
    ids = {c.task for _, c in about if isinstance(c.task, str)}
    if ids:
        keys.update(tx.query("keys_of", ids=sorted(ids)))
    return keys


def _round(
    scope: Scope, about: list[tuple[int, TaskCommand]], keys: dict[int | str, int]
) -> list[tuple[int, TaskCommand]]:
    """Carry out the first command about each task; the others have to wait for it and are returned.

    A statement that names a task twice would apply one of the two silently.
    """
    rows, namespaces = scope.rows, {c.namespace: scope.tx.names.namespace(c.namespace) for _, c in about}
    by_verb: dict[str, list[tuple[int, TaskCommand, Row]]] = defaultdict(list)
    seen: set[int] = set()
    later: list[tuple[int, TaskCommand]] = []
    for item in about:
        i, command = item
        row = rows.get(keys.get(command.task, 0))
        if row is None or row.ns != namespaces[command.namespace]:
            scope.answer(i, Verdict(error=NotFound(f"there is no task {command.task}", task=command.task)))
        elif row.key in seen:
            later.append(item)
        else:
            seen.add(row.key)
            by_verb[command.verb].append((i, command, row))
    scope.again = {keys[command.task] for _, command in later}
    for verb in sorted(by_verb):
        HANDLERS[verb](scope, by_verb[verb])
    return later

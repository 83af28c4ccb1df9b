"""Carry out a batch of commands in one transaction, and answer each of them.

Owns the order: all tasks of the batch are locked first, sorted; then the commands about them, then the submits, then
the claims, which wait for nobody. A task gets its commands in the order they arrived.
"""

from __future__ import annotations

import random
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
    specs = {i: intern(store.names, c, names_ttl_s) for i, c in enumerate(commands) if isinstance(c, Submit)}
    with store.transaction() as tx:
        scope = Scope(tx, len(commands), chance)
        within(scope, commands, specs)
    return scope.verdicts


def within(scope: Scope, commands: Sequence[Command], specs: dict[int, Spec]) -> None:
    about: list[tuple[int, TaskCommand]] = []
    claims: list[tuple[int, Claim]] = []
    for i, c in enumerate(commands):
        if isinstance(c, TaskCommand):
            about.append((i, c))
        elif isinstance(c, Claim):
            claims.append((i, c))
    if about:
        _about_tasks(scope, about)
    new = [(i, c, spec) for i, spec in specs.items() if isinstance(c := commands[i], Submit)]
    if new:
        submit(scope, new)
    if claims:
        claim(scope, claims)


def _about_tasks(scope: Scope, about: list[tuple[int, TaskCommand]]) -> None:
    left = _keyed(scope.tx, about)
    scope.rows = {row.key: row for row in scope.tx.lock(sorted({key for _, _, key in left}))}
    while left:
        left = _round(scope, left)


def _keyed(tx: Tx, about: list[tuple[int, TaskCommand]]) -> list[tuple[int, TaskCommand, int]]:
    """Each command with the key of its task; 0 for a task that does not exist."""
    ids = {c.task for _, c in about if isinstance(c.task, str)}
    known: dict[str, int] = dict(tx.query("keys_of", ids=sorted(ids))) if ids else {}
    return [(i, c, known.get(c.task, 0) if isinstance(c.task, str) else c.task) for i, c in about]


def _round(scope: Scope, items: list[tuple[int, TaskCommand, int]]) -> list[tuple[int, TaskCommand, int]]:
    """Carry out the first command about each task; the others have to wait for it and are returned.

    A statement that names a task twice would apply one of the two silently.
    """
    rows, namespaces = scope.rows, {c.namespace: scope.tx.names.namespace(c.namespace) for _, c, _ in items}
    by_verb: dict[str, list[tuple[int, TaskCommand, Row]]] = {}
    seen: set[int] = set()
    later: list[tuple[int, TaskCommand, int]] = []
    for item in items:
        i, command, key = item
        row = rows.get(key)
        if row is None or row.ns != namespaces[command.namespace]:
            scope.answer(i, Verdict(error=NotFound(f"there is no task {command.task}", task=command.task)))
        elif key in seen:
            later.append(item)
        else:
            seen.add(key)
            by_verb.setdefault(command.verb, []).append((i, command, row))
    scope.again = {key for _, _, key in later}
    for verb in sorted(by_verb):
        HANDLERS[verb](scope, by_verb[verb])
    return later

"""Carry out a batch of commands in one transaction, and answer each of them.

Owns the order: all tasks of the batch are locked first, sorted; then the commands about them, then the submits, then
the claims, which wait for nobody. A task gets its commands in the order they arrived.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import groupby
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
    about = [(i, c) for i, c in enumerate(commands) if isinstance(c, TaskCommand)]
    if about:
        _about_tasks(scope, about)
    new = [(i, c, specs[i]) for i, c in enumerate(commands) if isinstance(c, Submit)]
    if new:
        submit(scope, new)
    claims = [(i, c) for i, c in enumerate(commands) if isinstance(c, Claim)]
    if claims:
        claim(scope, claims)


def _about_tasks(scope: Scope, about: list[tuple[int, TaskCommand]]) -> None:
    keys = _keys(scope.tx, about)
    scope.rows = {row.key: row for row in scope.tx.lock(sorted(set(keys.values())))}
    left = about
    while left:
        now, left = _one_for_each_task(left, keys)
        _round(scope, now, keys)


def _keys(tx: Tx, about: list[tuple[int, TaskCommand]]) -> dict[int, int]:
    """The key of each command's task; commands about unknown tasks have none."""
    keys = {i: c.task for i, c in about if isinstance(c.task, int)}
    ids = {c.task for _, c in about if isinstance(c.task, str)}
    if ids:
        known: dict[str, int] = dict(tx.query("keys_of", ids=sorted(ids)))
        keys.update({i: known[c.task] for i, c in about if isinstance(c.task, str) and c.task in known})
    return keys


def _one_for_each_task(
    about: list[tuple[int, TaskCommand]], keys: dict[int, int]
) -> tuple[list[tuple[int, TaskCommand]], list[tuple[int, TaskCommand]]]:
    """Split off the first command about each task: a statement that names a task twice would apply one silently."""
    seen: set[int] = set()
    now: list[tuple[int, TaskCommand]] = []
    later: list[tuple[int, TaskCommand]] = []
    for item in about:
        key = keys.get(item[0], -1 - item[0])
        (later if key in seen else now).append(item)
        seen.add(key)
    return now, later


def _round(scope: Scope, items: list[tuple[int, TaskCommand]], keys: dict[int, int]) -> None:
    found = []
    for i, command in items:
        row = scope.rows.get(keys.get(i, 0))
        if row is None or row.ns != scope.tx.names.namespace(command.namespace):
            scope.answer(i, Verdict(error=NotFound(f"there is no task {command.task}", task=command.task)))
        else:
            found.append((i, command, row))
    for verb, work in groupby(sorted(found, key=_verb), key=_verb):
        HANDLERS[verb](scope, list(work))


def _verb(item: tuple[int, TaskCommand, Row]) -> str:
    return item[1].verb

"""Carry out a batch of commands in one transaction, and answer each of them.

Owns the order: all flows of the batch are locked first, then all its tasks, sorted; then the commands about them, then
the submits, then the claims, which wait for nobody. A task gets its commands in the order they arrived, and so does a
flow with all that is in it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from onetray.config import Limits
from onetray.domain.commands import Claim, Command, Report, Succeed, TaskCommand
from onetray.domain.errors import GuardFailed, NotFound
from onetray.domain.flow_commands import FlowCommand, SubmitFlow
from onetray.domain.task import Verdict
from onetray.domain.verbs import VERBS
from onetray.engine import control_verbs, report_verbs, system_verbs
from onetray.engine.batch_context import BatchContext
from onetray.engine.claim import claim
from onetray.engine.fast_succeed import plain_successes, succeed_without_reading, succeeded
from onetray.engine.flows import verbs
from onetray.engine.flows.advance import settle
from onetray.engine.flows.create import Drafts, intern_flows
from onetray.engine.submit import Specs, intern, submit, submit_alone
from onetray.store.base import Store, Tx
from onetray.store.rows import TaskRow

HANDLERS: dict[str, Callable[[BatchContext, list[tuple[int, Any, TaskRow]]], None]] = {
    **report_verbs.HANDLERS, **control_verbs.HANDLERS, **system_verbs.HANDLERS,
}  # fmt: skip
"""What carries out each command about a task. Those about flows are in flows/verbs.py."""
for _verb, _kind in VERBS.items():
    if issubclass(_kind, TaskCommand | FlowCommand) and _verb not in HANDLERS | verbs.HANDLERS:
        raise RuntimeError(f"nobody carries out {_verb}: name its handler in the HANDLERS of its file")


class FlowUnlocked(Exception):
    """A report named the wrong flow, or none, for a task of a flow: the batch is run again with the right ones."""


def carry_out(
    store: Store, commands: Sequence[Command], chance: random.Random, names_ttl_s: float, limits: Limits
) -> list[Verdict]:
    """One transaction for all of them: everything that was accepted is durable, or nothing was."""
    lone = submit_alone(store, commands, names_ttl_s)
    if lone is not None:
        return lone
    unseen = plain_successes(commands)
    if unseen is not None:
        verdicts = _unseen(store, commands, unseen, chance, limits)
        if verdicts is not None:
            return verdicts
    try:
        return _carry_out(store, commands, chance, names_ttl_s, limits, trusting=True)
    except FlowUnlocked:
        return _carry_out(store, commands, chance, names_ttl_s, limits, trusting=False)


def _unseen(
    store: Store, commands: Sequence[Command], successes: list[Succeed], chance: random.Random, limits: Limits
) -> list[Verdict] | None:
    """Write successes without a look at them, and carry out the claims beside them; None if one needs a look."""
    ns = {name: store.names.namespace(name) for name in {c.namespace for c in successes}}
    try:
        with store.transaction() as tx:
            succeed_without_reading(tx, successes, ns)
            batch = BatchContext(tx, len(commands), chance, limits)
            if len(commands) > len(successes):
                claim(batch, _claims(commands))
    except GuardFailed:
        return None
    claimed = batch.verdicts
    return [succeeded(c) if type(c) is Succeed else claimed[i] for i, c in enumerate(commands)]


def _claims(commands: Sequence[Command]) -> list[tuple[int, Claim]]:
    return [(i, c) for i, c in enumerate(commands) if isinstance(c, Claim)]


def _carry_out(
    store: Store,
    commands: Sequence[Command],
    chance: random.Random,
    names_ttl_s: float,
    limits: Limits,
    trusting: bool,
) -> list[Verdict]:
    specs = intern(store.names, commands, names_ttl_s)
    drafts = intern_flows(store.names, commands, names_ttl_s)
    with store.transaction() as tx:
        batch = BatchContext(tx, len(commands), chance, limits)
        batch.drafts = drafts
        within(batch, commands, specs, drafts, trusting)
    return batch.verdicts


def within(
    batch: BatchContext, commands: Sequence[Command], specs: Specs, drafts: Drafts, trusting: bool = True
) -> None:
    about = [(i, c) for i, c in enumerate(commands) if isinstance(c, TaskCommand | FlowCommand)]
    if about:
        _about(batch, about, drafts, trusting)
        batch.outcomes.write()
    if specs:
        submit(batch, commands, specs)
    if drafts.flows:
        verbs.submit_flows(batch, [(i, c) for i in drafts.flows if isinstance(c := commands[i], SubmitFlow)], drafts)
    if claims := _claims(commands):
        claim(batch, claims)
        if specs and not about and not drafts.flows and not batch.entered:
            # All that was submitted is claimed already: nobody need look for it.
            batch.tx.work.clear()


About = list[tuple[int, TaskCommand | FlowCommand]]


def _about(batch: BatchContext, about: About, drafts: Drafts, trusting: bool) -> None:
    """Lock all that the commands are about, then carry them out: a command about a flow comes between the others."""
    tasks = [(i, c) for i, c in about if isinstance(c, TaskCommand)]
    keys, flow_keys = _keys(batch.tx, tasks, trusting)
    places = _places(batch.tx, [c for _, c in about if isinstance(c, FlowCommand)])
    flow_keys |= {flow for _, flow in places.values()}
    if flow_keys:
        batch.locked.lock(sorted(flow_keys))
    if keys:
        rows = batch.tx.lock(sorted(set(keys.values())))
        batch.rows = {row.key: row for row in rows}
        if flow_keys or any(row.stage is not None for row in rows):
            _must_be_locked(batch, rows)
    if len(tasks) == len(about):
        _tasks(batch, tasks, keys)
        return
    batch.keeps_all = True
    waiting: list[tuple[int, TaskCommand]] = []
    for i, command in about:
        if isinstance(command, TaskCommand):
            waiting.append((i, command))
        else:
            _tasks(batch, waiting, keys)
            waiting = []
            _flow(batch, i, command, places, drafts)
    _tasks(batch, waiting, keys)


def _must_be_locked(batch: BatchContext, rows: list[TaskRow]) -> None:
    for row in rows:
        if row.stage is not None and row.job not in batch.locked.flows:
            raise FlowUnlocked
    batch.locked.load(rows)


def _flow(
    batch: BatchContext, i: int, command: FlowCommand, places: dict[tuple[bool, str], tuple[int, int]], drafts: Drafts
) -> None:
    key, flow_key = places.get((command.of_stage, command.flow), (0, 0))
    flow = batch.locked.flows.get(flow_key)
    if flow is None or flow.ns != batch.tx.names.namespace(command.namespace):
        what = "stage" if command.of_stage else "flow"
        batch.answer(i, Verdict(error=NotFound(f"there is no {what} {command.flow}", **{what: command.flow})))
        return
    stage = batch.locked.stage(key) if command.of_stage else None
    verbs.carry_out_flow_command(batch, i, command, flow, stage, drafts)


def _places(tx: Tx, commands: list[FlowCommand]) -> dict[tuple[bool, str], tuple[int, int]]:
    """The keys of the flows and stages that the commands name, each with its flow's."""
    places: dict[tuple[bool, str], tuple[int, int]] = {}
    for of_stage, statement in ((False, "flows_of_ids"), (True, "flows_of_stages")):
        ids = sorted({c.flow for c in commands if c.of_stage == of_stage})
        if ids:
            places |= {(of_stage, id_): (key, flow) for id_, key, flow in tx.query(statement, ids=ids)}
    return places


def _tasks(batch: BatchContext, about: list[tuple[int, TaskCommand]], keys: dict[int | str, int]) -> None:
    if not about:
        return
    while about:
        about = _round(batch, about, keys)
    settle(batch)


def _keys(tx: Tx, about: list[tuple[int, TaskCommand]], trusting: bool) -> tuple[dict[int | str, int], set[int]]:
    """The key of each task, by what the commands call it, and the flows they belong to. Unknown tasks have no key."""
    keys: dict[int | str, int] = {c.task: c.task for _, c in about if isinstance(c.task, int)}
    flow_keys: set[int] = set()
    unsure = []
    for _, c in about:
        if isinstance(c.task, int):
            if trusting and isinstance(c, Report) and c.flow is not None:
                flow_keys.add(c.flow)
            else:
                unsure.append(c.task)
    ids = {c.task for _, c in about if isinstance(c.task, str)}
    if ids:
        for id_, key, job in tx.query("keys_of", ids=sorted(ids)):
            keys[id_] = key
            if job != key:
                flow_keys.add(job)
    if unsure:
        flow_keys |= {job for (job,) in tx.query("flows_of_tasks", keys=sorted(set(unsure)))}
    flow_keys.discard(0)
    return keys, flow_keys


def _round(
    batch: BatchContext, about: list[tuple[int, TaskCommand]], keys: dict[int | str, int]
) -> list[tuple[int, TaskCommand]]:
    """Carry out the first command about each task; the others have to wait for it and are returned.

    A statement that names a task twice would apply one of the two silently.
    """
    rows, namespaces = batch.rows, {c.namespace: batch.tx.names.namespace(c.namespace) for _, c in about}
    by_verb: dict[str, list[tuple[int, TaskCommand, TaskRow]]] = defaultdict(list)
    seen: set[int] = set()
    later: list[tuple[int, TaskCommand]] = []
    for item in about:
        i, command = item
        row = rows.get(keys.get(command.task, 0))
        if row is None or row.ns != namespaces[command.namespace]:
            batch.answer(i, Verdict(error=NotFound(f"there is no task {command.task}", task=command.task)))
        elif row.key in seen:
            later.append(item)
        else:
            seen.add(row.key)
            by_verb[command.verb].append((i, command, row))
    batch.again = {keys[command.task] for _, command in later}
    for verb in sorted(by_verb):
        HANDLERS[verb](batch, by_verb[verb])
    return later

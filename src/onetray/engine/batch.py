"""Run a batch of commands in one transaction, with a verdict for each.

Owns the order: lock the windows of its submits, all its flows, then all its tasks, each sorted; run the commands about
them, then the submits, then the claims, which never wait for locks. Commands about one task, or one flow, run in the
order of their arrival.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from onetray.config import Limits
from onetray.domain.commands import Claim, Command, Control, Report, Succeed, TaskCommand
from onetray.domain.errors import GuardFailed, NotFound
from onetray.domain.flow_commands import FlowCommand, SubmitFlow
from onetray.domain.lifecycle import TASK
from onetray.domain.machine import USER
from onetray.domain.task import Receipt, Verdict
from onetray.domain.verbs import VERBS
from onetray.engine import control_verbs, report_verbs, system_verbs
from onetray.engine.batch_context import BatchContext, FlowUnlocked
from onetray.engine.claim import claim
from onetray.engine.fast_claim import claim_one, claim_one_within
from onetray.engine.fast_submit import submit_one, submit_several
from onetray.engine.fast_succeed import plain_successes, succeed_without_reading, success_verdict
from onetray.engine.flows import verbs
from onetray.engine.flows.advance import settle
from onetray.engine.flows.create import Drafts, intern_flows
from onetray.engine.refusals import NO_REDRIVE, is_uncertain, refuse_redrive
from onetray.engine.slots import LaneGone
from onetray.engine.submit import Specs, intern, lock_windows_of, submit
from onetray.engine.tally import Tally
from onetray.store.base import Store, Tx
from onetray.store.rows import TaskRow

HANDLERS: dict[str, Callable[[BatchContext, list[tuple[int, Any, TaskRow]]], None]] = {
    **report_verbs.HANDLERS, **control_verbs.HANDLERS, **system_verbs.HANDLERS,
}  # fmt: skip
"""The functions for the commands about tasks, by verb. Those about flows are in flows/verbs.py."""
for _verb, _command in VERBS.items():
    if issubclass(_command, TaskCommand | FlowCommand) and _verb not in HANDLERS | verbs.HANDLERS:
        raise RuntimeError(f"{_verb} has no handler: add one to the HANDLERS of its file")


def run_batch(
    store: Store, commands: Sequence[Command], rng: random.Random, names_ttl_s: float, limits: Limits, tally: Tally
) -> list[Verdict]:
    """Run the commands in one transaction, by the fastest path that fits them."""
    verdicts = _run_one(store, commands, rng, names_ttl_s, limits)
    if verdicts is None:
        verdicts = submit_several(store, commands, names_ttl_s)
    if verdicts is not None:
        return verdicts
    successes = plain_successes(commands)
    if successes is not None:
        verdicts = _run_plain_successes(store, commands, successes, rng, limits)
        if verdicts is not None:
            return verdicts
    trust_reports, flows, gone = True, set[int](), set[int]()
    while True:
        try:
            verdicts = _run_commands(store, commands, rng, names_ttl_s, limits, trust_reports, flows)
        except FlowUnlocked as e:
            trust_reports, flows = False, flows | e.flows
        except LaneGone as e:
            if e.lanes <= gone:
                raise
            gone |= e.lanes
            store.names.lanes.forget(e.lanes)
        else:
            # The paths above have nothing that is counted.
            tally.count(commands, verdicts)
            return verdicts


def _run_plain_successes(
    store: Store, commands: Sequence[Command], successes: list[Succeed], rng: random.Random, limits: Limits
) -> list[Verdict] | None:
    """Run successes on the fast path, and the claims of the batch. Returns None if one needs the normal path."""
    ns = {name: store.names.namespace(name) for name in {c.namespace for c in successes}}
    try:
        with store.transaction() as tx:
            batch = BatchContext(tx, len(commands), rng, limits)
            succeed_without_reading(tx, successes, ns, batch.limit_changes)
            if len(commands) > len(successes):
                claim(batch, _claims(commands))
            batch.limit_changes.write()
    except GuardFailed:
        return None
    claimed = batch.verdicts
    return [
        success_verdict(c.fence or 0, c.version + 2) if type(c) is Succeed else claimed[i]
        for i, c in enumerate(commands)
    ]


def _run_one(
    store: Store, commands: Sequence[Command], rng: random.Random, names_ttl_s: float, limits: Limits
) -> list[Verdict] | None:
    """Run one submit, one claim, or a submit with a piggyback claim: what stands between a job and an idle worker.

    These need none of the preparations for other commands. Returns None for any other batch.
    """
    last = commands[-1] if 0 < len(commands) <= 2 else None
    if len(commands) == 1 and type(last) is Claim and not last.start:
        found = claim_one(store, last)
        if found is not None:
            return [found]
        with store.transaction() as tx:
            return [claim_one_within(tx, last) or _claim_alone(tx, last, rng, limits)]
    if len(commands) == 2 and type(last) is Claim and not last.start:
        claimed = _SubmitAndClaim(last, rng, limits)
        verdict = submit_one(store, commands[0], names_ttl_s, claimed.run)
        return None if verdict is None else [verdict, claimed.verdict]
    verdict = submit_one(store, commands[0], names_ttl_s) if len(commands) == 1 else None
    return None if verdict is None else [verdict]


def _claim_alone(tx: Tx, command: Claim, rng: random.Random, limits: Limits, submitted: Iterable[int] = ()) -> Verdict:
    batch = BatchContext(tx, 1, rng, limits)
    batch.unclaimed_new.update(submitted)
    _claim_and_forget(batch, [(0, command)], is_known=bool(batch.unclaimed_new))
    batch.limit_changes.write()
    return batch.verdicts[0]


class _SubmitAndClaim:
    """A claim in the transaction of one submit."""

    def __init__(self, command: Claim, rng: random.Random, limits: Limits) -> None:
        self._command, self._rng, self._limits = command, rng, limits
        self.verdict = Verdict(error=NotFound())

    def run(self, tx: Tx, submitted: int) -> None:
        found = claim_one_within(tx, self._command)
        if found is None:
            self.verdict = _claim_alone(tx, self._command, self._rng, self._limits, [submitted])
        else:
            # It was the only task, so it is the submitted one: no worker need be woken.
            self.verdict = found
            tx.work.clear()


def _claims(commands: Sequence[Command]) -> list[tuple[int, Claim]]:
    return [(i, c) for i, c in enumerate(commands) if isinstance(c, Claim)]


def _run_commands(
    store: Store,
    commands: Sequence[Command],
    rng: random.Random,
    names_ttl_s: float,
    limits: Limits,
    trust_reports: bool,
    flows: set[int],
) -> list[Verdict]:
    specs = intern(store.names, commands, names_ttl_s)
    drafts = intern_flows(store.names, commands, names_ttl_s)
    with store.transaction() as tx:
        batch = BatchContext(tx, len(commands), rng, limits)
        batch.drafts = drafts
        run_in_batch(batch, commands, specs, drafts, trust_reports, flows)
    return batch.verdicts


def run_beside(
    store: Store,
    commands: Sequence[Command],
    rng: random.Random,
    names_ttl_s: float,
    limits: Limits,
    begin: Callable[[Tx], bool],
    end: Callable[[Tx, list[Verdict]], None],
) -> list[Verdict] | None:
    """Run the commands in one transaction with what the caller reads first and writes last.

    Returns None if `begin` returns False: then nothing is done.
    """
    trust_reports, flows, gone = True, set[int](), set[int]()
    while True:
        specs = intern(store.names, commands, names_ttl_s)
        drafts = intern_flows(store.names, commands, names_ttl_s)
        try:
            with store.transaction() as tx:
                if not begin(tx):
                    return None
                batch = BatchContext(tx, len(commands), rng, limits)
                batch.drafts = drafts
                run_in_batch(batch, commands, specs, drafts, trust_reports, flows)
                end(tx, batch.verdicts)
            return batch.verdicts
        except FlowUnlocked as e:
            trust_reports, flows = False, flows | e.flows
        except LaneGone as e:
            if e.lanes <= gone:
                raise
            gone |= e.lanes
            store.names.lanes.forget(e.lanes)


def run_in_batch(
    batch: BatchContext,
    commands: Sequence[Command],
    specs: Specs,
    drafts: Drafts,
    trust_reports: bool = True,
    flows: Collection[int] = (),
) -> None:
    claims = _claims(commands)
    flow_keys = set(flows)
    debounced = lock_windows_of(batch, commands, specs) if specs else []
    batch.runs_again = bool(flows)
    about = [(i, c) for i, c in enumerate(commands) if isinstance(c, TaskCommand | FlowCommand)]
    if about:
        _run_commands_about(batch, about, drafts, trust_reports, flow_keys, debounced)
        batch.outcomes.write()
    elif flow_keys:
        batch.locked.lock(sorted(flow_keys))
    if debounced and not about:
        batch.rows = {row.key: row for row in batch.tx.lock(debounced)}
    if specs:
        submit(batch, commands, specs)
    if drafts.flows:
        verbs.submit_flows(batch, [(i, c) for i in drafts.flows if isinstance(c := commands[i], SubmitFlow)], drafts)
    batch.limit_changes.write_lanes()
    if claims:
        _claim_new(batch, claims, only_submits=bool(specs) and not about and not drafts.flows)
    batch.limit_changes.write()


def _claim_new(batch: BatchContext, claims: list[tuple[int, Claim]], only_submits: bool) -> None:
    """Run the claims. If they take all that this transaction has made claimable, no worker need be woken."""
    # What reports make claimable is known only if it is all of opened stages.
    counted, uncounted, anywhere = batch.tx.work.claimable()
    is_known = only_submits or (sum(counted.values()) == len(batch.unclaimed_new) and not uncounted and not anywhere)
    _claim_and_forget(batch, claims, is_known)


def _claim_and_forget(batch: BatchContext, claims: list[tuple[int, Claim]], is_known: bool) -> None:
    """Run the claims. If they take all the new tasks, and those are known, there is no work to announce."""
    work = batch.tx.work
    before = work.claimable()
    claim(batch, claims)
    # A claim in a queue with limits may itself let others claim: that is work, too.
    if is_known and not batch.unclaimed_new and work.claimable() == before:
        work.clear()


TaskCommands = list[tuple[int, TaskCommand]]
FlowKeys = dict[tuple[bool, str], tuple[int, int]]
"""By whether it is a stage, and its id: the key of a flow or stage, and the key of its flow."""


def _run_commands_about(
    batch: BatchContext,
    about: list[tuple[int, TaskCommand | FlowCommand]],
    drafts: Drafts,
    trust_reports: bool,
    more_flows: set[int],
    more_tasks: list[int],
) -> None:
    """Lock the tasks and flows of the commands, then run them in order: a flow command runs between the others."""
    tasks = [(i, c) for i, c in about if isinstance(c, TaskCommand)]
    keys, flow_keys = _find_tasks(batch.tx, tasks, trust_reports)
    flows_by_id = _find_flows_and_stages(batch.tx, [c for _, c in about if isinstance(c, FlowCommand)])
    flow_keys |= {flow for _, flow in flows_by_id.values()} | more_flows
    task_keys = sorted({*keys.values(), *more_tasks})
    if flow_keys and not task_keys:
        batch.locked.lock(sorted(flow_keys))
    if task_keys:
        rows = batch.locked.lock_with_tasks(sorted(flow_keys), task_keys) if flow_keys else batch.tx.lock(task_keys)
        batch.rows = {row.key: row for row in rows}
        if flow_keys or any(row.stage is not None for row in rows):
            _require_locked(batch, rows)
    if len(tasks) == len(about):
        _run_task_commands(batch, tasks, keys)
        return
    batch.keep_all_rows = True
    waiting: TaskCommands = []
    for i, command in about:
        if isinstance(command, TaskCommand):
            waiting.append((i, command))
        else:
            _run_task_commands(batch, waiting, keys)
            waiting = []
            _run_flow_command(batch, i, command, flows_by_id, drafts)
    _run_task_commands(batch, waiting, keys)


def _require_locked(batch: BatchContext, rows: list[TaskRow]) -> None:
    for row in rows:
        if row.stage is not None and row.job not in batch.locked.flows:
            raise FlowUnlocked
    batch.locked.load(rows)


def _run_flow_command(batch: BatchContext, i: int, command: FlowCommand, flows_by_id: FlowKeys, drafts: Drafts) -> None:
    key, flow_key = flows_by_id.get((command.of_stage, command.flow), (0, 0))
    flow = batch.locked.flows.get(flow_key)
    if flow is None or flow.deleted_at is not None or flow.ns != batch.tx.names.namespace(command.namespace):
        entity = "stage" if command.of_stage else "flow"
        batch.answer(i, Verdict(error=NotFound(f"there is no {entity} {command.flow}", **{entity: command.flow})))
        return
    stage = batch.locked.stage(key) if command.of_stage else None
    verbs.run_flow_command(batch, i, command, flow, stage, drafts)


def _find_flows_and_stages(tx: Tx, commands: list[FlowCommand]) -> FlowKeys:
    flows_by_id: FlowKeys = {}
    for of_stage, statement in ((False, "flows_of_ids"), (True, "flows_of_stages")):
        ids = sorted({c.flow for c in commands if c.of_stage == of_stage})
        if ids:
            flows_by_id |= {(of_stage, id_): (key, flow) for id_, key, flow in tx.query(statement, ids=ids)}
    return flows_by_id


def _run_task_commands(batch: BatchContext, about: TaskCommands, keys: dict[int | str, int]) -> None:
    if not about:
        return
    controls = [(i, c) for i, c in about if isinstance(c, Control)]
    while about:
        about = _run_round(batch, about, keys)
    settle(batch)
    if controls:
        _note_refusals(batch, controls, keys)


def _note_refusals(batch: BatchContext, controls: list[tuple[int, Control]], keys: dict[int | str, int]) -> None:
    """Leave out of the receipts of ended tasks that they can be redriven, if they cannot."""
    ended: dict[int, int] = {}
    for i, command in controls:
        receipt, row = batch.verdicts[i].value, batch.rows.get(keys.get(command.task, 0))
        if (
            row is None
            or command.actor != USER
            or not isinstance(receipt, Receipt)
            or receipt.state not in TASK.terminal
        ):
            continue
        key, job = row.key, row.job
        if receipt.id is not None:
            # A repeated redrive answers about the successor.
            ((_, key, job),) = batch.tx.query("keys_of", ids=[receipt.id])
        if is_uncertain(receipt.state, is_member=key != job):
            ended[i] = key
    refused = refuse_redrive(batch.tx.query, sorted(set(ended.values())))
    for i, key in ended.items():
        if key in refused:
            batch.answer(i, Verdict(batch.verdicts[i].value._replace(not_now=NO_REDRIVE)))


def _find_tasks(tx: Tx, about: TaskCommands, trust_reports: bool) -> tuple[dict[int | str, int], set[int]]:
    """The key of each task, by the key or id in its commands, and the flows to lock. Unknown ids have no key."""
    keys: dict[int | str, int] = {c.task: c.task for _, c in about if isinstance(c.task, int)}
    flow_keys: set[int] = set()
    without_flow = []
    for _, c in about:
        if isinstance(c.task, int):
            if trust_reports and isinstance(c, Report) and c.flow is not None:
                flow_keys.add(c.flow)
            else:
                without_flow.append(c.task)
    ids = {c.task for _, c in about if isinstance(c.task, str)}
    if ids:
        for id_, key, job in tx.query("keys_of", ids=sorted(ids)):
            keys[id_] = key
            if job != key:
                flow_keys.add(job)
    if without_flow:
        flow_keys |= {job for (job,) in tx.query("flows_of_tasks", keys=sorted(set(without_flow)))}
    flow_keys.discard(0)
    return keys, flow_keys


def _run_round(batch: BatchContext, about: TaskCommands, keys: dict[int | str, int]) -> TaskCommands:
    """Run the first command about each task. Returns the others, for the next round.

    A statement that names a task twice would silently apply only one of the two.
    """
    rows, namespaces = batch.rows, {c.namespace: batch.tx.names.namespace(c.namespace) for _, c in about}
    by_verb: dict[str, list[tuple[int, TaskCommand, TaskRow]]] = defaultdict(list)
    seen: set[int] = set()
    postponed: TaskCommands = []
    for item in about:
        i, command = item
        row = rows.get(keys.get(command.task, 0))
        if row is None or row.ns != namespaces[command.namespace] or batch.locked.is_deleted(row):
            batch.answer(i, Verdict(error=NotFound(f"there is no task {command.task}", task=command.task)))
        elif row.key in seen:
            postponed.append(item)
        else:
            seen.add(row.key)
            by_verb[command.verb].append((i, command, row))
    batch.with_more_commands = {keys[command.task] for _, command in postponed}
    for verb in sorted(by_verb):
        HANDLERS[verb](batch, by_verb[verb])
    return postponed

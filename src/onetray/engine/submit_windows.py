"""Debounced and throttled submits: those of one kind and key share a job within a window of time.

Owns the windows. A batch locks them before all other rows, and the debounced tasks together with the tasks of its other
commands, so that two batches cannot deadlock. Idempotency keys come first: a repeated submit changes no window.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from onetray.domain.clock import SECOND
from onetray.domain.commands import Submit
from onetray.domain.lifecycle import QUEUED
from onetray.domain.limits import lane_value
from onetray.domain.task import Receipt, Verdict
from onetray.engine.pending_writes import DEBOUNCED, PendingWrites, actor, event_detail
from onetray.store.base import Tx
from onetray.store.lanes import add_lanes_in
from onetray.store.rows import TaskRow, WindowRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext
    from onetray.engine.submit import Spec

DEBOUNCE, THROTTLE = "debounce", "throttle"
At = tuple[int, str, str]
"""The kind, the mode and the key of a window."""
W = TypeVar("W", bound=tuple[int, Any, Any])


class Replacement(NamedTuple):
    """A submit that has replaced the payload of a debounced job."""

    command: Submit
    was: int
    run_at: int


class SubmitWindow:
    """A locked window, and what the batch does with it."""

    def __init__(self, row: WindowRow) -> None:
        self.row = row
        self.job, self.id = row.job, row.id
        self.opened_at, self.until_at, self.replaced = row.opened_at, row.until_at, row.replaced
        self.spec: Spec | None = None
        """The new task that the batch submits for it."""
        self.task: TaskRow | None = None
        """The locked task whose payload the batch replaces."""
        self.replacements: list[Replacement] = []

    def open(self, spec: Spec, now: int, until_at: int) -> None:
        """Make a new task the job of this window."""
        self.spec, self.task = spec, None
        self.job, self.id = spec.key, spec.id
        self.opened_at, self.until_at, self.replaced = now, until_at, 0

    @property
    def at(self) -> At:
        return self.row.kind, self.row.mode, self.row.key

    @property
    def has_changed(self) -> bool:
        return self.spec is not None or bool(self.replacements)


def lock_windows(batch: BatchContext, submits: list[tuple[Submit, int]]) -> list[int]:
    """Lock the windows of submits with their kinds. Returns the tasks that may be replaced, to lock them, too."""
    columns = _columns(sorted({_window_of(command, kind) for command, kind in submits}))
    batch.tx.batch("lock_windows", columns)
    windows = [SubmitWindow(row) for row in batch.tx.batch("windows_held", columns)]
    batch.windows = {window.at: window for window in windows}
    return sorted({w.job for w in windows if w.row.mode == DEBOUNCE and w.row.state == QUEUED})


def take_windows(batch: BatchContext, work: list[W]) -> list[W]:
    """Set the verdicts of submits that get the job of their window. Returns the others, which are new jobs."""
    if not batch.windows:
        return work
    fresh, linked = [], []
    for w in work:
        i, command, spec = w
        if not isinstance(command, Submit) or not command.has_window:
            fresh.append(w)
            continue
        window = batch.windows[_window_of(command, spec.kind)]
        verdict = (_debounce if command.debounce_s is not None else _throttle)(batch, window, command, spec)
        if verdict is None:
            fresh.append(w)
        else:
            batch.answer(i, verdict)
            if command.idempotency_key is not None:
                linked.append((spec.kind, command.idempotency_key, window.job))
    if linked:
        columns = zip(("kind", "key", "job"), map(list, zip(*linked, strict=True)), strict=True)
        batch.tx.batch("link_key", dict(columns))
    return fresh


def _throttle(batch: BatchContext, window: SubmitWindow, command: Submit, spec: Spec) -> Verdict | None:
    assert command.throttle_s is not None
    now = batch.tx.now
    if window.id is None or window.until_at <= now:
        window.open(spec, now, now + int(command.throttle_s * SECOND))
        return None
    row = batch.rows.get(window.job)
    state, fence, version = (QUEUED, 1, 1) if window.spec else (window.row.state, window.row.fence, window.row.version)
    if row is not None:
        state, fence, version = row.state, row.fence, row.version
    return Verdict(
        Receipt(window.id, state or "", fence or 0, version or 0, command.actor, repeated=True, window="throttled")
    )


def _debounce(batch: BatchContext, window: SubmitWindow, command: Submit, spec: Spec) -> Verdict | None:
    now = batch.tx.now
    row = None if window.spec else batch.rows.get(window.job)
    if window.spec is None and not _is_waiting(row):
        spec.run_at = _quiet_at(command, now, now)
        window.open(spec, now, spec.run_at)
        return None
    run_at, was = _quiet_at(command, now, window.opened_at), window.until_at
    if window.spec is not None:
        # Its lane follows from the payload: it is found when the task is written.
        window.spec.payload, window.spec.run_at, window.spec.lane = spec.payload, run_at, None
    elif row is not None:
        was = row.run_at
        window.task = batch.update_row(row._replace(run_at=run_at))
    window.until_at, window.replaced = run_at, window.replaced + 1
    window.replacements.append(Replacement(command, was, run_at))
    version = 1 if row is None else row.version
    return Verdict(Receipt(window.id, QUEUED, 1, version, command.actor, repeated=True, window="debounced"))


def _is_waiting(row: TaskRow | None) -> bool:
    """Whether the task was never claimed: each return to the queue raises its fence."""
    return row is not None and row.state == QUEUED and row.fence == 1


def _quiet_at(command: Submit, now: int, opened_at: int) -> int:
    """When the job runs if no further submit comes."""
    assert command.debounce_s is not None
    at = now + int(command.debounce_s * SECOND)
    if command.debounce_max_s is not None:
        at = min(at, opened_at + int(command.debounce_max_s * SECOND))
    return max(now, at)


def forget_windows(batch: BatchContext, keys: Collection[int]) -> None:
    """Leave the windows of new tasks as they were: these are not written after all."""
    batch.windows = {
        at: SubmitWindow(window.row) if window.spec is not None and window.job in keys else window
        for at, window in batch.windows.items()
    }


def write_windows(batch: BatchContext) -> None:
    """Write the windows, and the replaced payloads with their events, after the new tasks."""
    if not batch.windows:
        return
    windows = [batch.windows[at] for at in sorted(batch.windows)]
    unused = [window.at for window in windows if not window.job]
    if unused:
        batch.tx.batch("drop_window", _columns(unused))
    _save(batch.tx, [window for window in windows if window.has_changed])
    writes = PendingWrites(batch)
    for window in windows:
        if window.task is not None:
            _replace(batch, writes, window.task, window.replacements[-1].command.payload_json)
    for window in windows:
        job = window.spec or window.task
        for n, replacement in enumerate(window.replacements, window.replaced - len(window.replacements) + 1):
            assert job is not None
            _note(writes, job, replacement, n)
    writes.flush()


def _save(tx: Tx, changed: list[SubmitWindow]) -> None:
    if changed:
        values = {name: [getattr(w, name) for w in changed] for name in ("job", "opened_at", "until_at", "replaced")}
        tx.batch("save_window", {**_columns([w.at for w in changed]), **values})


def _replace(batch: BatchContext, writes: PendingWrites, row: TaskRow, payload: str) -> None:
    if row.run_at <= batch.tx.now:
        batch.unclaimed_new.add(row.key)
    writes.put("delete_ready", queue=row.line, rank=-row.priority, key=row.key, kind=row.kind)
    policy = batch.policy(row)
    if policy.lane_paths:
        value = lane_value(policy.lane_paths, payload)
        row = row._replace(lane=add_lanes_in(batch.tx, row.ns, row.queue, row.kind, policy.fair_by, [value])[value])
    writes.put("replace_payload", key=row.key, payload=payload, run_at=row.run_at, lane=row.lane)
    writes.enter_queue(row)


def _note(writes: PendingWrites, job: Spec | TaskRow, replacement: Replacement, count: int) -> None:
    command = replacement.command
    writes.note(
        job, DEBOUNCED, actor(command.actor, command.actor_name), cause=command.cause, trace=command.trace,
        payload=event_detail(was=replacement.was, run_at=replacement.run_at, replaced=count),
    )  # fmt: skip


def _window_of(command: Submit, kind: int) -> At:
    if command.debounce_s is not None:
        return kind, DEBOUNCE, command.debounce_key or ""
    return kind, THROTTLE, command.throttle_key or ""


def _columns(wanted: list[At]) -> dict[str, Any]:
    return dict(zip(("kind", "mode", "key"), map(list, zip(*wanted, strict=True)), strict=True))

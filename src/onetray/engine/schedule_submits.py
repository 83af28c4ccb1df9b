"""Submit jobs of schedules on behalf of a person: one now, or those of fire times that were missed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from onetray.domain.checks import flag, time_us, whole
from onetray.domain.clock import utc_text
from onetray.domain.errors import InvalidInput, Unavailable
from onetray.domain.fire_times import Calendar
from onetray.domain.lifecycle import SCHEDULE_BACKFILLED, SCHEDULE_TRIGGERED
from onetray.domain.machine import USER
from onetray.domain.schedule import QUEUED, SUBMITTED, Backfill, ScheduledFire, spec_of
from onetray.domain.schedule_plan import STEP
from onetray.engine.pending_writes import actor
from onetray.engine.reads import act, act_showing
from onetray.engine.schedule_fires import FireKey, Fires, FireTaken, NewFire, record_schedule
from onetray.engine.schedule_reads import ScheduleReads
from onetray.engine.schedule_steps import ScheduleSteps
from onetray.explain.schedules import fire_of
from onetray.redaction.answers import without_refusal
from onetray.store.base import Tx
from onetray.store.retry_transaction import retry_transaction
from onetray.store.shown_rows import ScheduleFireRow, ScheduleRow

MAX_BACKFILL = 1_000
MAX_LOOKED_AT = 100_000
"""How many fire times of a range may have jobs before the first one that has none."""
PATIENCE = 50
"""How often a submit starts over because a janitor fires at the same time."""


class ScheduleSubmits(ScheduleReads):
    """The engine's submits for schedules, on a database."""

    def __init__(self, steps: ScheduleSteps, reads: ScheduleReads) -> None:
        super().__init__(reads.store, reads.config, reads.must_not_have_forked)
        self._steps = steps

    @act_showing(without_refusal)
    def trigger_schedule(
        self, name: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> ScheduledFire:
        """Submit the job of a schedule now, beside its calendar, even if it is paused or one of its jobs is open."""
        self._check_acting(reason, by)
        who, key = actor(USER, by), FireKey(self._free_time(self._row(name, namespace)), 1)

        def trigger() -> ScheduleFireRow:
            for _ in range(PATIENCE):
                row = self._row(name, namespace)
                for fire in self.store.read("fire_there", key=row.key, fire_at=key.fire_at, manual=1):
                    return fire
                spec = spec_of(row.body)
                submission = self._steps.submission(spec, row, key, f"schedule {name}, triggered by {who}", reason)
                if submission.refusal is not None:
                    raise submission.refusal

                def end(tx: Tx, written: Sequence[Fires], row: ScheduleRow = row) -> None:
                    tx.query("note_triggered", key=row.key)
                    record_schedule(tx, row.ns, name, SCHEDULE_TRIGGERED, who, reason)

                new = NewFire(key, SUBMITTED, reason, 0, int(spec.watches_jobs))
                fires = Fires(row, [new], [submission], is_watched=new.open)
                self._steps.writer.write([fires], end, by=who)
            raise Unavailable(f"the schedule {name} changes all the time: try again")

        return fire_of(retry_transaction(trigger, self.store.patience_s, lambda: self.store.is_closed))

    def _free_time(self, row: ScheduleRow) -> int:
        """Now, or a little later if somebody has triggered it at this very time."""
        at = self.store.now()
        while self.store.read("fire_there", key=row.key, fire_at=at, manual=1):
            at += 1
        return at

    @act
    def backfill_schedule(
        self,
        name: str,
        *,
        since: int,
        until: int,
        preview: bool = False,
        limit: int = 100,
        reason: str | None = None,
        by: str = "anonymous",
        namespace: str = "default",
    ) -> Backfill:
        """Submit the fire times from `since` to `until` that have no job yet, each once; with `preview`, list them.

        At most `limit` at a time: `more` says whether there are others. It goes by the current expression, up to now,
        or to the next fire time; overlaps are allowed.
        """
        self._check_acting(reason, by)
        time_us(since, "since")
        time_us(until, "until")
        whole(limit, "limit", 1, MAX_BACKFILL)
        flag(preview, "preview")
        row = self._row(name, namespace)
        if since < row.kept_from:
            raise InvalidInput(
                f"what happened before {utc_text(row.kept_from)} is forgotten: begin there", field="since"
            )
        calendar = spec_of(row.body).calendar
        wanted = self._unfired(row, calendar, since, until, limit + 1)
        times, more = wanted[:limit], len(wanted) > limit
        described = [calendar.describe(fire_at) for fire_at in times]
        if preview:
            return Backfill(name, described, 0, 0, more)
        jobs, refused = self._submit_missed(name, namespace, times, reason, actor(USER, by))
        return Backfill(name, described, len(jobs), refused, more, jobs)

    def _unfired(self, row: ScheduleRow, calendar: Calendar, since: int, until: int, limit: int) -> list[int]:
        """Fire times in a range that have no job. Those from the next one on are the janitor's."""
        until = min(until, self.store.now() if row.next_fire_at is None else row.next_fire_at - 1)
        found: list[int] = []
        after, looked_at = since - 1, 0
        while len(found) < limit:
            if looked_at >= MAX_LOOKED_AT and not found:
                raise InvalidInput(
                    f"the first {looked_at:,} fire times of the range have jobs: begin after {utc_text(after)}",
                    field="since",
                )
            times = list(islice(calendar.after(after), STEP))
            inside = [fire_at for fire_at in times if fire_at <= until]
            if not inside:
                break
            span = {"since": inside[0], "until": inside[-1], "waiting": QUEUED}
            fired = {fire_at for (fire_at,) in self.store.read("fired_between", key=row.key, **span)}
            found += [fire_at for fire_at in inside if fire_at not in fired]
            after, looked_at = inside[-1], looked_at + len(inside)
        return found[:limit]

    def _submit_missed(
        self, name: str, namespace: str, times: list[int], reason: str | None, who: str
    ) -> tuple[list[str], int]:
        jobs: list[str] = []
        refused = 0
        for start in range(0, len(times), STEP):
            part = times[start : start + STEP]
            done = retry_transaction(
                lambda part=part: self._submit_part(name, namespace, part, reason, who),  # type: ignore[misc]
                self.store.patience_s, lambda: self.store.is_closed,
            )  # fmt: skip
            jobs += [fire.job_id for fire in done if fire.job_id is not None]
            refused += sum(fire.job_id is None for fire in done)
        return jobs, refused

    def _submit_part(
        self, name: str, namespace: str, times: list[int], reason: str | None, who: str
    ) -> list[ScheduleFireRow]:
        """Submit these fire times in one transaction, or find them submitted: by this call, before its answer was lost,
        or by somebody else."""
        for _ in range(PATIENCE):
            row = self._row(name, namespace)
            span = {"since": times[0], "until": times[-1], "waiting": QUEUED}
            fired = {fire_at for (fire_at,) in self.store.read("fired_between", key=row.key, **span)}
            left = [fire_at for fire_at in times if fire_at not in fired]
            if left and not self._submit_once(row, left, reason, who):
                continue
            found = [self.store.read("fire_there", key=row.key, fire_at=fire_at, manual=0) for fire_at in times]
            return [fire for (fire,) in found]
        raise Unavailable(f"the schedule {name} changes all the time: try again")

    def _submit_once(self, row: ScheduleRow, times: list[int], reason: str | None, who: str) -> bool:
        spec = spec_of(row.body)
        cause = f"schedule {row.name}, backfilled by {who}: fire time "
        submissions = [self._steps.submission(spec, row, FireKey(at), cause + utc_text(at), reason) for at in times]
        new = [NewFire(s.key, SUBMITTED, reason, 0, int(spec.watches_jobs)) for s in submissions]

        def end(tx: Tx, written: Sequence[Fires]) -> None:
            tx.query("note_triggered", key=row.key)
            record_schedule(
                tx, row.ns, row.name, SCHEDULE_BACKFILLED, who, reason, since=times[0], until=times[-1],
                number=len(times),
            )  # fmt: skip

        fires = Fires(row, new, submissions, is_watched=int(spec.watches_jobs))
        try:
            return bool(self._steps.writer.write([fires], end, by=who, statement="insert_or_take_fires"))
        except FireTaken:
            return False

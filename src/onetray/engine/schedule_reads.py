"""Read schedules: their definitions, their next fire times, and what their last ones have come to."""

from __future__ import annotations

from onetray.domain.checks import optional_text, text, time_us, whole
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.fire_times import FireTime
from onetray.domain.schedule import Schedule, ScheduledFire, ScheduleExplanation, ScheduleSpec, spec_of
from onetray.engine.reads import DatabaseReads, read
from onetray.explain.schedules import fire_of, reasons_of, shown_schedule
from onetray.redaction.answers import of_explanation, of_fires, of_schedule, plain
from onetray.store.shown_rows import ScheduleFireRow, ScheduleRow

MAX_PREVIEW = 100


class ScheduleReads(DatabaseReads):
    """The engine's reads of schedules, on a database."""

    @read(of_schedule)
    def schedules(self, *, after: str = "", limit: int = 1000, namespace: str = "default") -> list[Schedule]:
        """The schedules of a namespace, by name, after this name."""
        text(after, "after", self.config.limits.name_chars, least=0)
        self.check(limit=limit, namespace=namespace)
        rows: list[ScheduleRow] = self.store.read("list_schedules", after=after, limit=limit, namespace=namespace)
        last = {fire.schedule: fire for fire in self.store.read("newest_fires", keys=[row.key for row in rows])}
        return [shown_schedule(row, last.get(row.key)) for row in rows]

    @read(of_schedule)
    def schedule(self, name: str, *, namespace: str = "default") -> Schedule:
        """A schedule: its definition, its next and its last fire time, and why it rests."""
        return self._with_last_fire(self._row(name, namespace))

    @read(of_fires)
    def schedule_fires(self, name: str, *, limit: int = 10, namespace: str = "default") -> list[ScheduledFire]:
        """What the last fire times of a schedule have come to, newest first."""
        self.check(limit=limit)
        return self._last_fires(self._row(name, namespace), limit)

    @read(of_explanation)
    def explain_schedule(self, name: str, *, namespace: str = "default") -> ScheduleExplanation:
        """Why a schedule fires or does not, its next fire times, and what happened to the last ten."""
        row = self._row(name, namespace)
        now, shown, waiting = self.store.now(), self._with_last_fire(row), self._waiting(row)
        reasons, upcoming = reasons_of(shown, waiting, now), []
        try:
            if row.next_fire_at is not None:
                upcoming = spec_of(row.body).calendar.preview(row.next_fire_at - 1, 5)
        except InvalidInput as e:
            # It was valid when it was added: another machine, or older data of the time zones, knows no such zone.
            reasons.insert(0, f"this process cannot fire it: {e}")
        return ScheduleExplanation(shown, reasons, upcoming, self._last_fires(row, 10))

    @read(plain)
    def preview_schedule(
        self,
        name: str | None = None,
        *,
        cron: str | None = None,
        every_s: float | None = None,
        timezone: str = "UTC",
        starts_at: int | None = None,
        since: int | None = None,
        limit: int = 10,
        namespace: str = "default",
    ) -> list[FireTime]:
        """The next fire times of a schedule, or of an expression, after `since` or now, in its time zone.

        Notes mark fire times that a change of the clock moves, or that exist twice.
        """
        whole(limit, "limit", 1, MAX_PREVIEW)
        if name is not None:
            if cron is not None or every_s is not None:
                raise InvalidInput("name a schedule, or pass cron or every_s, not both", field="cron")
            calendar = spec_of(self._row(name, namespace).body).calendar
        else:
            spec = ScheduleSpec(
                name="preview", kind="preview", cron=cron, every_s=every_s, timezone=timezone, starts_at=starts_at
            )
            spec.check(self.config.limits)
            calendar = spec.calendar
        return calendar.preview(self.store.now() if since is None else time_us(since, "since"), limit)

    def _check_acting(self, reason: str | None, by: str) -> None:
        text(by, "by", self.config.limits.name_chars)
        optional_text(reason, "reason", self.config.limits.reason_chars)
        self.must_not_have_forked()

    def _row(self, name: str, namespace: str) -> ScheduleRow:
        text(name, "name", self.config.limits.name_chars)
        rows: list[ScheduleRow] = self._read("schedule_by_name", schedule=name, namespace=namespace)
        if not rows:
            raise NotFound(f"there is no schedule {name!r} in the namespace {namespace}", schedule=name)
        return rows[0]

    def _with_last_fire(self, row: ScheduleRow) -> Schedule:
        return shown_schedule(row, next(iter(self.store.read("newest_fires", keys=[row.key])), None))

    def _last_fires(self, row: ScheduleRow, limit: int) -> list[ScheduledFire]:
        return [fire_of(fire) for fire in self.store.read("last_fires", key=row.key, limit=limit)]

    def _waiting(self, row: ScheduleRow) -> list[ScheduleFireRow]:
        return self.store.read("open_fires", key=row.key, limit=100)

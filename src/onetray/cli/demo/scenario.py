"""The steps of the demo: submit, kill a worker, redrive a dead letter, approve a stage, pause a schedule, wait.

Owns their order and the time limit. event_counts.py counts every number it prints from the event log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from onetray.cli.demo.event_counts import EventCounts
from onetray.cli.demo.workers import NAMES, DemoWorkers, WorkerDied
from onetray.cli.options import database_of
from onetray.domain.lifecycle import DEAD_LETTERED, FLOW, PARTIAL, QUEUED, RUNNING, STAGE, SUCCEEDED, WAITING
from onetray.explain.limits import CONCURRENCY_REACHED

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.cli.demo.screen import Screen
    from onetray.domain.flow import Stage
    from onetray.domain.task import Blocker, Event

T = TypeVar("T")

PARCELS = 300
SCHEDULE = "pick up parcels"
VANS, LOADED = ("north", "south"), 6
"""The vans, and how many parcels each is loaded with."""
TIMEOUT_S = 55.0
"""Keeps the whole demo under a minute."""
POLL_INTERVAL_S = 0.05
FANNED_OUT = ("classify", "neutralize")
"""Stages whose tasks run long enough to kill a worker in the middle of one."""


class Stuck(Exception):
    """A step timed out."""


class Scenario:
    def __init__(self, app: Onetray, workers: DemoWorkers, screen: Screen, folder: Path, *, ask: bool) -> None:
        self.app, self.engine, self.workers = app, database_of(app), workers
        self.screen, self.folder, self.ask = screen, folder, ask
        self.counts = EventCounts(self.engine.feed)
        self.flow: Any = None
        self.stages: dict[str, Stage] = {}
        self.rejected = False
        self._deadline = time.monotonic() + TIMEOUT_S

    def run(self) -> bool:
        """Run all steps and print a report. Returns whether everything succeeded."""
        try:
            self.submit()
            self.show_the_limit()
            self.kill_a_worker()
            self.redrive_the_dead_letter()
            self.approve()
            self.pause_the_schedule()
            self.wait_for_the_end()
        except (Stuck, WorkerDied) as e:
            self.screen.close()
            self.explain_failure(e)
            return False
        self.screen.close()
        return self.report()

    def submit(self) -> None:
        from onetray.domain.flow import Approval
        from onetray.examples.news_pipeline import NewsConfig
        from onetray.examples.parcels import deliver, load, news, ship

        self.workers.start()
        self.screen.print_line(f"two worker processes start: {', '.join(NAMES)}")
        command = news.command(NewsConfig(enable_evaluation=True, enable_auto_optimize=True, pace_s=1.0), {})
        command.stages[-1].approval = Approval(owner="editor")  # The demo shows an approval, too.
        self.flow = self.app.submit_all([command], None, news)[0]
        deliver.submit_many([{"parcel": number} for number in range(1, PARCELS + 1)])
        ship.options(priority=1).submit(parcel=0, timetable=self.timetable)
        for van in VANS:
            loads = load.options(priority=2).submit_many([{"parcel": n, "van": van} for n in range(LOADED)])
            self.counts.groups |= {job.id: van for job in loads}
        self.screen.print_line(f"submitted: the news pipeline with {len(news.stages)} stages, {PARCELS + 1} parcels")
        self.engine.put_schedule(
            SCHEDULE, kind=deliver.kind, queue=deliver.queue, payload={"parcel": PARCELS + 1},
            every_s=1, by="ann",
        )  # fmt: skip
        self.screen.print_line(f"ann adds a schedule: {SCHEDULE}, every second")
        self.screen.print_line(f"and {len(VANS) * LOADED} parcels to load into {len(VANS)} vans: 2 at once at each van")

    def show_the_limit(self) -> None:
        """Say why a parcel is not loaded yet: the limit of its van is reached. It may be too late for that."""
        (reasons,) = self.until("parcels to be loaded", self.held_back)
        for reason in reasons[:1]:
            of, facts = f"{reason.facts['value']} van", reason.facts
            workers = ", ".join(sorted({holder["worker"] for holder in facts["holders"]}))
            line = f"a limit at work: {facts['running']} of {facts['most']} slots of the {of} are taken, by {workers}"
            self.screen.print_line(line, "yellow")

    def held_back(self) -> tuple[list[Blocker]] | None:
        """Why a parcel is not loaded, or that all are; None while neither is known."""
        tasks = [self.counts.tasks.get(id_) for id_ in self.counts.groups]
        waiting = [task for task in tasks if task is None or task.state == QUEUED]
        if waiting and (last := waiting[-1]) is not None:
            reasons = [r for r in self.app.job(last.id).explain() if r.code == CONCURRENCY_REACHED]
            return (reasons,) if reasons else None
        return None if waiting else ([],)

    def kill_a_worker(self) -> None:
        victim = self.until("a worker to hold tasks of the pipeline and parcels", self.freeze_busy_worker)
        self.workers.kill(victim)
        held = [task.id for task in self.counts.held_by(victim)]
        self.screen.print_line(f"{victim} is killed (SIGKILL) while it holds {len(held)} tasks", "bold red")
        self.until("the other worker to take over the tasks", lambda: self.are_taken_over(held, victim))
        self.screen.print_line(f"its leases expired; the other worker took over {self.counts.taken_over} tasks", "bold")

    def freeze_busy_worker(self) -> str | None:
        """Stop a busy worker with SIGSTOP. Returns its name if it still is busy then."""
        name = self.busiest()
        if name is None:
            return None
        # The counts may be out of date: read them again while the worker cannot finish anything.
        self.workers.freeze(name)
        self.refresh()
        if self.busiest() == name:
            return name
        self.workers.thaw(name)
        return None

    def busiest(self) -> str | None:
        """A worker that runs both tasks of a fanned-out stage and parcels."""
        if not any(s.name in FANNED_OUT and s.state == RUNNING for s in self.stages.values()):
            return None
        held = {name: [task for task in self.counts.held_by(name) if task.state == RUNNING] for name in NAMES}
        of_flow = {name: sum(task.job_id == self.flow.id for task in tasks) for name, tasks in held.items()}
        name = max(NAMES, key=lambda name: of_flow[name])
        return name if 0 < of_flow[name] < len(held[name]) else None

    def are_taken_over(self, ids: list[str], victim: str) -> bool:
        tasks = [self.counts.tasks[id_] for id_ in ids]
        return all(task.holder != victim and task.state != QUEUED for task in tasks)

    def redrive_the_dead_letter(self) -> None:
        dead = self.until("a parcel to use up its attempts", self.dead_task)
        [letter] = self.engine.dead_letters(dead)
        error = letter.last_error["message"]
        self.screen.print_line(f"a parcel became a dead letter after {letter.attempts} attempts: {error}", "red")
        self.timetable.write_text("10:40\n")
        self.app.job(dead).retry(by="ann")
        self.screen.print_line("ann fixes the cause and redrives it: a new job, linked to the old one")

    def dead_task(self) -> str | None:
        return next((task.id for task in self.counts.tasks.values() if task.state == DEAD_LETTERED), None)

    def approve(self) -> None:
        stage = self.until("the pipeline to wait for an approval", self.waiting_stage)
        reason = self.flow.explain()[0]
        who = f"{reason.held_by} has to approve it"
        self.screen.print_line(f"stage {reason.facts['stage']!r} {reason.facts['reason']}: {who}", "yellow")
        if not self.ask or self.screen.ask(f"Approve {stage.name}?"):
            self.engine.approve_stage(stage.id, actor_name="editor")
            self.screen.print_line(f"editor approves {stage.name}")
        else:
            self.rejected = True
            self.engine.reject_stage(stage.id, actor_name="editor")
            self.screen.print_line(f"editor rejects {stage.name}: the pipeline ends without it")

    def waiting_stage(self) -> Stage | None:
        return next((stage for stage in self.stages.values() if stage.state == WAITING), None)

    def pause_the_schedule(self) -> None:
        self.engine.pause_schedule(SCHEDULE, by="ann")
        fires = [fire for fire in self.engine.schedule_fires(SCHEDULE, limit=100) if fire.job is not None]
        self.screen.print_line(f"ann pauses the schedule; fire times so far: {len(fires)}, with one job each")

    def wait_for_the_end(self) -> None:
        self.until("everything to end", lambda: self.flow.state in FLOW.terminal and not self.counts.still_open())
        self.screen.print_line(f"everything has ended; the state of the pipeline: {self.flow.state}")
        if not self.workers.stop():
            raise WorkerDied(f"the last worker did not stop cleanly; the end of the logs:\n{self.workers.log_tails()}")
        self.screen.print_line("the other worker stopped cleanly")

    @property
    def timetable(self) -> Path:
        return self.folder / "timetable.txt"

    def until(self, what: str, condition: Callable[[], T | None]) -> T:
        """Poll the condition until it returns a true value, and refresh the screen meanwhile."""
        while True:
            self.refresh()
            value = condition()
            if value:
                return value
            if time.monotonic() > self._deadline:
                raise Stuck(f"the demo timed out: it waited for {what}")
            self.workers.check()
            time.sleep(POLL_INTERVAL_S)

    def refresh(self) -> None:
        if self.flow is not None:
            self.stages = {stage.id: stage for stage in self.engine.stages(self.flow.id)}
        self.counts.read(self.print_stage_end)
        self.screen.show(self)

    def print_stage_end(self, event: Event) -> None:
        if event.type.startswith("stage.") and event.state in STAGE.terminal:
            tasks = f", tasks: {event.payload['total']}" if event.payload and "total" in event.payload else ""
            self.screen.print_line(f"stage {self.stages[event.entity_id].name} {event.state}{tasks}", "green")

    def report(self) -> bool:
        from onetray.verify import verify

        findings = verify(self.engine.store)
        self.screen.report(self.counts, self.flow.results(), findings)
        problems = self.problems()
        for problem in problems:
            self.screen.print_line(problem, "bold red")
        return not problems and not findings.violations

    def problems(self) -> list[str]:
        problems, counts = [], self.counts
        expected = PARTIAL if self.rejected else SUCCEEDED
        if self.flow.state != expected:
            problems.append(f"the pipeline ended as {self.flow.state}, not {expected}")
        # The dead letter has a successor that counts instead of it; a rejected stage cancels its one task.
        lost = len(counts.tasks) - counts.by_state()[SUCCEEDED] - counts.redriven - self.rejected
        if lost:
            problems.append(f"tasks that did not succeed: {lost}")
        if counts.most_at_once > 2:
            problems.append(f"{counts.most_at_once} parcels were loaded at once into one van")
        if not counts.taken_over:
            problems.append("no task was taken over from the killed worker")
        return problems

    def explain_failure(self, error: Exception) -> None:
        self.screen.print_line(str(error), "bold red")
        waiting = [self.flow] if self.flow is not None and not self.flow.over else []
        for job in waiting + [self.app.job(task.id) for task in self.counts.still_open()[:5]]:
            for blocker in job.explain():
                self.screen.print_line(f"{job.id}: {blocker.message}")
        self.screen.print_line(f"the end of the workers' logs:\n{self.workers.log_tails()}")

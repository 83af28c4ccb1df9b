"""What happens in the demo, act by act, and how it ends if an act does not.

Owns the order and the patience. Every number that is said was counted in the event log by tally.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from onetray.cli.demo.crew import NAMES, Crew, WorkerDied
from onetray.cli.demo.tally import DemoCounts
from onetray.domain.lifecycle import DEAD_LETTERED, FLOW, PARTIAL, QUEUED, RUNNING, STAGE, SUCCEEDED, WAITING

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.cli.demo.screen import Screen
    from onetray.domain.flow import Stage
    from onetray.domain.task import Event

T = TypeVar("T")

PARCELS = 300
PATIENCE_S = 55.0
"""The whole demo ends within a minute, whatever happens."""
LOOK_S = 0.05
FANNED_OUT = ("classify", "neutralize")
"""The stages whose tasks last long enough for a worker to be killed in the midst of them."""


class Stuck(Exception):
    """What an act waits for did not happen in time."""


class Play:
    def __init__(self, app: Onetray, crew: Crew, screen: Screen, folder: Path, *, ask: bool) -> None:
        self.app, self.engine, self.crew, self.screen, self.folder, self.ask = (
            app,
            app.engine,
            crew,
            screen,
            folder,
            ask,
        )
        self.tally = DemoCounts(self.engine.feed)
        self.flow: Any = None
        self.stages: dict[str, Stage] = {}
        self.rejected = False
        self._until = time.monotonic() + PATIENCE_S

    def run(self) -> bool:
        """Play all acts, then tell what happened. Answers whether all of it ended well."""
        try:
            self.submit()
            self.kill_a_worker()
            self.redrive_the_dead_letter()
            self.approve()
            self.let_it_end()
        except (Stuck, WorkerDied) as e:
            self.screen.close()
            self.tell_what_is_stuck(e)
            return False
        self.screen.close()
        return self.tell_what_happened()

    def submit(self) -> None:
        from onetray.examples.news_pipeline import NewsConfig
        from onetray.examples.parcels import deliver, news, ship

        self.crew.start()
        self.screen.say(f"two workers start, each a process of its own: {', '.join(NAMES)}")
        self.flow = news.submit(NewsConfig(evaluate=True, optimize=True, pace_s=1.0))
        deliver.submit_many([{"parcel": number} for number in range(1, PARCELS + 1)])
        ship.options(priority=1).submit(parcel=0, timetable=self.timetable)
        self.screen.say(f"submitted: the news pipeline with {len(news.stages)} stages, and {PARCELS + 1} parcels")

    def kill_a_worker(self) -> None:
        victim = self.until("a worker to hold tasks of the pipeline and parcels", self.caught)
        self.crew.kill(victim)
        hands = [task.id for task in self.tally.held_by(victim)]
        self.screen.say(f"{victim} is killed (SIGKILL) with {len(hands)} tasks in its hands", "bold red")
        self.until("what the killed worker held to be taken over", lambda: self.are_elsewhere(hands, victim))
        self.screen.say(f"its leases ran out; taken over by the other worker: {self.tally.taken_over} tasks", "bold")

    def caught(self) -> str | None:
        """A worker that stands still with its hands full."""
        name = self.busiest()
        if name is None:
            return None
        # What was read may be old: look again while it cannot put anything down.
        self.crew.freeze(name)
        self.look()
        if self.busiest() == name:
            return name
        self.crew.thaw(name)
        return None

    def busiest(self) -> str | None:
        """A worker whose loss hurts: it runs tasks of a fanned-out stage, and parcels besides."""
        if not any(s.name in FANNED_OUT and s.state == RUNNING for s in self.stages.values()):
            return None
        held = {name: [task for task in self.tally.held_by(name) if task.state == RUNNING] for name in NAMES}
        of_flow = {name: sum(task.job_id == self.flow.id for task in tasks) for name, tasks in held.items()}
        name = max(NAMES, key=lambda name: of_flow[name])
        return name if 0 < of_flow[name] < len(held[name]) else None

    def are_elsewhere(self, tasks: list[str], victim: str) -> bool:
        found = [self.tally.tasks[id_] for id_ in tasks]
        return all(task.holder != victim and task.state != QUEUED for task in found)

    def redrive_the_dead_letter(self) -> None:
        dead = self.until("a parcel to use up its attempts", self.dead_task)
        [letter] = self.engine.dead_letters(dead)
        why = letter.last_error["message"]
        self.screen.say(f"a parcel became a dead letter after {letter.attempts} attempts: {why}", "red")
        self.timetable.write_text("10:40\n")
        self.app.job(dead).retry(by="ann")
        self.screen.say("ann has repaired the cause and redrives it: a new job, linked to the old")

    def dead_task(self) -> str | None:
        return next((task.id for task in self.tally.tasks.values() if task.state == DEAD_LETTERED), None)

    def approve(self) -> None:
        stage = self.until("the pipeline to ask for an approval", self.waiting_stage)
        asked = self.flow.explain()[0].message
        self.screen.say(asked, "yellow")
        if not self.ask or self.screen.ask(f"Approve {stage.name}?"):
            self.engine.approve_stage(stage.id, actor_name="editor")
            self.screen.say(f"editor approves {stage.name}")
        else:
            self.rejected = True
            self.engine.reject_stage(stage.id, actor_name="editor")
            self.screen.say(f"editor rejects {stage.name}: the pipeline ends without it")

    def waiting_stage(self) -> Stage | None:
        return next((stage for stage in self.stages.values() if stage.state == WAITING), None)

    def let_it_end(self) -> None:
        self.until("everything to end", lambda: self.flow.state in FLOW.terminal and not self.tally.still_open())
        self.screen.say(f"everything has ended; the pipeline is {self.flow.state}")
        if not self.crew.stop():
            raise WorkerDied(f"the last worker did not stop in order; its last words:\n{self.crew.last_words()}")
        self.screen.say("the other worker was told to stop, and has left in order")

    @property
    def timetable(self) -> Path:
        return self.folder / "timetable.txt"

    def until(self, what: str, ask: Callable[[], T | None]) -> T:
        """Look again and again until there is an answer, and show meanwhile what goes on."""
        while True:
            self.look()
            answer = ask()
            if answer:
                return answer
            if time.monotonic() > self._until:
                raise Stuck(f"the demo waited for {what}, in vain")
            self.crew.check()
            time.sleep(LOOK_S)

    def look(self) -> None:
        if self.flow is not None:
            self.stages = {stage.id: stage for stage in self.engine.stages(self.flow.id)}
        self.tally.read(self.tell)
        self.screen.show(self)

    def tell(self, event: Event) -> None:
        if event.type.startswith("stage.") and event.state in STAGE.terminal:
            tasks = f", tasks: {event.payload['total']}" if event.payload and "total" in event.payload else ""
            self.screen.say(f"stage {self.stages[event.entity_id].name} {event.state}{tasks}", "green")

    def tell_what_happened(self) -> bool:
        from onetray.verify import verify

        findings = verify(self.engine.store)
        self.screen.report(self.tally, self.flow.results(), findings)
        complaints = self.complaints()
        for words in complaints:
            self.screen.say(words, "bold red")
        return not complaints and not findings.violations

    def complaints(self) -> list[str]:
        """What did not end as it should have."""
        found, tally = [], self.tally
        should = PARTIAL if self.rejected else SUCCEEDED
        if self.flow.state != should:
            found.append(f"the pipeline is {self.flow.state}, not {should}")
        # A dead letter has its successor; a rejected stage takes its own task with it.
        lost = len(tally.tasks) - tally.by_state()[SUCCEEDED] - tally.redriven - self.rejected
        if lost:
            found.append(f"tasks that did not succeed: {lost}")
        if not tally.taken_over:
            found.append("nothing was taken over from the killed worker")
        return found

    def tell_what_is_stuck(self, error: Exception) -> None:
        self.screen.say(str(error), "bold red")
        waiting = [self.flow] if self.flow is not None and not self.flow.over else []
        for job in waiting + [self.app.job(task.id) for task in self.tally.still_open()[:5]]:
            for blocker in job.explain():
                self.screen.say(f"{job.id}: {blocker.message}")
        self.screen.say(f"the workers' last words:\n{self.crew.last_words()}")

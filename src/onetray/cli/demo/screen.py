"""The demo's output: a line for each step, and on a terminal a live view below.

Owns the layout. scenario.py reads the stages, event_counts.py counts events.
"""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING, Any

from onetray.cli.demo.workers import NAMES
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, RUNNING, SUCCEEDED, TASK, WAITING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from onetray.cli.demo.event_counts import EventCounts
    from onetray.cli.demo.scenario import Scenario
    from onetray.domain.flow import Stage
    from onetray.verify import Findings

COLOURS = {
    SUCCEEDED: "green", RUNNING: "cyan", WAITING: "yellow", CANCELLED: "yellow", FAILED: "red", DEAD_LETTERED: "red",
}  # fmt: skip
BAR = 24
ANSWER_S = 10.0


class Screen:
    def __init__(self, out: Console, *, live: bool) -> None:
        self.out, self._started_at = out, time.monotonic()
        self._live: Any = None
        if live:
            from rich.live import Live

            self._live = Live(console=out, auto_refresh=False, transient=True)
            self._live.start()

    def close(self) -> None:
        """Remove the live view; lines can still be printed."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def print_line(self, line: str, style: str = "") -> None:
        from rich.text import Text

        elapsed = f"{time.monotonic() - self._started_at:5.1f} s  "
        self.out.print(Text.assemble((elapsed, "dim"), (line, style)), soft_wrap=True)

    def ask(self, question: str) -> bool:
        """Ask the user. No answer within ANSWER_S means yes."""
        if self._live is not None:
            self._live.stop()
        self.out.print(f"         {question} [Y/n] (yes in {ANSWER_S:.0f} s) ", end="", style="bold")
        ready, _, _ = select.select([sys.stdin], [], [], ANSWER_S)
        answer = sys.stdin.readline() if ready else "\n"
        if not answer.endswith("\n") or not ready:
            self.out.print()
        if self._live is not None:
            self._live.start()
        return answer.strip().lower() not in ("n", "no")

    def show(self, scenario: Scenario) -> None:
        if self._live is not None:
            self._live.update(picture(scenario), refresh=True)

    def report(self, counts: EventCounts, results: dict[str, Any], findings: Findings) -> None:
        from onetray.cli.database import print_findings

        self.out.print("\nWhat happened, counted from the event log", style="bold")
        for name, count in _counts(counts):
            self.out.print(f"  {name:<34} {count:>5}")
        self.out.print(f"\nThe pipeline's summary: {results['summary']}")
        self.out.print("\nThe verifier's result", style="bold")
        if findings.violations:
            print_findings(findings)
            return
        rows = findings.checked
        summary = f"clean: {len(findings.rules)} checks on {rows['tasks']} tasks and {rows['events']} events"
        self.out.print(summary, style="bold green")


def _counts(counts: EventCounts) -> list[tuple[str, int]]:
    states = counts.by_state()
    return [
        ("jobs submitted", len(counts.jobs)),
        ("their tasks", len(counts.tasks)),
        *((f"  {state}", states[state]) for state in TASK.ranks if states[state]),
        ("failed attempts that were retried", counts.types[TASK.retry.event]),
        ("tasks taken over after the kill", counts.taken_over),
        ("parcels of a van loaded at once", counts.most_at_once),
        ("approvals", counts.types["stage.approved"]),
        ("dead letters redriven", counts.redriven),
        ("events", counts.events),
    ]


def picture(scenario: Scenario) -> RenderableType:
    """The live view: stages, tasks by state, workers, latest events."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        Text(""),
        _stages(list(scenario.stages.values())),
        Text(""),
        _states(scenario.counts),
        *(_worker(scenario, name) for name in NAMES),
        Text(""),
        *(_event(event.type, event.actor, event.entity_id) for event in scenario.counts.latest),
    )


def _stages(stages: list[Stage]) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for stage in stages:
        bar = ProgressBar(total=100, completed=stage.percentage, width=BAR)
        done = f"{stage.counts.done}/{stage.counts.total}"
        table.add_row(f"  {stage.name}", bar, done, Text(stage.state, COLOURS.get(stage.state, "dim")))
    return table


def _states(counts: EventCounts) -> RenderableType:
    from rich.text import Text

    states = counts.by_state()
    parts = [(f"{state} {states[state]}  ", COLOURS.get(state, "")) for state in TASK.ranks if states[state]]
    return Text.assemble(("  tasks      ", "bold"), *parts)


def _worker(scenario: Scenario, name: str) -> RenderableType:
    from rich.text import Text

    is_killed, held = name in scenario.workers.killed, len(scenario.counts.held_by(name))
    state = ("killed", "bold red") if is_killed else (f"holds {held}", "cyan")
    return Text.assemble((f"  {name}  ", "bold"), state, f", has done {scenario.counts.done_by[name]}")


def _event(type_: str, actor: str, entity: str) -> RenderableType:
    from rich.text import Text

    return Text(f"  {type_:<20} {entity[-12:]}  {actor}", "dim")

"""How the demo looks: a line for each thing that happens, and on a terminal a picture below that moves.

Owns the layout. What is shown was read by play.py and counted by tally.py.
"""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING, Any

from onetray.cli.demo.crew import NAMES
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, RUNNING, SUCCEEDED, TASK, WAITING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from onetray.cli.demo.play import Play
    from onetray.cli.demo.tally import DemoCounts
    from onetray.domain.flow import Stage
    from onetray.verify import Findings

COLOURS = {
    SUCCEEDED: "green", RUNNING: "cyan", WAITING: "yellow", CANCELLED: "yellow", FAILED: "red", DEAD_LETTERED: "red",
}  # fmt: skip
BAR = 24
ANSWER_S = 10.0


class Screen:
    def __init__(self, out: Console, *, live: bool) -> None:
        self.out, self._began = out, time.monotonic()
        self._live: Any = None
        if live:
            from rich.live import Live

            self._live = Live(console=out, auto_refresh=False, transient=True)
            self._live.start()

    def close(self) -> None:
        """End the moving picture; lines can still be said."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, words: str, style: str = "") -> None:
        from rich.text import Text

        at = f"{time.monotonic() - self._began:5.1f} s  "
        self.out.print(Text.assemble((at, "dim"), (words, style)), soft_wrap=True)

    def ask(self, question: str) -> bool:
        """Ask whoever sits there. No answer within a few seconds means yes."""
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

    def show(self, play: Play) -> None:
        if self._live is not None:
            self._live.update(picture(play), refresh=True)

    def report(self, tally: DemoCounts, results: dict[str, Any], findings: Findings) -> None:
        """What happened, and the verdict."""
        from onetray.cli.database import print_findings

        self.out.print("\nWhat happened, counted from the event log", style="bold")
        for what, count in _counts(tally):
            self.out.print(f"  {what:<34} {count:>5}")
        self.out.print(f"\nThe pipeline's summary: {results['summary']}")
        self.out.print("\nThe verifier's verdict", style="bold")
        if findings.violations:
            print_findings(findings)
            return
        rows = findings.checked
        words = f"clean: {len(findings.rules)} checks on {rows['tasks']} tasks and {rows['events']} events"
        self.out.print(words, style="bold green")


def _counts(tally: DemoCounts) -> list[tuple[str, int]]:
    states = tally.by_state()
    return [
        ("jobs submitted", len(tally.jobs)),
        ("their tasks", len(tally.tasks)),
        *((f"  {state}", states[state]) for state in TASK.ranks if states[state]),
        ("failed attempts that were retried", tally.types[TASK.retry.event]),
        ("tasks taken over after the kill", tally.taken_over),
        ("approvals", tally.types["stage.approved"]),
        ("dead letters redriven", tally.redriven),
        ("events", tally.events),
    ]


def picture(play: Play) -> RenderableType:
    """The state of everything, now."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        Text(""),
        _stages(list(play.stages.values())),
        Text(""),
        _states(play.tally),
        *(_worker(play, name) for name in NAMES),
        Text(""),
        *(_event(event.type, event.actor, event.entity_id) for event in play.tally.latest),
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


def _states(tally: DemoCounts) -> RenderableType:
    from rich.text import Text

    states = tally.by_state()
    words = [(f"{state} {states[state]}  ", COLOURS.get(state, "")) for state in TASK.ranks if states[state]]
    return Text.assemble(("  tasks      ", "bold"), *words)


def _worker(play: Play, name: str) -> RenderableType:
    from rich.text import Text

    dead, hands = name in play.crew.killed, len(play.tally.held_by(name))
    now = ("killed", "bold red") if dead else (f"holds {hands}", "cyan")
    return Text.assemble((f"  {name}  ", "bold"), now, f", has done {play.tally.done_by[name]}")


def _event(type_: str, actor: str, entity: str) -> RenderableType:
    from rich.text import Text

    return Text(f"  {type_:<20} {entity[-12:]}  {actor}", "dim")

"""Follow one job to its end: print its log, progress and result.

Log lines go to stdout as they arrive; the progress bar is drawn only on a terminal.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from onetray.cli.output import bar, print_json
from onetray.domain.lifecycle import FLOW, PARTIAL, SUCCEEDED, TASK

if TYPE_CHECKING:
    from onetray.domain.task import Event, LogLine
    from onetray.engine.api import EngineApi

PAGE = 500
SHORT = 100


def wait_for_end(
    engine: EngineApi, id_: str, entity: str, namespace: str, timeout_s: float | None, as_json: bool
) -> bool:
    """Print log and progress until the job has ended. Returns whether it succeeded."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    view, after = (_Flow if entity == "flow" else _Task)(engine, id_, namespace), 0
    if not as_json:
        click.echo(f"{entity} {id_}")
    with bar(entity) as draw:
        while True:
            # Read the state before the lines, so that the last pass has all lines up to the end.
            seen, state = engine.wake.generation, view.state()
            after, lines = view.lines(after)
            for line in () if as_json else lines:
                click.echo(line)
            draw(*view.progress())
            if state in view.terminal:
                break
            left = engine.wake.poll_s if deadline is None else min(engine.wake.poll_s, deadline - time.monotonic())
            if left <= 0:
                raise click.ClickException(
                    f"the job is still {state} after {timeout_s:g} s: see `onetray jobs explain {id_}`"
                )
            engine.wake.wait(seen, left)
    succeeded = state in (SUCCEEDED, PARTIAL)
    value, error = view.outcome()
    if as_json:
        print_json({"id": id_, "state": state, "result": value, "error": error})
    else:
        click.echo(f"{state}: {view.format_result(value) if succeeded else _error_text(error)}")
    return succeeded


class _Task:
    terminal = TASK.terminal

    def __init__(self, engine: EngineApi, id_: str, namespace: str) -> None:
        self._engine, self._id = engine, id_
        self._namespace: dict[str, Any] = {"namespace": namespace}

    def state(self) -> str:
        return self._engine.job_status(self._id, **self._namespace).state

    def lines(self, after: int) -> tuple[int, list[str]]:
        """The next cursor, and the log lines after this one."""
        lines: list[LogLine] = []
        while page := self._engine.logs(self._id, after=after, limit=PAGE, **self._namespace):
            lines, after = lines + page, page[-1].cursor
        return after, [f"  {line.level:<8}{line.line}{_data_suffix(line.data)}" for line in lines]

    def progress(self) -> tuple[float, float | None, str]:
        last = self._engine.progress_of(self._id, **self._namespace)
        return (0, None, "") if last is None else (last.done, last.total, last.message or "")

    def format_result(self, value: Any) -> str:
        return _json(value)

    def outcome(self) -> tuple[Any, Any]:
        task = self._engine.task(self._id, **self._namespace)
        return task.result, task.error


class _Flow(_Task):
    terminal = FLOW.terminal

    def lines(self, after: int) -> tuple[int, list[str]]:
        events: list[Event] = []
        while page := self._engine.flow_events(self._id, after=after, limit=PAGE, **self._namespace):
            events, after = events + page, page[-1].id
        names = {stage.id: stage.name for stage in self._engine.stages(self._id, **self._namespace)} if events else {}
        return after, [f"  stage {names[e.entity_id]}: {e.state}" for e in events if e.entity_id in names and e.was]

    def progress(self) -> tuple[float, float | None, str]:
        progress = self._engine.progress(self._id, **self._namespace)
        return progress.percentage, 100, progress.current_stage or ""

    def format_result(self, value: Any) -> str:
        """The result of each stage, cut to one line."""
        results = [(name, _json(result)) for name, result in value.items() if result is not None]
        lines = [f"  {name}: {text if len(text) <= SHORT else text[: SHORT - 1] + '…'}" for name, text in results]
        return "\n".join(["results of its stages", *lines])

    def outcome(self) -> tuple[Any, Any]:
        stages = self._engine.stages(self._id, **self._namespace)
        flow = self._engine.flow(self._id, **self._namespace)
        return {stage.name: stage.result for stage in stages}, flow.error


def _data_suffix(data: Any) -> str:
    return "".join(f" {name}={value!r}" for name, value in data.items()) if isinstance(data, dict) else ""


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def _error_text(error: Any) -> str:
    return f"{error.get('class', '')} {error.get('message', '')}".strip() if isinstance(error, dict) else str(error)

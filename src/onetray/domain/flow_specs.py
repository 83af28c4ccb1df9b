"""Check the specs of flows: tasks, stages, approvals, dependencies.

Owns these checks, including that all dependencies can be met.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from onetray.config import Limits
from onetray.domain.checks import check_when, json_text, listed, text
from onetray.domain.errors import DependencyCycle, InvalidInput, TooLarge
from onetray.domain.fields import check_of
from onetray.domain.flow import Approval, More, StageSpec, TaskSpec
from onetray.domain.json_schema import must_be_schema


def check_task(spec: object, limits: Limits, where: str) -> TaskSpec:
    if not isinstance(spec, TaskSpec):
        raise InvalidInput(f"{where} must be a TaskSpec, not {type(spec).__name__}", field=where)
    check_of(TaskSpec, f"{where}.", _PAYLOAD)(spec, limits)
    check_when(spec.delay_s, spec.run_at, f"{where}.")
    return spec


_PAYLOAD = frozenset({"payload"})
"""Checked after all other fields, by the code that counts its size."""


def check_tasks(
    specs: object, limits: Limits, where: str, least: int = 0, size: list[int] | None = None
) -> tuple[TaskSpec, ...]:
    """`size` counts the bytes of all payloads of the command."""
    tasks = tuple(check_task(spec, limits, where) for spec in listed(specs, where, least, limits.batch))
    size = [0] if size is None else size
    for spec in tasks:
        size[0] += len(json_text(spec.payload, f"{where}.payload", limits.payload_bytes))
    if size[0] > limits.flow_bytes:
        raise TooLarge(
            f"the payloads have {size[0]} bytes; one command takes {limits.flow_bytes}. Use several commands",
            field=where,
            limit=limits.flow_bytes,
        )
    return tasks


def check_stage(spec: object, limits: Limits, where: str = "stage", size: list[int] | None = None) -> StageSpec:
    if not isinstance(spec, StageSpec):
        raise InvalidInput(f"{where} must be a StageSpec, not {type(spec).__name__}", field=where)
    check_of(StageSpec, "stage.")(spec, limits)
    if spec.name is None and spec.type is None:
        raise InvalidInput("a stage has a name or a type: give one of them", field="stage.name")
    spec.tasks = check_tasks(spec.tasks, limits, "stage.tasks", size=size)
    for name in ("when", "compensate"):
        control = getattr(spec, name)
        if control is not None:
            check_task(control, limits, f"stage.{name}")
            json_text(control.payload, f"stage.{name}.payload", limits.payload_bytes)
            fixed = control.depends_on or control.name or control.alias or control.context_id
            if fixed or control.delay_s or control.run_at is not None:
                raise InvalidInput(
                    f"stage.{name} cannot have name, alias, depends_on, context_id, delay_s or run_at",
                    field=f"stage.{name}",
                )
    if spec.approval is not None:
        check_approval(spec.approval, limits)
    return spec


def name_stages(specs: Iterable[StageSpec], most: int) -> None:
    """Name those stages after their types that have no name. Raises InvalidInput if two have one name."""
    names: set[str] = set()
    for ord_, spec in enumerate(specs, 1):
        if spec.name is None:
            spec.name = free_name(str(spec.type), ord_, names, most)
        if spec.name in names:
            raise InvalidInput(f"two stages have the name {spec.name!r}: use unique names", field="stages")
        names.add(spec.name)


def free_name(type_: str, ord_: int, taken: Container[str], most: int) -> str:
    """The type of a stage, or its type and its place in the flow where the type is taken as a name."""
    name = type_
    while name in taken:
        place = f" {ord_}"
        name, ord_ = f"{type_[: most - len(place)]}{place}", ord_ + 1
    return name


def check_approval(approval: object, limits: Limits) -> Approval:
    if not isinstance(approval, Approval):
        raise InvalidInput("approval must be an Approval", field="approval")
    check_of(Approval, "approval.")(approval, limits)
    if approval.form is not None:
        json_text(approval.form, "approval.form", limits.result_bytes)
        must_be_schema(approval.form, "approval.form")
    return approval


def check_names(stages: Iterable[tuple[int, Iterable[TaskSpec]]], whole: bool = False) -> None:
    """Raises if two tasks have the same name, or if dependencies cannot be met.

    `whole`: the stages are a whole flow, so that tasks can depend only on tasks in them.
    """
    stages = [(ord_, list(tasks)) for ord_, tasks in stages]
    order: dict[str, int] = {}
    needs: dict[str, tuple[str, ...]] = {}
    for ord_, tasks in stages:
        for spec in tasks:
            if spec.name is None:
                continue
            if spec.name in order:
                raise InvalidInput(f"two tasks have the name {spec.name!r}: use unique names", field="name")
            order[spec.name], needs[spec.name] = ord_, spec.depends_on
    for ord_, tasks in stages:
        for spec in tasks:
            for other in spec.depends_on:
                if whole and other not in order:
                    raise InvalidInput(f"depends_on names {other!r}, and the flow has no such task", field="depends_on")
                if order.get(other, 0) > ord_:
                    name = spec.name or "a task"
                    raise DependencyCycle(
                        f"{name!r} of stage {ord_} needs {other!r} of stage {order[other]}, which opens only after it",
                        cycle=[name, other, name],
                    )
    _check_for_cycle(needs)


def check_aliases(aliases: Iterable[str | None]) -> None:
    """Raises if one command gives an alias twice."""
    seen: set[str] = set()
    for alias in aliases:
        if alias is None:
            continue
        if alias in seen:
            raise InvalidInput(f"the alias {alias!r} is given twice: use unique aliases", field="alias")
        seen.add(alias)


def _check_for_cycle(needs: dict[str, tuple[str, ...]]) -> None:
    """Search depth first, without recursion: a chain of dependencies may be long."""
    done: set[str] = set()
    for start in needs:
        path: list[str] = []
        on_path: set[str] = set()
        todo: list[tuple[str, bool]] = [(start, False)]
        while todo:
            name, leaving = todo.pop()
            if leaving:
                path.pop()
                on_path.discard(name)
                done.add(name)
                continue
            if name in on_path:
                cycle = [*path[path.index(name) :], name]
                raise DependencyCycle(f"these tasks wait for each other: {' → '.join(cycle)}", cycle=cycle)
            if name in done or name not in needs:
                continue
            path.append(name)
            on_path.add(name)
            todo.append((name, True))
            todo.extend((other, False) for other in needs[name])


def check_more(more: object, limits: Limits) -> More:
    """Check what a member of a flow reports besides its result."""
    if not isinstance(more, More):
        raise InvalidInput(f"more must be a More, not {type(more).__name__}", field="more")
    check_of(More)(more, limits)
    if more.metrics is not None:
        json_text(more.metrics, "metrics", limits.result_bytes)
        if not isinstance(more.metrics, dict):
            raise InvalidInput("metrics must be a dict of values by name", field="metrics")
    if not isinstance(more.spawn, dict):
        raise InvalidInput("spawn must be a dict of lists of tasks by stage name", field="spawn")
    size = [0]
    more.spawn = {
        text(stage, "spawn", limits.name_chars): check_tasks(tasks, limits, "spawn", size=size)
        for stage, tasks in more.spawn.items()
    }
    spawned = [task for tasks in more.spawn.values() for task in tasks]
    check_names([(1, spawned)])
    check_aliases(task.alias for task in spawned)
    return more

"""Declared flows: what a worker registers about the flows of its app, so that others can submit them by name.

Owns the declaration, its checks and its stored form, and how a submit is made from it. The policies of its tasks are
not part of it: they belong to their kinds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Annotated, Any

import orjson

from onetray.config import Limits
from onetray.domain import fields as f
from onetray.domain.checks import json_text, listed
from onetray.domain.errors import InvalidInput
from onetray.domain.fields import check_of
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitDeclared, SubmitFlow
from onetray.domain.flow_specs import check_approval, check_task
from onetray.domain.json_schema import check_value, must_be_schema, with_defaults
from onetray.domain.policy import Policy
from onetray.domain.rollup import ON_FAILURE, ROLL_UPS, STOP, STRICT
from onetray.domain.task import RawJson

ONE, LIST, STAGE, CONFIG = FAN_OUT = ("one", "list", "stage", "config")
"""What the tasks of a stage are made from: one task, a task for each item of a list, of the result of an earlier stage,
or of what a function of the config returns."""
CREATE_TASKS = "create_tasks"
"""The payload of a control task that also creates the tasks of its stage."""
Control = Annotated[TaskSpec, f.Spec(TaskSpec, by_hand=True)]


@dataclass(slots=True, kw_only=True)
class StageDeclaration:
    """A stage of a declared flow: the kind and queue of its tasks, and where they come from."""

    name: f.Name
    kind: f.Name
    queue: f.Name = "default"
    fan_out: Annotated[str, f.Choice(FAN_OUT)] = ONE
    source: f.Name | None = None
    """The earlier stage that it fans out over."""
    payloads: Annotated[Any, f.Json("flow_bytes")] = None
    """The payloads of its tasks, if it fans out over a list."""
    on_failure: Annotated[str, f.Choice(ON_FAILURE)] = STOP
    approval: Annotated[Approval, f.Spec(Approval, by_hand=True)] | None = None
    when: Control | None = None
    """The task that decides whether the stage runs."""
    expand: Control | None = None
    """The task that creates the tasks of a fan-out over the config. It decides about the condition, too."""
    compensate: Control | None = None


@dataclass(slots=True, kw_only=True)
class FlowDeclaration:
    """A flow as the code of an app declares it."""

    name: f.Name
    stages: Annotated[
        tuple[StageDeclaration, ...] | list[StageDeclaration],
        f.Spec(StageDeclaration, many="stages", least=1, by_hand=True),
    ]
    roll_up: Annotated[str, f.Choice(ROLL_UPS)] = STRICT
    singleton: bool = False
    deadline_s: f.Seconds | None = None
    config_schema: Annotated[dict[str, Any], f.Spec(dict, by_hand=True)] | None = None
    """The JSON Schema of its config. None: any config is accepted."""

    @property
    def body(self) -> str:
        """The declaration as JSON, with the fields of its config in the order in which they are declared."""
        return orjson.dumps(self).decode()

    @property
    def version(self) -> str:
        """A hash that equal declarations share, whatever the order of their fields."""
        return hashlib.sha256(orjson.dumps(self, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """A stage of a declared flow, as readers see it."""

    name: str
    kind: str
    queue: str
    fan_out: str
    source: str | None
    items: int | None
    """The number of its tasks, if it fans out over a list."""
    on_failure: str
    approval: Approval | None
    condition: str | None
    """The kind of the task that decides whether it runs."""
    compensation: str | None
    """The kind of the task that undoes it."""
    policy: Policy | None
    """The policy of the kind's next tasks."""


@dataclass(frozen=True, slots=True)
class DeclaredFlowSummary:
    """A declared flow in a list."""

    name: str
    version: str
    """A hash of the declaration."""
    stages: int
    declared_at: int
    declared_by: str
    """The worker that declared this version."""
    seen_at: int
    """When a worker with this version last renewed it, to about ten minutes."""
    other_version: str | None
    """Another version, which workers had when they were last seen: the one that this one replaced, or one that is
    still in use beside it."""
    other_seen_at: int | None


@dataclass(frozen=True, slots=True)
class DeclaredFlow:
    """A declared flow, as readers see it."""

    namespace: str
    name: str
    version: str
    declared_at: int
    declared_by: str
    seen_at: int
    other_version: str | None
    other_seen_at: int | None
    roll_up: str
    singleton: bool
    deadline_s: float | None
    redact: tuple[str, ...]
    config_schema: dict[str, Any] | None
    stages: tuple[DeclaredStage, ...]


def check_declaration(declared: object, limits: Limits) -> FlowDeclaration:
    """Raises InvalidInput for a declaration that could not be submitted."""
    if not isinstance(declared, FlowDeclaration):
        raise InvalidInput(f"flow must be a FlowDeclaration, not {type(declared).__name__}", field="flow")
    check_of(FlowDeclaration)(declared, limits)
    earlier: set[str] = set()
    for stage in listed(declared.stages, "stages", 1, limits.stages):
        earlier.add(_check_stage(stage, earlier, limits))
    if declared.config_schema is not None:
        json_text(declared.config_schema, "config_schema", limits.payload_bytes)
        must_be_schema(declared.config_schema, "config_schema")
    submit_of(declared, None).check(limits)
    return declared


def _check_stage(stage: object, earlier: set[str], limits: Limits) -> str:
    if not isinstance(stage, StageDeclaration):
        raise InvalidInput(f"stages must have StageDeclarations, not {type(stage).__name__}", field="stages")
    check_of(StageDeclaration, "stage.")(stage, limits)
    for name in ("when", "expand", "compensate"):
        if getattr(stage, name) is not None:
            check_task(getattr(stage, name), limits, f"stage.{name}")
    if stage.approval is not None:
        check_approval(stage.approval, limits)
    if stage.fan_out == STAGE and stage.source not in earlier:
        raise InvalidInput(f"{stage.name}: no earlier stage {stage.source!r} to fan out over", field="stage.source")
    if stage.fan_out == LIST and not isinstance(stage.payloads, list):
        raise InvalidInput(f"{stage.name}: a fan-out over a list needs payloads", field="stage.payloads")
    if stage.fan_out == CONFIG and stage.expand is None:
        raise InvalidInput(f"{stage.name}: a fan-out over the config needs a task to expand it", field="stage.expand")
    return stage.name


def declaration_of(body: str) -> FlowDeclaration:
    """Read a declaration that any version has written; ignores fields that this version does not know."""
    sent = _known(FlowDeclaration, orjson.loads(body))
    return FlowDeclaration(**sent | {"stages": [_stage_of(stage) for stage in sent["stages"]]})


def _stage_of(stage: dict[str, Any]) -> StageDeclaration:
    parts: dict[str, Any] = {
        name: None if stage.get(name) is None else TaskSpec(**_known(TaskSpec, stage[name]) | {"depends_on": ()})
        for name in ("when", "expand", "compensate")
    }
    approval = None if stage.get("approval") is None else Approval(**_known(Approval, stage["approval"]))
    return StageDeclaration(**_known(StageDeclaration, stage) | parts | {"approval": approval})


def _known(kind: type, sent: dict[str, Any]) -> dict[str, Any]:
    return {field.name: sent[field.name] for field in fields(kind) if field.name in sent}


def shown_stage(stage: StageDeclaration, policy: Policy | None) -> DeclaredStage:
    return DeclaredStage(
        stage.name, stage.kind, stage.queue, stage.fan_out, stage.source,
        len(stage.payloads) if stage.fan_out == LIST else None, stage.on_failure, stage.approval,
        None if stage.when is None else stage.when.kind, None if stage.compensate is None else stage.compensate.kind,
        policy,
    )  # fmt: skip


# Submits.

_SHARED = tuple(field.name for field in fields(SubmitDeclared) if field.name not in ("name", "config", "deadline_s"))


def submit_of(declared: FlowDeclaration, config: Any, **options: Any) -> SubmitFlow:
    """The submit of a declared flow. Its tasks get the policies of their kinds."""
    options = {"deadline_s": declared.deadline_s, "singleton": declared.singleton, **options}
    stages = [_stage_spec(stage, config) for stage in declared.stages]
    return SubmitFlow(
        name=declared.name, stages=stages, data=config, roll_up=declared.roll_up, as_declared=True, **options
    )


def submit_by_name(declared: FlowDeclaration, command: SubmitDeclared) -> SubmitFlow:
    """The submit that a command by name stands for. Raises InvalidInput if its config does not fit."""
    options = {name: getattr(command, name) for name in _SHARED}
    if command.deadline_s is not None:
        options["deadline_s"] = command.deadline_s
    return submit_of(declared, checked_config(declared.config_schema, command.config), **options)


def checked_config(schema: dict[str, Any] | None, config: Any) -> Any:
    """The config with the defaults of its schema. Raises InvalidInput if it does not satisfy the schema."""
    if isinstance(config, RawJson):
        config = orjson.loads(bytes(config))
    if schema is None:
        return config
    config = with_defaults(schema, {} if config is None else config, "config")
    check_value(schema, config, "config", "config_schema")
    return config


def _stage_spec(stage: StageDeclaration, config: Any) -> StageSpec:
    payloads: list[Any] = {ONE: [{}], LIST: stage.payloads}.get(stage.fan_out) or []
    compensate = stage.compensate
    if compensate is not None:
        compensate = TaskSpec(compensate.kind, {"config": config}, queue=compensate.queue)
    return StageSpec(
        stage.name, [TaskSpec(stage.kind, payload, queue=stage.queue) for payload in payloads],
        on_failure=stage.on_failure, approval=stage.approval, when=stage.expand or stage.when, compensate=compensate,
        collect="one" if stage.fan_out == ONE else "list",
    )  # fmt: skip

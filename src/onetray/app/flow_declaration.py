"""The declaration of a flow, which a worker registers: others submit the flow by its name, without its code.

Owns what is declared, and the JSON Schema of the config with the defaults that a submit by name fills in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onetray.domain.declared_flow import (
    CONFIG,
    CREATE_TASKS,
    LIST,
    ONE,
    STAGE,
    FlowDeclaration,
    StageDeclaration,
)
from onetray.domain.flow import TaskSpec
from onetray.domain.redactor import ANY

if TYPE_CHECKING:
    from onetray.app.flows import FlowDefinition, StageDefinition
    from onetray.app.tasks import TaskDefinition


def declaration_of_flow(flow: FlowDefinition[Any, Any]) -> FlowDeclaration:
    return FlowDeclaration(
        name=flow.name, stages=[_stage(stage) for stage in flow.stages.values()], roll_up=flow.roll_up,
        singleton=flow.singleton, deadline_s=flow.deadline_s, config_schema=_config_schema(flow),
    )  # fmt: skip


def _stage(stage: StageDefinition[Any, Any]) -> StageDeclaration:
    fan_out = STAGE if stage.source else CONFIG if callable(stage.each) else LIST if stage.fanned_out else ONE
    return StageDeclaration(
        name=stage.name, kind=stage.task.kind, queue=stage.task.queue, fan_out=fan_out,
        source=None if stage.source is None else stage.source.name,
        payloads=[spec.payload for spec in stage.members(stage.each)] if fan_out == LIST else None,
        on_failure=stage.on_failure, approval=stage.approve, when=_control(stage.when),
        expand=_control(stage.expand, CREATE_TASKS) if fan_out == CONFIG else None,
        compensate=_control(stage.compensate),
    )  # fmt: skip


def _control(task: TaskDefinition[Any, Any] | None, payload: Any = None) -> TaskSpec | None:
    return None if task is None else TaskSpec(task.kind, payload, queue=task.queue)


def _config_schema(flow: FlowDefinition[Any, Any]) -> dict[str, Any] | None:
    """The JSON Schema of the config; None if any config is accepted, or if the type has no schema."""
    if flow.config_type is None:
        return None
    from pydantic import PydanticUserError, TypeAdapter

    try:
        schema = TypeAdapter(flow.config_type).json_schema(schema_generator=_schema_generator())
    except PydanticUserError:
        # Its stages check the config all the same, when they run.
        return None
    _hide_defaults(schema, {name for path in flow.redact for name in _last_name(path)})
    return schema


def _schema_generator() -> Any:
    """Built late: pydantic is imported when a worker starts, not when a flow is declared."""
    from pydantic.json_schema import GenerateJsonSchema, NoDefault

    class ConfigSchema(GenerateJsonSchema):
        """A default is written down if it is a constant. A field whose default is computed anew each time is required:
        else each stage would compute another value."""

        def get_default_value(self, schema: Any) -> Any:
            return next(_constants(schema), NoDefault)

        def field_is_required(self, field: Any, total: bool) -> bool:
            inner = field["schema"]
            is_computed = inner["type"] == "default" and not any(True for _ in _constants(inner))
            return is_computed or super().field_is_required(field, total)

    return ConfigSchema


def _constants(schema: Any) -> Iterator[Any]:
    """The default of a field, if it is the same each time."""
    if "default" in schema:
        yield schema["default"]
    elif "default_factory" in schema and not schema.get("default_factory_takes_data"):
        first, second = schema["default_factory"](), schema["default_factory"]()
        if first == second:
            yield first


def _last_name(path: str) -> list[str]:
    return [name for name in path.split(".") if name != ANY][-1:]


def _hide_defaults(schema: Any, names: set[str]) -> None:
    """Remove the defaults of redacted fields, which readers of the declaration must not see, unless they are empty."""
    if isinstance(schema, list):
        for part in schema:
            _hide_defaults(part, names)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    for name, field in properties.items() if isinstance(properties, dict) else ():
        if name in names and isinstance(field, dict):
            field.pop("examples", None)
            if field.get("default"):
                del field["default"]
                schema["required"] = [*schema.get("required", ()), name]
    for part in schema.values():
        _hide_defaults(part, names)

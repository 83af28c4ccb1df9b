"""Flows in plain Python: stages from functions, in the order in which they are declared.

    news = app.flow("news", config=NewsConfig)

    @news.stage
    def fetch(config: NewsConfig) -> list[str]: ...

    @news.stage(each=fetch, on_failure="continue")
    def summarize(item: str) -> str: ...

    @news.stage(when=lambda config: config.publish, approve="editor")
    def publish(summarize: list[str]) -> str: ...

    job = news.submit(NewsConfig(publish=True))

The parameters of a function name its inputs: `config`, `item` (one item of a fan-out), `approval` (of its stage), or an
earlier stage, for that stage's result. Owns how a flow is built from functions and how they get their arguments; the
engine runs the flow.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast, is_typeddict, overload

from onetray.app.context import TaskContext
from onetray.app.rules import FlowOptions, FlowRules, StageRules, known
from onetray.app.signature import validation_message
from onetray.app.tasks import TaskDefinition, declare, inherit
from onetray.domain.checks import choice, flag
from onetray.domain.declared_flow import CREATE_TASKS
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.policy import Policy
from onetray.domain.redactor import ANY
from onetray.domain.rollup import ON_FAILURE, ROLL_UPS, STOP, STRICT

if TYPE_CHECKING:
    from onetray.app.async_api import AsyncFlow
    from onetray.app.job import Job
    from onetray.app.onetray import Onetray

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
R2 = TypeVar("R2")
CONFIG, ITEM, APPROVAL, RESULTS, RESULT = "config", "item", "approval", "results", "result"
_RULES_OF_INNER_TASKS = frozenset({
    "queue", "retries", "max_attempts", "backoff_base_s", "backoff_factor", "backoff_max_s", "jitter", "retry_on",
    "no_retry_on", "on_exhaustion", "timeout_s",
})  # fmt: skip
"""Rules of a stage that also apply to its condition and its compensation: where they run, and how they are retried."""
ANSWER = ("by", "at", "verdict", "note", "input")
"""The fields of an `approval` argument."""


@dataclass(frozen=True, eq=False)
class StageDefinition(Generic[P, R]):
    """One stage of a flow: its task, fan-out, condition, approval and compensation."""

    name: str
    task: TaskDefinition[P, R]
    each: Any = None
    source: StageDefinition[Any, Any] | None = None
    """The earlier stage whose results it fans out over."""
    when: TaskDefinition[Any, Any] | None = None
    approve: Approval | None = None
    compensate: TaskDefinition[Any, Any] | None = None
    on_failure: str = STOP
    expand: TaskDefinition[Any, Any] | None = None
    """Creates its tasks from the config, if the flow is submitted without its code: its condition, or a task for it."""

    @property
    def fanned_out(self) -> bool:
        return self.each is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, without the engine."""
        return self.task.function(*args, **kwargs)

    def spec(self, config: Any, config_json: Any) -> StageSpec:
        return StageSpec(
            self.name,
            self._tasks(config),
            on_failure=self.on_failure,
            approval=self.approve,
            when=None if self.when is None else _spec(self.when, None),
            compensate=None if self.compensate is None else _spec(self.compensate, {CONFIG: config_json}),
            collect="list" if self.fanned_out else "one",
        )

    def _tasks(self, config: Any) -> list[TaskSpec]:
        if not self.fanned_out:
            return [_spec(self.task, {})]
        if self.source is not None:
            return []
        items = self.each(config) if callable(self.each) else self.each
        return self.members(items)

    def members(self, items: Any) -> list[TaskSpec]:
        """One task for each item."""
        payload = self.task.signature.payload
        return [_spec(self.task, payload((), {ITEM: item}, incomplete=True)) for item in _item_list(self.name, items)]


class FlowDefinition(Generic[C, R]):
    """A declared flow: its stages in order, and the types of its config and its results."""

    def __init__(
        self, app: Onetray, name: str, config: type[C] | None = None, results: type[R] | None = None, *,
        roll_up: str = STRICT, singleton: bool = False, **rules: Any,
    ) -> None:  # fmt: skip
        known(rules, FlowRules, "setting", "a flow")
        for label, type_ in (("config", config), ("results", results)):
            if sys.version_info < (3, 12) and is_typeddict(type_):
                raise InvalidInput(
                    f"{label}: before Python 3.12 use the TypedDict of typing_extensions, or another type", field=label
                )
        self.app, self.name, self.config_type, self.roll_up = app, name, config, choice(roll_up, "roll_up", ROLL_UPS)
        self.results_type = results
        self.singleton = flag(singleton, "singleton")
        self.deadline_s: float | None = Policy(deadline_s=rules.pop("deadline_s", None)).deadline_s
        """The whole flow must end within this time after its submit; the deadline of a task is a rule of its stage."""
        self._rules = rules
        self.redact: tuple[str, ...] = Policy(redact=rules.get("redact", ())).redact
        """Paths of fields in its config, approvals and tasks that readers do not see."""
        self.own_rules = {name: rules[name] for name in ("redact", "idempotency_ttl_s") if rules.get(name)}
        """Rules that also apply to the flow's own job."""
        self.stages: dict[str, StageDefinition[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"<flow {self.name}: {', '.join(self.stages)}>"

    @overload
    def stage(self, function: Callable[P, Awaitable[R2]], /) -> StageDefinition[P, R2]: ...
    @overload
    def stage(self, function: Callable[P, R2], /) -> StageDefinition[P, R2]: ...
    @overload
    def stage(self, /, **rules: Unpack[StageRules]) -> _DeclareStage: ...
    def stage(self, function: Any = None, /, **rules: Any) -> Any:
        """Declare a function as the next stage: `@flow.stage`, or with rules `@flow.stage(each=…, when=…, approve=…)`.

        The rules are `name`, `each`, `when`, `approve`, `compensate`, `on_failure`, and those of `@app.task`.
        """
        if function is not None:
            if not callable(function):
                raise InvalidInput(
                    f"{short_repr(function)} is no function: to name a stage, write @flow.stage(name=…)",
                    field="function",
                )
            return self._add(function)
        known(rules, StageRules, "setting", "a stage")
        return lambda function: self._add(function, **rules)

    def _add(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        each: Any = None,
        when: Callable[..., Any] | None = None,
        approve: Approval | str | None = None,
        compensate: Callable[..., Any] | None = None,
        on_failure: str = STOP,
        **rules: Any,
    ) -> StageDefinition[Any, Any]:
        name = name or function.__name__
        if name in self.stages or name in (CONFIG, ITEM, APPROVAL, RESULTS, RESULT):
            raise InvalidInput(
                f"flow {self.name}: the stage name {name!r} is reserved or already used: choose another", field="name"
            )
        if on_failure not in ON_FAILURE:
            raise InvalidInput(f"{name}: on_failure must be one of {', '.join(ON_FAILURE)}", field="on_failure")
        source = self._source(name, each)
        if source is None and each is not None and not callable(each):
            # A list, because every submit reads it: an iterator would be empty at the second.
            each = _item_list(name, each)
        inner = self._with_flow_rules({k: v for k, v in rules.items() if k in _RULES_OF_INNER_TASKS})
        rules = self._with_flow_rules(rules)
        if self.redact:
            # Each task also hides the paths of the whole flow.
            rules["redact"] = tuple(dict.fromkeys((*self.redact, *rules["redact"])))
        self._check_redact(name, rules.get("redact", ()))
        item = {ITEM} if each is not None else set()
        task = self._declare(name, function, "", _Stage(self, name), {CONFIG, APPROVAL, *item, *self.stages}, **rules)
        condition, undo = self._condition(name, when, inner), None
        if compensate is not None:
            undo = self._declare(name, compensate, ".undo", _Undo(self), {CONFIG, RESULT}, **inner)
        expand = self._expansion(name, condition, inner) if callable(each) and source is None else None
        approval = Approval(owner=approve) if isinstance(approve, str) else approve
        new: StageDefinition[Any, Any] = StageDefinition(
            name, task, source or each, source, condition, approval, undo, on_failure, expand
        )
        self.stages[name] = new
        return new

    def _condition(
        self, stage: str, when: Callable[..., Any] | None, rules: dict[str, Any]
    ) -> TaskDefinition[Any, Any] | None:
        if when is None:
            return None
        available = {CONFIG, RESULTS, *self.stages}
        return self._declare(stage, when, ".when", _Condition(self, stage), available, **rules)

    def _expansion(
        self, stage: str, condition: TaskDefinition[Any, Any] | None, rules: dict[str, Any]
    ) -> TaskDefinition[Any, Any]:
        """The task that creates the tasks of a fan-out over the config: the condition, or one that is always met."""
        rules = {**rules, "isolation": None}
        return condition or self._declare(stage, _always, ".each", _Condition(self, stage), set(), **rules)

    def _with_flow_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        """The rules of one task: its own, and those of the flow for the rest."""
        # `retries` and `max_attempts` are one rule with two names.
        attempts = {"retries", "max_attempts"} if {"retries", "max_attempts"} & rules.keys() else set()
        return {**{k: v for k, v in self._rules.items() if k not in attempts}, **rules}

    def _check_redact(self, stage: str, redact: Iterable[str]) -> None:
        """Raise InvalidInput for a path that names no value of this stage: it would hide nothing."""
        for path in Policy(redact=tuple(redact)).redact:
            first, _, rest = path.partition(".")
            if first in self.stages:
                raise InvalidInput(
                    f"{stage}: the result of {first!r} is redacted on that stage or on the whole flow: "
                    f"pass the path {rest or ANY!r} to the @flow.stage of {first!r}",
                    field="redact",
                )
            if first == APPROVAL and rest and rest.partition(".")[0] not in ANSWER:
                raise InvalidInput(
                    f"{stage}: {path!r} names no field of an approval, which has {', '.join(ANSWER)}; "
                    f"a field of its input is {APPROVAL}.input.{rest}",
                    field="redact",
                )

    def _source(self, name: str, each: Any) -> StageDefinition[Any, Any] | None:
        if isinstance(each, str):
            if each not in self.stages:
                raise InvalidInput(f"{name}: no earlier stage {each!r} to fan out over", field="each")
            return self.stages[each]
        if isinstance(each, StageDefinition):
            if self.stages.get(each.name) is not each:
                raise InvalidInput(f"{name}: {each.name!r} is a stage of another flow", field="each")
            return each
        return None

    def _declare(
        self, stage: str, function: Callable[..., Any], suffix: str, binding: Any, available: set[str], **rules: Any
    ) -> TaskDefinition[Any, Any]:
        kind = f"{self.name}.{stage}{suffix}"
        task = declare(self.app, function, kind=kind, binding=binding, types=self._types(function), **rules)
        for name, parameter in task.signature.parameters.items():
            if name not in available and parameter.default is parameter.empty:
                raise InvalidInput(
                    f"{kind}: no value for the parameter {name!r}; available: {', '.join(sorted(available))}",
                    field=name,
                )
        return self.app.register(task)

    def _types(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The type of a `config` parameter without an annotation: the flow's config type."""
        return {} if self.config_type is None else {CONFIG: self.config_type}

    def submit(
        self, config: C | dict[str, Any] | None = None, *, connection: Any = None, **options: Unpack[FlowOptions]
    ) -> Job[R]:
        """Check the config and submit the flow. It is durable when this returns.

        The result of the job is the result of each stage by name, as a value of the flow's `results` type.
        """
        return self.app.submit_all([self.command(config, options)], connection, self)[0]

    def result(self, results: dict[str, Any]) -> R:
        """The results of its stages as a value of its results type."""
        if self.results_type is None:
            return cast(R, results)
        from pydantic import TypeAdapter

        try:
            return TypeAdapter(self.results_type).validate_python(results)
        except Exception as e:
            raise InvalidInput(f"the results of flow {self.name}: {validation_message(e)}", field="results") from e

    @property
    def aio(self) -> AsyncFlow[C, R]:
        """The `async` API: `await flow.aio.submit(…)`."""
        from onetray.app.async_api import AsyncFlow

        return AsyncFlow(self)

    def command(self, config: Any, options: Mapping[str, Any]) -> SubmitFlow:
        if not self.stages:
            raise InvalidInput(f"flow {self.name} has no stages: declare one with @flow.stage", field="stages")
        known(options, FlowOptions, "option", "a flow")
        value, config_json = self.checked(config)
        stages = [stage.spec(value, config_json) for stage in self.stages.values()]
        fields = {
            "roll_up": self.roll_up, "namespace": self.app.namespace, "redact": self.redact,
            "deadline_s": self.deadline_s, "singleton": self.singleton, **options,
        }  # fmt: skip
        inherit(fields, self.name, config_json)
        return SubmitFlow(name=self.name, stages=stages, data=config_json, **fields)

    def checked(self, config: Any) -> tuple[Any, Any]:
        """The config as a value of its type, and as JSON values."""
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(Any if self.config_type is None else self.config_type)
        try:
            value = adapter.validate_python({} if config is None and self.config_type is not None else config)
            return value, adapter.dump_python(value, mode="json")
        except Exception as e:
            raise InvalidInput(f"the config of flow {self.name}: {validation_message(e)}", field="config") from e


@dataclass(frozen=True)
class _Stage:
    """Provides the arguments of a stage's function, and creates the tasks of stages that fan out over its result."""

    flow: FlowDefinition[Any, Any]
    name: str

    def arguments(self, ctx: TaskContext) -> dict[str, Any]:
        stages, values = self.flow.stages, dict(ctx.payload or {})
        signature = stages[self.name].task.signature
        earlier: dict[str, Any] | None = None
        for name in signature.parameters:
            if name == CONFIG:
                values[CONFIG] = ctx.flow_config
            elif name == APPROVAL:
                values[APPROVAL] = ctx.approval
            elif name in stages and name != self.name:
                if earlier is None:
                    earlier = ctx.inputs["stages"]
                values[name] = earlier.get(name)
                if values[name] is None and stages[name].fanned_out:
                    # The stage's row does not hold that many results.
                    values[name] = ctx.results_of(name)
        return signature.arguments(values)

    def spawn(self, ctx: TaskContext, result: Any) -> dict[str, list[TaskSpec]]:
        source, spawn = self.flow.stages[self.name], {}
        for stage in self.flow.stages.values():
            if stage.source is source:
                items = [result] if source.fanned_out else result
                if not isinstance(items, list):
                    raise InvalidInput(f"{source.name} must return a list: {stage.name} fans out over it", field="each")
                spawn[stage.name] = stage.members(items)
        return {name: specs for name, specs in spawn.items() if specs}


@dataclass(frozen=True)
class _Condition:
    """Provides the arguments of a condition: the config, all results so far, or single ones by stage name.

    In a flow that was submitted by its name, it also creates the tasks of a stage that fans out over the config.
    """

    flow: FlowDefinition[Any, Any]
    stage: str

    def arguments(self, ctx: TaskContext) -> dict[str, Any]:
        payload, signature = ctx.payload, self.flow.app.tasks[ctx.kind].signature
        results = {name: payload[RESULTS].get(name) for name in self.flow.stages}
        for name, stage in self.flow.stages.items():
            if name in signature.parameters and results[name] is None and stage.fanned_out:
                results[name] = ctx.results_of(name)
        values = {**results, RESULTS: payload[RESULTS], CONFIG: payload[CONFIG]}
        return signature.arguments({name: values[name] for name in signature.parameters if name in values})

    def spawn(self, ctx: TaskContext, result: Any) -> dict[str, list[TaskSpec]]:
        if not result or ctx.payload["payload"] != CREATE_TASKS:
            return {}
        stage = self.flow.stages[self.stage]
        config, _ = self.flow.checked(ctx.payload[CONFIG])
        members = stage.members(stage.each(config))
        return {stage.name: members} if members else {}


def _always() -> bool:
    """The condition of a stage that has none."""
    return True


@dataclass(frozen=True)
class _Undo:
    """Provides the arguments of a compensation: the stage's result and the config."""

    flow: FlowDefinition[Any, Any]

    def arguments(self, ctx: TaskContext) -> dict[str, Any]:
        payload, signature = ctx.payload, self.flow.app.tasks[ctx.kind].signature
        values = {RESULT: payload[RESULT], CONFIG: payload["payload"][CONFIG]}
        return signature.arguments({name: values[name] for name in signature.parameters if name in values})

    def spawn(self, ctx: TaskContext, result: Any) -> dict[str, list[TaskSpec]]:
        return {}


def _spec(task: TaskDefinition[Any, Any], payload: Any) -> TaskSpec:
    return TaskSpec(task.kind, payload, queue=task.queue, policy=task.policy)


def _item_list(stage: str, items: Any) -> list[Any]:
    """The items of a fan-out. A str or a dict is iterable too, but passing one is a mistake."""
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping):
        raise InvalidInput(
            f"{stage}: each must be a list, an earlier stage, or a function of the config that returns a list, "
            f"not {short_repr(items)}",
            field="each",
        )
    return list(items)


if TYPE_CHECKING:
    from typing import Protocol

    class _DeclareStage(Protocol):
        @overload
        def __call__(self, function: Callable[P, Awaitable[R2]], /) -> StageDefinition[P, R2]: ...
        @overload
        def __call__(self, function: Callable[P, R2], /) -> StageDefinition[P, R2]: ...

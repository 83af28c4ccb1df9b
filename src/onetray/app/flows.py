"""Flows in plain Python: stages from functions, in the order in which they are declared.

    news = app.flow("news", config=NewsConfig)

    @news.stage
    def fetch(config: NewsConfig) -> list[str]: ...

    @news.stage(each=fetch, on_failure="continue")
    def summarize(item: str) -> str: ...

    @news.stage(when=lambda config: config.publish, approve="editor")
    def publish(summarize: list[str]) -> str: ...

    job = news.submit(NewsConfig(publish=True))

A function names what it needs: `config`, `item` (one of what it is fanned out over), `approval` (what was said by who
approved), or an earlier stage, for what that gave. Owns how these are found and how a flow is built from them. What a
flow does is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from onetray.app.context import TaskContext
from onetray.app.signature import validation_message
from onetray.app.tasks import TaskDefinition, declare, inherit
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.policy import Policy
from onetray.domain.redactor import ANY
from onetray.domain.rollup import ON_FAILURE, STOP, STRICT

if TYPE_CHECKING:
    from onetray.app.async_api import AsyncFlow
    from onetray.app.job import Job
    from onetray.app.onetray import Onetray

C = TypeVar("C")
_OWN = ("name", "stages", "data", "data_json", "namespace")
_OPTIONS = tuple(name for name in SubmitFlow.__dataclass_fields__ if name not in _OWN)
CONFIG, ITEM, APPROVAL, RESULTS, RESULT = "config", "item", "approval", "results", "result"
ANSWER = ("by", "at", "verdict", "note", "input")
"""What a function knows of an approval."""


@dataclass(frozen=True, eq=False)
class StageDefinition:
    """One stage: its task, and the rules by which it is opened, ends and is undone."""

    name: str
    task: TaskDefinition[Any, Any]
    each: Any = None
    source: StageDefinition | None = None
    """The earlier stage whose results it is fanned out over."""
    when: TaskDefinition[Any, Any] | None = None
    approve: Approval | None = None
    compensate: TaskDefinition[Any, Any] | None = None
    on_failure: str = STOP

    @property
    def fanned_out(self) -> bool:
        return self.each is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here and now, without the engine."""
        return self.task.function(*args, **kwargs)

    def spec(self, config: Any, kept: Any) -> StageSpec:
        """The stage as the engine takes it."""
        return StageSpec(
            self.name,
            self._tasks(config),
            on_failure=self.on_failure,
            approval=self.approve,
            when=None if self.when is None else _spec(self.when, None),
            compensate=None if self.compensate is None else _spec(self.compensate, {CONFIG: kept}),
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
        """A task for each of the items."""
        payload = self.task.signature.payload
        return [_spec(self.task, payload((), {ITEM: item}, some=True)) for item in _listed(self.name, items)]


class FlowDefinition(Generic[C]):
    """A flow that can be submitted: its stages, in their order, and the model of its config."""

    def __init__(
        self, app: Onetray, name: str, config: type[C] | None = None, *, roll_up: str = STRICT, **rules: Any
    ) -> None:
        self.app, self.name, self.config_type, self.roll_up = app, name, config, roll_up
        self._rules = rules
        self.redact: tuple[str, ...] = Policy(redact=rules.get("redact", ())).redact
        """What of its config, of its approvals' input and of its tasks is hidden from whoever looks at it."""
        self.stages: dict[str, StageDefinition] = {}

    def __repr__(self) -> str:
        return f"<flow {self.name}: {', '.join(self.stages)}>"

    @overload
    def stage(self, function: Callable[..., Any], /) -> StageDefinition: ...
    @overload
    def stage(self, /, **rules: Any) -> Callable[[Callable[..., Any]], StageDefinition]: ...
    def stage(self, function: Any = None, /, **rules: Any) -> Any:
        """Declare a function as the next stage: `@flow.stage`, or with rules `@flow.stage(each=…, when=…, approve=…)`.

        The rules are `name`, `each`, `when`, `approve`, `compensate`, `on_failure`, and those of `@app.task`.
        """
        if function is not None:
            return self._add(function)
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
    ) -> StageDefinition:
        name = name or function.__name__
        if name in self.stages or name in (CONFIG, ITEM, APPROVAL, RESULTS, RESULT):
            raise InvalidInput(
                f"flow {self.name}: there cannot be a stage {name!r} here: give another name", field="name"
            )
        if on_failure not in ON_FAILURE:
            raise InvalidInput(f"{name}: on_failure must be one of {', '.join(ON_FAILURE)}", field="on_failure")
        source = self._source(name, each)
        if source is None and each is not None and not callable(each):
            # Gone through once for each submit: an iterator would be empty at the second.
            each = _listed(name, each)
        inner = {**self._rules, **{k: v for k, v in rules.items() if k == "queue"}}
        rules = {**self._rules, **rules}
        if self.redact:
            # What the whole flow hides, each of its tasks does.
            rules["redact"] = tuple(dict.fromkeys((*self.redact, *rules["redact"])))
        self._must_be_hideable(name, rules.get("redact", ()))
        item = {ITEM} if each is not None else set()
        stage = StageDefinition(
            name,
            self._declare(name, function, "", _Stage(self, name), {CONFIG, APPROVAL, *item, *self.stages}, **rules),
            source or each,
            source,
            None
            if when is None
            else self._declare(name, when, ".when", _Condition(self), {CONFIG, RESULTS, *self.stages}, **inner),
            Approval(owner=approve) if isinstance(approve, str) else approve,
            None
            if compensate is None
            else self._declare(name, compensate, ".undo", _Undo(self), {CONFIG, RESULT}, **inner),
            on_failure,
        )
        self.stages[name] = stage
        return stage

    def _must_be_hideable(self, stage: str, redact: Iterable[str]) -> None:
        """Refuse a path that names nothing this stage has: what somebody means by it would be shown."""
        for path in Policy(redact=tuple(redact)).redact:
            first, _, rest = path.partition(".")
            if first in self.stages:
                raise InvalidInput(
                    f"{stage}: what {first!r} gives is redacted where {first!r} is declared, or by the whole flow: "
                    f"give the path {rest or ANY!r} to @flow.stage of {first!r}",
                    field="redact",
                )
            if first == APPROVAL and rest and rest.partition(".")[0] not in ANSWER:
                raise InvalidInput(
                    f"{stage}: {path!r} names nothing: an approval has {', '.join(ANSWER)}; what was given with it is "
                    f"{APPROVAL}.input.{rest}",
                    field="redact",
                )

    def _source(self, name: str, each: Any) -> StageDefinition | None:
        if isinstance(each, str):
            if each not in self.stages:
                raise InvalidInput(f"{name}: there is no earlier stage {each!r} to fan out over", field="each")
            return self.stages[each]
        if isinstance(each, StageDefinition):
            if self.stages.get(each.name) is not each:
                raise InvalidInput(f"{name}: {each.name!r} is a stage of another flow", field="each")
            return each
        return None

    def _declare(
        self, stage: str, function: Callable[..., Any], suffix: str, binding: Any, given: set[str], **rules: Any
    ) -> TaskDefinition[Any, Any]:
        kind = f"{self.name}.{stage}{suffix}"
        task = declare(self.app, function, kind=kind, binding=binding, types=self._types(function), **rules)
        for name, parameter in task.signature.parameters.items():
            if name not in given and parameter.default is parameter.empty:
                raise InvalidInput(
                    f"{kind}: {name!r} is nothing that it can be given; there are: {', '.join(sorted(given))}",
                    field=name,
                )
        return self.app.register(task)

    def _types(self, function: Callable[..., Any]) -> dict[str, Any]:
        """A config without an annotation is still the flow's own model."""
        return {} if self.config_type is None else {CONFIG: self.config_type}

    def submit(self, config: C | dict[str, Any] | None = None, *, connection: Any = None, **options: Any) -> Job[Any]:
        """Submit the flow. Its config is checked first; it is durable when this returns.

        The options are those of `engine.submit_flow`: idempotency_key, unique_key, labels, deadline_s, start, …
        """
        return self.app.submit_all([self.command(config, options)], connection, None)[0]

    @property
    def aio(self) -> AsyncFlow:
        """The same for `async` code: `await flow.aio.submit(…)`."""
        from onetray.app.async_api import AsyncFlow

        return AsyncFlow(self)

    def command(self, config: Any, options: dict[str, Any]) -> SubmitFlow:
        if not self.stages:
            raise InvalidInput(f"flow {self.name} has no stages: declare one with @flow.stage", field="stages")
        for name in options:
            if name not in _OPTIONS:
                raise InvalidInput(f"a flow has no option {name!r}; there are: {', '.join(_OPTIONS)}", field=name)
        value, kept = self.checked(config)
        stages = [stage.spec(value, kept) for stage in self.stages.values()]
        given = {"roll_up": self.roll_up, "namespace": self.app.namespace, "redact": self.redact, **options}
        inherit(given, self.name, kept)
        return SubmitFlow(name=self.name, stages=stages, data=kept, **given)

    def checked(self, config: Any) -> tuple[Any, Any]:
        """A config as a value of its model, and as JSON."""
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(Any if self.config_type is None else self.config_type)
        try:
            value = adapter.validate_python({} if config is None and self.config_type is not None else config)
            return value, adapter.dump_python(value, mode="json")
        except Exception as e:
            raise InvalidInput(f"the config of flow {self.name}: {validation_message(e)}", field="config") from e


@dataclass(frozen=True)
class _Stage:
    """Gives a stage's function its arguments, and has later stages fanned out over its result."""

    flow: FlowDefinition[Any]
    name: str

    def arguments(self, ctx: TaskContext) -> dict[str, Any]:
        stages, given = self.flow.stages, dict(ctx.payload or {})
        signature = stages[self.name].task.signature
        earlier: dict[str, Any] | None = None
        for name in signature.parameters:
            if name == CONFIG:
                given[CONFIG] = ctx.flow_config
            elif name == APPROVAL:
                given[APPROVAL] = ctx.approval
            elif name in stages and name != self.name:
                if earlier is None:
                    earlier = ctx.inputs["stages"]
                given[name] = earlier.get(name)
                if given[name] is None and stages[name].fanned_out:
                    # Too many to be collected on the stage.
                    given[name] = ctx.results_of(name)
        return signature.arguments(given)

    def spawn(self, ctx: TaskContext, result: Any) -> dict[str, list[TaskSpec]]:
        own, spawn = self.flow.stages[self.name], {}
        for stage in self.flow.stages.values():
            if stage.source is own:
                items = [result] if own.fanned_out else result
                if not isinstance(items, list):
                    raise InvalidInput(f"{own.name} gave no list, and {stage.name} is fanned out over it", field="each")
                spawn[stage.name] = stage.members(items)
        return {name: specs for name, specs in spawn.items() if specs}


@dataclass(frozen=True)
class _Condition:
    """Gives a condition its arguments: the config, all results so far, or single ones by the names of their stages."""

    flow: FlowDefinition[Any]

    def arguments(self, ctx: TaskContext) -> dict[str, Any]:
        told, signature = ctx.payload, self.flow.app.tasks[ctx.kind].signature
        results = {name: told[RESULTS].get(name) for name in self.flow.stages}
        for name, stage in self.flow.stages.items():
            if name in signature.parameters and results[name] is None and stage.fanned_out:
                results[name] = ctx.results_of(name)
        found = {**results, RESULTS: told[RESULTS], CONFIG: told[CONFIG]}
        return signature.arguments({name: found[name] for name in signature.parameters if name in found})

    def spawn(self, ctx: TaskContext, result: Any) -> dict[str, list[TaskSpec]]:
        return {}


@dataclass(frozen=True)
class _Undo:
    """Gives what undoes a stage its arguments: what the stage gave, and the config."""

    flow: FlowDefinition[Any]

    def arguments(self, ctx: TaskContext) -> dict[str, Any]:
        told, signature = ctx.payload, self.flow.app.tasks[ctx.kind].signature
        found = {RESULT: told[RESULT], CONFIG: told["payload"][CONFIG]}
        return signature.arguments({name: found[name] for name in signature.parameters if name in found})

    def spawn(self, ctx: TaskContext, result: Any) -> dict[str, list[TaskSpec]]:
        return {}


def _spec(task: TaskDefinition[Any, Any], payload: Any) -> TaskSpec:
    return TaskSpec(task.kind, payload, queue=task.queue, policy=task.policy)


def _listed(stage: str, items: Any) -> list[Any]:
    """What a stage is fanned out over. A text or a dict could be gone through, too, but is never meant so."""
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping):
        raise InvalidInput(
            f"{stage} is fanned out over a list, an earlier stage or a function of the config that gives one, "
            f"not over {short_repr(items)}",
            field="each",
        )
    return list(items)

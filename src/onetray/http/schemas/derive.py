"""Request bodies, derived from the declarations of commands.

Owns the mapping from the rules of domain/fields.py to pydantic types, and from a body back to the command.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, create_model

from onetray.domain import fields as rules
from onetray.domain import limits
from onetray.domain.checks import MOST
from onetray.domain.commands import Command, Lines, Report
from onetray.domain.declared_flow import StageDeclaration
from onetray.domain.fields import FieldSpec, Rule, Spec, public_fields
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import A_STAGE, Paths
from onetray.domain.policy import CLASS_CHARS, ON_EXHAUSTION, POLICY_BOUNDS, Policy
from onetray.domain.redactor import MAX_PATHS, PATH_CHARS
from onetray.http.schemas.base import (
    FAIL_FAST,
    MAX_S,
    SOME_ID,
    AliasText,
    Id,
    Line,
    MomentText,
    Name,
    Strict,
    Trace,
    limited_by,
    whole_number,
)
from onetray.remote.command_codec import decode_fields

MAX_CLAIMED = 10_000


class GeneratedBody(Strict):
    """A body created by `create`. It has no source from which pydantic could read descriptions."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def create(name: str, base: type, doc: str | None, fields: Any, example: Mapping[str, Any] | None = None) -> Any:
    config = {} if example is None else {"json_schema_extra": {"examples": [dict(example)]}}
    return create_model(name, __base__=base, __doc__=doc, __cls_kwargs__=config, **fields)


class DerivedBody(GeneratedBody):
    """The body of a command, or of a part of one. Pydantic checks it, the command codec decodes it."""

    describes: ClassVar[type]
    extra_fields: ClassVar[set[str]]
    """Fields of the body that the command does not have."""
    left_out: ClassVar[set[str]]
    """Fields of the command that come from the path or a header instead."""
    plain_fields: ClassVar[dict[str, str]]
    """Internal names of the fields that are the command's as pydantic has parsed them."""

    def field_values(self) -> dict[str, Any]:
        """The fields that the client sent, under their internal names."""
        sent, plain = self.model_fields_set - self.extra_fields, self.plain_fields
        if sent <= plain.keys():
            return {plain[name]: getattr(self, name) for name in sent}
        body = self.model_dump(exclude_unset=True, exclude=self.extra_fields)
        return decode_fields(self.describes, body, self.left_out)

    def value(self, **more: Any) -> Any:
        return self.describes(**{**self.field_values(), **more})


class LineBody(Strict):
    """A log line with its level and data."""

    level: str = Field("info", min_length=1, max_length=20)
    line: Line
    data: Any = None


_TEXTS: Any = {"type": "string", "minLength": 1}
_BOUNDS: dict[str, Any] = {
    **{name: {"minimum": least, "maximum": most} for name, (least, most) in POLICY_BOUNDS.items()},
    **{name: {"items": {**_TEXTS, "maxLength": CLASS_CHARS}} for name in ("retry_on", "no_retry_on")},
    "redact": {"maxItems": MAX_PATHS, "items": {**_TEXTS, "maxLength": PATH_CHARS}},
    "on_exhaustion": {"enum": list(ON_EXHAUSTION)},
}
"""The bounds that Policy checks, for the OpenAPI description."""


Key = Annotated[str, Field(min_length=1, max_length=PATH_CHARS)]


class ConcurrencyBody(Strict):
    """How many tasks of a kind run at once; with a `key`, of each value that this path has in the payload."""

    most: Annotated[int, Field(ge=1, le=limits.MOST), whole_number]
    key: Key | None = None


class RateBody(Strict):
    """How many tasks of a kind start within a period; with a `key`, of each value that this path has in the payload."""

    count: Annotated[int, Field(ge=1, le=limits.MOST), whole_number]
    per_s: Annotated[float, Field(ge=limits.SHORTEST_PERIOD_S, le=limits.LONGEST_PERIOD_S)] = 1.0
    key: Key | None = None
    smooth: bool = False


_LIMITS = Field((), max_length=limits.MAX_KEYS + 1)
_POLICY: dict[str, Any] = {
    name: (hint, Field(getattr(Policy, name), json_schema_extra=_BOUNDS.get(name)))
    for name, hint in inspect.get_annotations(Policy, eval_str=True).items()
} | {
    "concurrency": (tuple[ConcurrencyBody, ...], _LIMITS), "rate": (tuple[RateBody, ...], _LIMITS),
    "fair_by": (Key | None, None),
}  # fmt: skip
PolicyBody: Any = create("PolicyBody", GeneratedBody, "How a task runs, in place of the policy of its kind.", _POLICY)

_TYPES: dict[type[Rule], Callable[[Any], Any]] = {
    rules.Text: lambda r: Annotated[str, Field(min_length=r.least or None), limited_by(r.limit)],
    # The limits first: after the validator they would not be in the schema.
    rules.Whole: lambda r: Annotated[
        int, Field(ge=r.least, le=r.most if isinstance(r.most, int) else MAX_CLAIMED), whole_number
    ],
    rules.Duration: lambda r: Annotated[float, Field(ge=r.least, le=MAX_S)],
    rules.Choice: lambda r: Literal[r.among],
    rules.Json: lambda r: Any,
    rules.Id: lambda r: Id,
    rules.TaskRef: lambda r: Id,
    rules.Simple: lambda r: _SIMPLE[r.name],
    rules.Names: lambda r: Annotated[
        tuple[Name, ...], Field(max_length=r.most) if isinstance(r.most, int) else limited_by(r.most)
    ],
    Lines: lambda r: Annotated[tuple[Line | LineBody, ...], FAIL_FAST, limited_by("batch"), Field(min_length=1)],
    Paths: lambda r: Annotated[tuple[str, ...], Field(json_schema_extra=_BOUNDS["redact"])],
    Spec: lambda r: _spec_type(r),
}  # fmt: skip
"""The pydantic type of each rule."""
_SIMPLE: dict[str, Any] = {
    "flag": bool, "amount": Annotated[float, Field(ge=0, le=MOST)], "moment": MomentText, "trace": Trace,
    "labels": Annotated[dict[str, Name], limited_by("labels")], "alias": AliasText,
}  # fmt: skip


def _spec_type(rule: Spec) -> Any:
    if rule.kind is dict:
        return dict[str, Any]
    body = PolicyBody if rule.kind is Policy else PARTS[rule.kind]
    if not rule.many:
        return body
    items: Any = Annotated[tuple[body, ...], FAIL_FAST, limited_by(rule.many), Field(min_length=rule.least or None)]  # type: ignore[valid-type]
    return dict[str, items] if rule.by_name else items


def _field(f: FieldSpec, description: str | None) -> tuple[Any, Any]:
    """The pydantic type and field of a declared field."""
    kind = _TYPES[type(f.rule)](f.rule)
    if f.is_required:
        return kind, Field(description=description)
    if f.default == {}:
        return kind, Field(default_factory=dict, description=description)
    return (kind | None if f.optional and kind is not Any else kind), Field(f.default, description=description)


def body_of(
    kind: type,
    name: str,
    *,
    without: tuple[str, ...] = (),
    example: Mapping[str, Any] | None = None,
    about: str | None = None,
    **more: Any,
) -> Any:
    """The body of a command or of a part of one, from its declared fields; `more` are additional fields."""
    fields: dict[str, Any] = {}
    texts = descriptions(kind)
    for public, f in public_fields(kind).items():
        if isinstance(f.rule, Spec) and f.rule.flat:
            inner_texts = descriptions(f.rule.kind)
            fields |= {n: _field(inner, inner_texts.get(inner.name)) for n, inner in public_fields(f.rule.kind).items()}
        elif public not in without:
            fields[public] = _field(f, texts.get(f.name))
    model = create(name, DerivedBody, about or inspect.getdoc(kind), {**fields, **more}, example)
    model.describes, model.left_out = kind, set(without) - more.keys()
    model.extra_fields = more.keys() - public_fields(kind).keys()
    model.plain_fields = {
        public: f.name
        for public, f in public_fields(kind).items()
        if public not in model.left_out and _is_plain(f.rule)
    }
    return model


def _is_plain(rule: Rule) -> bool:
    """Whether the command codec would leave what pydantic has parsed as it is."""
    return rule is not rules.MOMENT and not isinstance(rule, Spec | Lines)


@lru_cache(maxsize=256)
def descriptions(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class, read from its source."""
    texts: dict[str, str] = {}
    for part in reversed(kind.__mro__[:-1]):
        texts |= _field_docstrings(part.__module__).get(part.__qualname__, {})
    return texts


@lru_cache(maxsize=256)
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Those of all classes of a module. Parsed once: inspect.getsource would parse it for each class."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # There is no source.
        return {}
    return {name: _docstrings(node) for name, node in _classes(tree.body, "")}


def _classes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """The classes of a module by their qualified names, those within functions and classes too."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _classes(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield from _classes(node.body, f"{prefix}{node.name}.<locals>.")


def _docstrings(tree: ast.ClassDef) -> dict[str, str]:
    texts: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return texts


PARTS: dict[type, Any] = {}
"""The bodies of parts of commands."""
PARTS[TaskSpec] = MemberBody = body_of(TaskSpec, "MemberBody", example=A_STAGE["tasks"][0])
PARTS[Approval] = ApprovalBody = body_of(Approval, "ApprovalBody")
PARTS[StageSpec] = StageBody = body_of(StageSpec, "StageBody", example=A_STAGE)
PARTS[StageDeclaration] = body_of(
    StageDeclaration, "StageDeclarationBody", example={"name": "resize", "kind": "thumbnails.resize"}
)

TICKET: dict[str, Any] = {"fence": 1, "worker": "worker-1"}
OUTSIDE = ("trace",)
"""Fields that come from a header, not from the body."""


def id_field(kind: Any) -> str:
    """The public name of the field with the id of the command's task, stage or flow; empty if it has none."""
    return next((n for n, f in public_fields(kind).items() if isinstance(f.rule, rules.Id) and f.is_required), "")


def command_example(kind: type[Command]) -> dict[str, Any]:
    return {**(TICKET if issubclass(kind, Report) else {}), **kind.declared.example}


def route_body(kind: type[Command]) -> Any:
    """The body of a command's route, whose path has the id."""
    name = _NAMES.get(kind.verb) or f"{kind.verb.title().replace('_', '')}Body"
    if name not in ROUTE_BODIES:
        without = (id_field(kind), *OUTSIDE)
        example = command_example(kind) or {"reason": "the customer called"}
        ROUTE_BODIES[name] = body_of(kind, name, without=without, example=example, about=_ABOUT.get(name))
    return ROUTE_BODIES[name]


_NAMES = {
    **dict.fromkeys(("open_flow", "seal_flow", "seal_stage", "pause_flow"), "ReasonBody"),
    **dict.fromkeys(("reject_stage", "skip_stage"), "AnswerBody"),
    "approve_stage": "ApproveBody", "wait_stage": "WaitBody", "set_priority": "PriorityBody",
    **dict.fromkeys(("set_metadata", "set_stage_metadata"), "MetadataBody"),
}  # fmt: skip
"""Names of bodies that several commands share, or that differ from the verb."""
_ABOUT = {
    "ReasonBody": "An optional `reason`, which is recorded in the event log.",
    "AnswerBody": "The answer to a stage that waits for a decision.",
}
ROUTE_BODIES: dict[str, Any] = {}


@lru_cache(maxsize=256)
def command_body(kind: Any) -> Any:
    """A command in a batch, with its verb and the id of its task, stage or flow."""
    name = f"{kind.verb.title()}Report" if issubclass(kind, Report) else f"{kind.__name__}Command"
    about = {id_: SOME_ID} if (id_ := id_field(kind)) else {}
    example = {"verb": kind.verb, **about, **command_example(kind)}
    return body_of(kind, name, example=example, verb=(Literal[kind.verb], ...))

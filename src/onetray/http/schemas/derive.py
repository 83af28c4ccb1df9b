"""Bodies of requests, made from what commands declare. A field that is not known is refused by its name.

Owns the way from a rule of domain/fields.py to a type of pydantic's, and back from a body to the value it describes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, create_model

from onetray.domain import fields as rules
from onetray.domain.checks import MOST
from onetray.domain.commands import Command, Lines, Report
from onetray.domain.fields import FieldSpec, Rule, Spec, public_fields
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import A_STAGE, Paths
from onetray.domain.policy import CLASS_CHARS, ON_EXHAUSTION, POLICY_BOUNDS, Policy
from onetray.domain.redactor import MOST_PATHS, PATH_CHARS
from onetray.http.schemas.base import (
    FIRST,
    MAX_S,
    SOME_ID,
    Id,
    Line,
    MomentText,
    Name,
    Strict,
    Trace,
    most,
    whole_number,
)
from onetray.remote.command_codec import decode_fields

MAX_CLAIMED = 10_000


class Made(Strict):
    """A body that `made_model` makes. It has no source in which pydantic could look for descriptions."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def made_model(name: str, base: type, doc: str | None, fields: Any, example: Mapping[str, Any] | None = None) -> Any:
    config = {} if example is None else {"json_schema_extra": {"examples": [dict(example)]}}
    return create_model(name, __base__=base, __doc__=doc, __cls_kwargs__=config, **fields)


class DerivedBody(Made):
    """A body that describes a value: a command, or a part of one. Pydantic checks it, and the codec reads it."""

    describes: ClassVar[type]
    own: ClassVar[set[str]]
    """Fields of the body that the value does not have."""
    left_out: ClassVar[set[str]]
    """Fields of the value that the body does not have: the path or a header says them."""

    def field_values(self) -> dict[str, Any]:
        """The fields that were sent, under the names they have inside."""
        return decode_fields(self.describes, self.model_dump(exclude_unset=True, exclude=self.own), self.left_out)

    def value(self, **more: Any) -> Any:
        return self.describes(**{**self.field_values(), **more})


class LineBody(Strict):
    """A line with its level and data."""

    level: str = Field("info", min_length=1, max_length=20)
    line: Line
    data: Any = None


_TEXTS: Any = {"type": "string", "minLength": 1}
_BOUNDS: dict[str, Any] = {
    **{name: {"minimum": least, "maximum": most_} for name, (least, most_) in POLICY_BOUNDS.items()},
    **{name: {"items": {**_TEXTS, "maxLength": CLASS_CHARS}} for name in ("retry_on", "no_retry_on")},
    "redact": {"maxItems": MOST_PATHS, "items": {**_TEXTS, "maxLength": PATH_CHARS}},
    "on_exhaustion": {"enum": list(ON_EXHAUSTION)},
}
"""What a policy itself checks, for the description."""


_POLICY: dict[str, Any] = {
    name: (hint, Field(getattr(Policy, name), json_schema_extra=_BOUNDS.get(name)))
    for name, hint in inspect.get_annotations(Policy, eval_str=True).items()
}
PolicyBody: Any = made_model("PolicyBody", Made, "How the task is run, instead of its kind's own policy.", _POLICY)

_TYPES: dict[type[Rule], Callable[[Any], Any]] = {
    rules.Text: lambda r: Annotated[str, Field(min_length=r.least or None), most(r.limit)],
    # The limits first: behind the validator they would not be in the schema.
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
        tuple[Name, ...], Field(max_length=r.most) if isinstance(r.most, int) else most(r.most)
    ],
    Lines: lambda r: Annotated[tuple[Line | LineBody, ...], FIRST, most("batch"), Field(min_length=1)],
    Paths: lambda r: Annotated[tuple[str, ...], Field(json_schema_extra=_BOUNDS["redact"])],
    Spec: lambda r: _spec_type(r),
}  # fmt: skip
"""How each rule is said to pydantic. A rule that is not here makes no body."""
_SIMPLE: dict[str, Any] = {
    "flag": bool, "amount": Annotated[float, Field(ge=0, le=MOST)], "moment": MomentText, "trace": Trace,
    "labels": Annotated[dict[str, Name], most("labels")],
}  # fmt: skip


def _spec_type(rule: Spec) -> Any:
    if rule.kind is dict:
        return dict[str, Any]
    body = PolicyBody if rule.kind is Policy else PARTS[rule.kind]
    if not rule.many:
        return body
    several: Any = Annotated[tuple[body, ...], FIRST, most(rule.many), Field(min_length=rule.least or None)]  # type: ignore[valid-type]
    return dict[str, several] if rule.by_name else several


def _field(f: FieldSpec, description: str | None) -> tuple[Any, Any]:
    """The type and the default of one field of a body."""
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
    """The body that describes a class, by what its fields declare; `more` are fields of the body's own."""
    found: dict[str, Any] = {}
    described = descriptions(kind)
    for public, f in public_fields(kind).items():
        if isinstance(f.rule, Spec) and f.rule.flat:
            inner = descriptions(f.rule.kind)
            found |= {n: _field(own, inner.get(own.name)) for n, own in public_fields(f.rule.kind).items()}
        elif public not in without:
            found[public] = _field(f, described.get(f.name))
    model = made_model(name, DerivedBody, about or inspect.getdoc(kind), {**found, **more}, example)
    model.describes, model.left_out = kind, set(without) - more.keys()
    model.own = more.keys() - public_fields(kind).keys()
    return model


@lru_cache(maxsize=256)
def descriptions(kind: type) -> dict[str, str]:
    """The texts that stand below the fields of a class, in its source."""
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        except (OSError, TypeError):  # Made without a source: there is nothing to read.
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found


PARTS: dict[type, Any] = {}
"""The bodies of what commands are made from."""
PARTS[TaskSpec] = MemberBody = body_of(TaskSpec, "MemberBody", example=A_STAGE["tasks"][0])
PARTS[Approval] = ApprovalBody = body_of(Approval, "ApprovalBody")
PARTS[StageSpec] = StageBody = body_of(StageSpec, "StageBody", example=A_STAGE)

TICKET: dict[str, Any] = {"fence": 1, "worker": "worker-1"}
OUTSIDE = ("trace",)
"""What a request says in a header, not in its body."""


def id_field(kind: Any) -> str:
    """The public name of the field that says what a command is about; none for what is about nothing yet."""
    return next((n for n, f in public_fields(kind).items() if isinstance(f.rule, rules.Id) and f.is_required), "")


def command_example(kind: type[Command]) -> dict[str, Any]:
    return {**(TICKET if issubclass(kind, Report) else {}), **kind.declared.example}


def route_body(kind: type[Command]) -> Any:
    """The body of a command's own route: what it is about stands in the path."""
    name = _NAMES.get(kind.verb) or f"{kind.verb.title().replace('_', '')}Body"
    if name not in ROUTE_BODIES:
        without = (id_field(kind), *OUTSIDE)
        example = command_example(kind) or {"reason": "the customer called"}
        ROUTE_BODIES[name] = body_of(kind, name, without=without, example=example, about=_ABOUT.get(name))
    return ROUTE_BODIES[name]


_NAMES = {
    **dict.fromkeys(("open_flow", "seal_flow", "seal_stage", "pause_flow"), "Why"),
    **dict.fromkeys(("reject_stage", "skip_stage"), "AnswerBody"),
    "approve_stage": "ApproveBody", "wait_stage": "WaitBody", "set_priority": "PriorityBody",
}  # fmt: skip
"""Bodies that were named before they were derived, and those that several commands share."""
_ABOUT = {
    "Why": "Nothing has to be said; `reason` stands in the log.",
    "AnswerBody": "What somebody says to a stage that waits.",
}
ROUTE_BODIES: dict[str, Any] = {}


@lru_cache(maxsize=256)
def command_body(kind: Any) -> Any:
    """A command in a batch, where it has to say itself what it is."""
    name = f"{kind.verb.title()}Report" if issubclass(kind, Report) else f"{kind.__name__}Command"
    about = {id_: SOME_ID} if (id_ := id_field(kind)) else {}
    example = {"verb": kind.verb, **about, **command_example(kind)}
    return body_of(kind, name, example=example, verb=(Literal[kind.verb], ...))

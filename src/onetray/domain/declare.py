"""Declare commands: each once, on its class.

    @command("release", scope=WORK, summary="Release a task", repeatable=True)
    class Release(Report):
        reason: Reason | None = None

Owns the registry. Routes, bodies, scopes, the remote client's requests and the types of answers are derived from it. A
client cannot send a command that is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

from onetray.config import Limits
from onetray.domain.errors import InvalidInput
from onetray.domain.fields import check_of, fields_of
from onetray.domain.token import OPERATE, SUBMIT, WORK

C = TypeVar("C", bound="Command")


@dataclass(frozen=True, slots=True)
class Declaration:
    """The properties of a command besides its fields."""

    scope: str | None
    """The scope that a token needs to send it. None: only the engine itself runs it."""
    summary: str
    answer: Any
    """The type of its answer."""
    answer_name: str = ""
    """The name of the answer in JSON, if it is not an object itself."""
    repeatable: bool = False
    """Whether a client may send it again if its answer was lost."""
    path: str = ""
    """Its own route, if it has one."""
    example: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Command:
    """The base class of all commands. `check` raises InvalidInput, or fills in the fields with `init=False`."""

    verb: ClassVar[str] = ""
    declared: ClassVar[Declaration]
    answers: ClassVar[Any] = None
    """The type of the answer, for subclasses that declare none."""
    route: ClassVar[str] = ""
    """The route of subclasses that declare none, with `{verb}` in it."""
    checked_before: ClassVar[frozenset[str]] = frozenset()
    """Fields that `check` of a base class checks by its own code."""

    @property
    def size(self) -> int:
        """How many tasks it adds to a transaction."""
        return 1

    def check(self, limits: Limits) -> None:
        self.check_fields(limits)

    def check_fields(self, limits: Limits) -> None:
        """Check each field by its rule. The decorator `command` replaces this method."""
        raise InvalidInput(f"{type(self).__name__} is not a command", field="verb")


VERBS: dict[str, type[Command]] = {}
"""Every command by its verb."""


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def command(
    verb: str, *, scope: str | None, summary: str = "", answer: Any = None, **more: Any
) -> Callable[[type[C]], type[C]]:
    """Turn a class into a command: a dataclass, registered by its verb.

    The summary defaults to the first line of the docstring.
    """

    def declare(cls: type[C]) -> type[C]:
        kind: Any = dataclass(slots=True, kw_only=True)(cls)
        kind.verb, kind.check_fields = verb, check_of(kind, without=kind.checked_before)
        more.setdefault("path", kind.route.replace("{verb}", verb))
        kind.declared = Declaration(scope, summary or _first_line(kind), answer or kind.answers, **more)
        _check_declaration(kind)
        VERBS[verb] = kind
        return kind  # type: ignore[no-any-return]

    return declare


def _first_line(kind: Any) -> str:
    return (kind.__doc__ or "").partition("\n")[0].rstrip(".")


def _check_declaration(kind: Any) -> None:
    if kind.verb in VERBS and VERBS[kind.verb].__qualname__ != kind.__qualname__:
        raise TypeError(f"{kind.verb} is declared twice")
    if kind.declared.scope not in (None, SUBMIT, WORK, OPERATE):
        raise TypeError(f"{kind.verb}: a command cannot have the scope {kind.declared.scope}")
    if kind.declared.answer is None:
        raise TypeError(f"{kind.verb} declares no type of its answer")
    fields_of(kind)

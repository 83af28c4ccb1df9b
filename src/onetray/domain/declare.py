"""How a command is declared: once, on its class.

    @command("release", scope=WORK, summary="Give a task back", repeatable=True)
    class Release(Report):
        reason: Reason | None = None

Owns the registry. Everything that names commands is derived from it: routes, bodies, scopes, what a client may send,
and what it is answered. What is not declared here cannot be sent.
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
    """What is said of a command besides its fields."""

    scope: str | None
    """What a token needs to send it. None: it is the engine's own, and nobody sends it."""
    summary: str
    answer: Any
    """The type of what it is answered with."""
    answer_name: str = ""
    """Under which name the answer stands in JSON, when it is not an object itself."""
    repeatable: bool = False
    """Whether it may be sent again when nobody knows whether it arrived."""
    path: str = ""
    """Its own route, if it has one."""
    example: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Command:
    """What all commands share. `check` raises, or fills in the checked, stored forms."""

    verb: ClassVar[str] = ""
    declared: ClassVar[Declaration]
    answers: ClassVar[Any] = None
    """What the commands of a family are answered with, unless one says otherwise."""
    route: ClassVar[str] = ""
    """The routes of a family, each with its verb."""
    checked_before: ClassVar[frozenset[str]] = frozenset()
    """Fields that a family of commands checks by code of its own."""

    @property
    def size(self) -> int:
        """How much it adds to a transaction: as many tasks."""
        return 1

    def check(self, limits: Limits) -> None:
        self.check_fields(limits)

    def check_fields(self, limits: Limits) -> None:
        """Check each field by its rule. The declaration of a command puts its own in this place."""
        raise InvalidInput(f"{type(self).__name__} is not a command", field="verb")


VERBS: dict[str, type[Command]] = {}
"""Every command by its verb."""


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def command(
    verb: str, *, scope: str | None, summary: str = "", answer: Any = None, **more: Any
) -> Callable[[type[C]], type[C]]:
    """Make a class a command: a dataclass whose fields are declared, known by its verb.

    What it does in a few words is its `summary`, or its docstring.
    """

    def declare(cls: type[C]) -> type[C]:
        kind: Any = dataclass(slots=True, kw_only=True)(cls)
        kind.verb, kind.check_fields = verb, check_of(kind, without=kind.checked_before)
        more.setdefault("path", kind.route.replace("{verb}", verb))
        kind.declared = Declaration(scope, summary or _first_line(kind), answer or kind.answers, **more)
        _must_be_whole(kind)
        VERBS[verb] = kind
        return kind  # type: ignore[no-any-return]

    return declare


def _first_line(kind: Any) -> str:
    return (kind.__doc__ or "").partition("\n")[0].rstrip(".")


def _must_be_whole(kind: Any) -> None:
    if kind.verb in VERBS and VERBS[kind.verb].__qualname__ != kind.__qualname__:
        raise TypeError(f"{kind.verb} is declared twice")
    if kind.declared.scope not in (None, SUBMIT, WORK, OPERATE):
        raise TypeError(f"{kind.verb}: no command needs the scope {kind.declared.scope}")
    if kind.declared.answer is None:
        raise TypeError(f"{kind.verb} does not say what it is answered with")
    fields_of(kind)

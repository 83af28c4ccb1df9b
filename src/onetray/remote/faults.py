"""Errors on their way to a client and back: by their code, with their message and their facts.

Owns that a refusal is the same class on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onetray.errors import IllegalTransition, OnetrayError

PROBLEM = ("type", "title", "status", "code", "detail")
"""What RFC 9457 says of every problem. The rest are facts."""


def _all(kind: type[OnetrayError]) -> Iterator[type[OnetrayError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _all(inner)


def of_problem(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem, as the server tells it of a request, as the refusal of one command."""
    facts = {name: fact for name, fact in problem.items() if name not in PROBLEM}
    return {"code": problem["code"], "message": problem["detail"], "facts": facts}


def raised(code: object, message: object, facts: object) -> OnetrayError:
    """The error that was told. A code that is not known here is an error without a class of its own."""
    kind = next((k for k in _all(OnetrayError) if k.code == code), OnetrayError)
    known = {str(name): fact for name, fact in facts.items()} if isinstance(facts, dict) else {}
    if issubclass(kind, IllegalTransition) and "actions" in known:
        known["allowed"] = known.pop("actions")
    for taken in ("self", "message"):
        known.pop(taken, None)
    return kind(str(message), **known)

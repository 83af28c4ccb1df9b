"""Declarations of reads and acts: the methods of an engine that a server also offers by name.

    @read(of_task, READ, WORK)
    def logs(self, task: str, *, namespace: str = "default", after: int = 0) -> list[LogLine]: ...

The server's route with its scope, checks and description (http/routes/rpc.py), the method of the remote engine, and the
redaction of the answer follow from the declaration. api.py lists all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from onetray.config import EngineConfig
from onetray.domain.checks import MAX_ROWS, listed, text, whole
from onetray.domain.commands import MAX_KINDS
from onetray.domain.token import OPERATE, READ
from onetray.redaction.answers import Redact, plain
from onetray.store.base import Rows, Store

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

FROM_TOKEN = frozenset({"self", "namespace", "actor", "by", "raw"})
"""Parameters that clients cannot send: a server takes them from the token."""


class HasApiMethods(Protocol):
    """Has API methods: an engine, or a part of one."""

    def bind(self, method: ApiMethod[P, R]) -> Callable[P, R]: ...


class ApiMethod(Generic[P, R_co]):
    """A method of every engine that a server also offers by name.

    `engine.task` is `engine.bind(TaskApi.task)`: one engine queries its database, one calls a server, one redacts.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Any, P], R_co],
        redact: Redact,
        scopes: tuple[str, ...],
        writes: bool,
        guarded: Mapping[str, str] | None = None,
    ) -> None:
        self.function, self.redact, self.scopes, self.writes = function, redact, scopes, writes
        self.guarded = guarded or {}
        """Parameters that need a scope of their own."""
        self.name, self.__doc__ = function.__name__, function.__doc__
        self.signature = inspect.signature(function, eval_str=True)
        self.answer_type: Any = self.signature.return_annotation
        self.parameters = {name: p for name, p in self.signature.parameters.items() if name not in FROM_TOKEN}
        self.part: type | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        # The first owner is the part that implements it; the API only lists it.
        self.part = self.part or owner

    @overload
    def __get__(self, engine: None, owner: type) -> ApiMethod[P, R_co]: ...
    @overload
    def __get__(self, engine: HasApiMethods, owner: type) -> Callable[P, R_co]: ...
    def __get__(self, engine: HasApiMethods | None, owner: type) -> ApiMethod[P, R_co] | Callable[P, R_co]:
        return self if engine is None else engine.bind(self)

    def of_caller(self, **known: Any) -> dict[str, Any]:
        """The arguments among these that the method has."""
        return {name: value for name, value in known.items() if name in self.signature.parameters}

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name."""
        return self.signature.bind(None, *args, **kwargs).arguments


def read(redact: Redact, *scopes: str, **guarded: str) -> Callable[[Callable[Concatenate[Any, P], R]], ApiMethod[P, R]]:
    """Declare a read: how its answer is redacted, and the scopes of which a token needs one (default: `read`).

    `guarded`: the scopes of parameters that need more than the read itself.
    """
    return lambda function: ApiMethod(function, redact, scopes or (READ,), writes=False, guarded=guarded)


def own_route(function: Callable[Concatenate[Any, P], R]) -> ApiMethod[P, R]:
    """Declare a method of every engine that has its own route at a server, and is not offered by name."""
    return ApiMethod(function, plain, (), writes=True)


def act(function: Callable[Concatenate[Any, P], R]) -> ApiMethod[P, R]:
    """Declare an action of operators that is not a transition."""
    return ApiMethod(function, plain, (OPERATE,), writes=True)


def act_for(*scopes: str, **guarded: str) -> Callable[[Callable[Concatenate[Any, P], R]], ApiMethod[P, R]]:
    """Declare an action for other scopes. `guarded`: the scopes of parameters that need more than the action itself."""
    return lambda function: ApiMethod(function, plain, scopes, writes=True, guarded=guarded)


def act_showing(
    redact: Redact, *scopes: str, **guarded: str
) -> Callable[[Callable[Concatenate[Any, P], R]], ApiMethod[P, R]]:
    """Declare an action whose answer is redacted, for operators or for other scopes."""
    return lambda function: ApiMethod(function, redact, scopes or (OPERATE,), writes=True, guarded=guarded)


def kind_filters(kinds: Sequence[str], name_chars: int) -> dict[str, Any]:
    """The parameters of a query for several kinds; for all if there are none."""
    names = [text(kind, "kinds", name_chars) for kind in listed(kinds, "kinds", 0, MAX_KINDS)]
    return {"kinds": names, "any_kind": int(not names)}


def before_if_given(before: int | None) -> dict[str, int]:
    """The parameter `before` of a read, to check it."""
    return {} if before is None else {"before": before}


class DatabaseReads:
    """A part of the engine that reads its database with named queries."""

    def __init__(self, store: Store, config: EngineConfig, must_not_have_forked: Callable[[], None]) -> None:
        self.store, self.config, self.must_not_have_forked = store, config, must_not_have_forked

    def bind(self, method: ApiMethod[P, R]) -> Callable[P, R]:
        return MethodType(method.function, self)

    def _read(self, name: str, **params: Any) -> Rows:
        """Run a named query after checking its parameters."""
        self.check(**params)
        return self.store.read(name, **params)

    def _read_either_way(self, name: str, before: int | None, **params: Any) -> Rows:
        """Run a named query or, with `before`, the one called `last_…`, which reads backwards. Both answer in order."""
        if before is None:
            return self._read(name, **params)
        return self._read(f"last_{name}", before=before, **params)[::-1]

    def check(self, **params: Any) -> None:
        """Check the parameters of a read, so that an error names the parameter."""
        if "namespace" in params:
            text(params["namespace"], "namespace", self.config.limits.name_chars)
        if "limit" in params:
            whole(params["limit"], "limit", 0, MAX_ROWS)
        for number in ("after", "before"):
            if number in params:
                whole(params[number], number, 0, 2**62)
        self.must_not_have_forked()

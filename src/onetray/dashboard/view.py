"""What a page sees of its request: the caller, the parameters, and an engine that reads only what the caller may.

Owns the caller's namespace: no page can read another one by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from markupsafe import Markup

from onetray.dashboard.pages import Flash, has_page, path_of, with_query
from onetray.domain.checks import text
from onetray.domain.commands import Command
from onetray.domain.errors import Forbidden, InvalidInput
from onetray.domain.token import ADMIN
from onetray.engine.api import METHODS, EngineApi
from onetray.engine.token_api import Tokens
from onetray.http.auth.scopes import Principal
from onetray.http.services import Services

NAMESPACE = "namespace"
MAX_FIELDS = 1_000


class Values:
    """Parameters of a URL, or the fields of a form. A name may have several values."""

    def __init__(self, encoded: str) -> None:
        try:
            self.pairs = parse_qsl(encoded, keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise InvalidInput(f"there are more than {MAX_FIELDS} fields: leave some out", field="form") from None

    def text(self, name: str, default: str = "") -> str:
        """The last value, without white space around it."""
        return next((value.strip() for key, value in reversed(self.pairs) if key == name), default)

    def many(self, name: str) -> list[str]:
        """All values that are not empty."""
        return [value.strip() for key, value in self.pairs if key == name and value.strip()]

    def whole(self, name: str, default: int, least: int = 0, most: int = 2**53) -> int:
        """A number within a range. What is none, or out of range, is refused."""
        given = self.text(name)
        if not given:
            return default
        if not given.isdecimal() or len(given) > 16 or not least <= int(given) <= most:
            raise InvalidInput(
                f"{name} must be a whole number from {least:,} to {most:,}, not {given[:20]!r}", field=name
            )
        return int(given)

    def flag(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name) in ("1", "on", "true", "yes")

    def as_dict(self) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        for key, value in self.pairs:
            values.setdefault(key, []).append(value)
        return values


Form = Values


class CallerEngine:
    """The reads and acts of an engine as the caller: in its namespace, with its name, within its scopes."""

    def __init__(self, engine: EngineApi, principal: Principal) -> None:
        self._engine, self._principal = engine, principal

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = METHODS.get(name)
        if method is None:
            raise AttributeError(f"an engine has no read or act {name!r}")
        call, principal = getattr(self._engine, name), self._principal

        def call_as_caller(*args: Any, **kwargs: Any) -> Any:
            must_have(principal, *method.scopes)
            for parameter in method.guarded.keys() & method.arguments(args, kwargs).keys():
                must_have(principal, method.guarded[parameter])
            own = method.of_caller(namespace=principal.namespace, by=principal.name)
            return call(*args, **{**kwargs, **own})

        return call_as_caller


class View:
    """One request for a page, or one look at a page that is watched."""

    def __init__(
        self, services: Services, principal: Principal, location: str, *, path: Mapping[str, str], query: str,
        flash: Flash | None = None, carried: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.services, self.location, self.path, self.flash = services, location, dict(path), flash
        self.query = Values(query)
        self.principal = in_namespace(principal, self.query.text(NAMESPACE), services)
        self.engine = CallerEngine(services.engine, self.principal)
        self.carried = carried or {}
        """What an action hands to the page that answers its form."""
        self.fragments: dict[str, Markup] = {}
        """What the template has marked as live, by name."""

    @property
    def namespace(self) -> str:
        return self.principal.namespace

    @cached_property
    def now(self) -> int:
        """The database's time, in microseconds."""
        return int(self.services.engine.now())

    @property
    def limits(self) -> Any:
        return self.services.engine.config.limits

    @property
    def tokens(self) -> Tokens:
        """All tokens, for administrators. Pass `namespace=view.namespace` wherever a method takes it."""
        must_have(self.principal, ADMIN)
        return self.services.unredacted.tokens

    def may(self, *scopes: str) -> bool:
        """Whether the caller has one of these scopes."""
        return self.principal.has(*scopes)

    def call(self, command: type[Command], **fields: Any) -> Any:
        """Carry out a command as the caller. Returns its value, or raises its error."""
        scope = command.declared.scope
        if scope is None:
            raise Forbidden(f"only the engine itself runs {command.verb}")
        must_have(self.principal, scope)
        return self.services.engine.call(command(**self.as_caller(command), **fields))

    def as_caller(self, command: type[Command]) -> dict[str, Any]:
        """The fields of a command that say who sends it."""
        own = {
            "namespace": self.principal.namespace, "actor_name": self.principal.name,
            "actor_groups": self.principal.groups,
        }  # fmt: skip
        known = {field.name for field in dataclass_fields(command)}
        return {name: value for name, value in own.items() if name in known}

    def link(self, name: str, /, **parameters: Any) -> str:
        """The URL of a page or an action, in this namespace."""
        return path_of(name, {**parameters, **self._chosen_namespace})

    def link_if(self, name: str, /, **parameters: Any) -> str | None:
        """The same, or None if there is no such page."""
        return self.link(name, **parameters) if has_page(name) else None

    def url(self, **changes: Any) -> str:
        """The URL of this page with other parameters; None removes one."""
        return with_query(self.location, {**self.query.as_dict(), **changes})

    @property
    def _chosen_namespace(self) -> dict[str, str]:
        return {NAMESPACE: self.namespace} if self.query.text(NAMESPACE) else {}


def in_namespace(principal: Principal, chosen: str, services: Services) -> Principal:
    """The caller in the namespace that the URL names. A token is for one namespace, and never sees another."""
    if not chosen or chosen == principal.namespace:
        return principal
    if principal.token is not None:
        raise Forbidden(
            f"this token is for the namespace {principal.namespace!r}: log in with a token for {chosen[:50]!r}"
        )
    return replace(principal, namespace=text(chosen, NAMESPACE, services.engine.config.limits.name_chars))


def must_have(principal: Principal, *scopes: str) -> None:
    """Raises Forbidden unless the caller has one of these scopes."""
    if not principal.has(*scopes):
        needed = " or ".join(scopes)
        raise Forbidden(
            f"this needs the scope {needed}, which the token {principal.name!r} lacks: log in with a token that has it",
            needs=list(scopes),
        )

"""What a function takes and gives: arguments into JSON at a submit, back into values at a run, results the same way.

Owns the types of one function, as pydantic sees them. pydantic is loaded when the first argument is checked or a worker
starts, not when a task is declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import NoneType
from typing import Any, NotRequired, get_type_hints

from onetray.domain.checks import has_nan
from onetray.domain.errors import InvalidInput

_PLAIN = (bool, int, str, NoneType)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature:
    """The types of one function's arguments and result."""

    def __init__(self, function: Callable[..., Any], name: str, types: Mapping[str, Any] | None = None) -> None:
        self.function, self.name, self._types = function, name, types or {}
        self.parameters = inspect.signature(function).parameters
        for parameter in self.parameters.values():
            if parameter.kind in (*_VARIADIC, inspect.Parameter.POSITIONAL_ONLY):
                raise InvalidInput(
                    f"{name}: {parameter} cannot be kept as JSON by its name: declare each argument by itself",
                    field=parameter.name,
                )

    def prepare(self) -> None:
        """Build what the first run needs. It may load pydantic: too long for an event loop to be blocked."""
        _ = self._arguments, self._result

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], some: bool = False) -> dict[str, Any]:
        """Check the arguments of a call, or with `some` only those that are given; as JSON values, by their names."""
        given = dict(kwargs)
        if args:
            names = list(self.parameters)
            if len(args) > len(names):
                raise InvalidInput(f"{self.name} takes {len(names)} arguments, not {len(args)}", field="payload")
            for name, value in zip(names, args, strict=False):
                if name in given:
                    raise InvalidInput(f"{self.name}: {name} is given twice", field=name)
                given[name] = value
        adapter = self._some if some else self._arguments
        checked = self._checked(given, adapter)
        if self._plain and all(type(value) in _PLAIN for value in checked.values()):
            return dict(checked)
        try:
            return dict(_as_json(checked, adapter))
        except Exception as e:
            # Without a type, or with one that says little, a value is looked at only here.
            raise InvalidInput(
                f"{self.name}: an argument cannot be kept as JSON: {validation_message(e)}", field="payload"
            ) from e

    def payloads(self, calls: list[Any]) -> list[dict[str, Any]] | None:
        """The same for many calls at once. None when one of them is not as usual: `payload` says what is wrong."""
        if set(map(type, calls)) != {dict}:
            return None
        try:
            checked: list[dict[str, Any]] = self._many.validate_python(calls)
            if self._plain:
                return checked
            return None if has_nan(checked) else self._many.dump_python(checked, mode="json", warnings=False)
        except Exception:
            return None

    def arguments(self, payload: Any) -> dict[str, Any]:
        """What the function is called with, from the JSON that was submitted."""
        if payload is None:
            payload = {}
        if not isinstance(payload, dict):
            raise InvalidInput(f"{self.name}: the payload must be an object, by the names of its arguments")
        if not payload and not self.parameters:
            return {}
        # An object of its own already: pydantic makes a new one.
        checked: dict[str, Any] = self._checked(payload, self._arguments)
        return checked

    def kept(self, result: Any) -> Any:
        """A result as JSON values, checked against the function's return type."""
        if _is_plain(result, self._plain_result):
            return result
        adapter = self._result
        try:
            return _as_json(adapter.validate_python(result), adapter)
        except Exception as e:
            raise InvalidInput(
                f"{self.name} gave a result that is not what it says: {validation_message(e)}", field="result"
            ) from e

    def result(self, kept: Any) -> Any:
        """A result as the function gave it, from the JSON that was kept."""
        return self._result.validate_python(kept)

    def _checked(self, given: Mapping[str, Any], adapter: Any) -> Any:
        try:
            return adapter.validate_python(given)
        except Exception as e:
            takes = ", ".join(str(p) for p in self.parameters.values()) or "no arguments"
            raise InvalidInput(f"{self.name}: {validation_message(e)}. It takes {takes}", field=_first(e)) from e

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(_written(self.function), include_extras=True)
        except NameError as e:
            raise InvalidInput(f"{self.name}: a type cannot be found where it is declared: {e}", field="types") from e

    @cached_property
    def _arguments(self) -> Any:
        """The arguments as one object. Those with a default may be left out: the function fills them in."""
        return self._adapter(self._shape(self._optional))

    @cached_property
    def _many(self) -> Any:
        """The arguments of many calls."""
        return self._adapter(list[self._shape(self._optional)])  # type: ignore[misc]

    @cached_property
    def _plain(self) -> bool:
        """Whether a checked argument is always the JSON value that is kept."""
        return all(self._hints.get(name, self._types.get(name)) in _PLAIN for name in self.parameters)

    @cached_property
    def _some(self) -> Any:
        """The same when any of them may be left out: the rest is found when the function is called."""
        return self._adapter(self._shape(set(self.parameters)))

    @cached_property
    def _optional(self) -> set[str]:
        return {name for name, p in self.parameters.items() if p.default is not p.empty}

    def _shape(self, optional: set[str]) -> Any:
        from pydantic import ConfigDict, with_config
        from typing_extensions import TypedDict

        types = {name: self._types.get(name, Any) for name in self.parameters} | self._hints
        fields: dict[str, Any] = {}
        for name in self.parameters:
            fields[name] = NotRequired[types[name]] if name in optional else types[name]
        # From typing_extensions: pydantic needs it before Python 3.12.
        shape = TypedDict("Arguments", fields)  # type: ignore[misc]
        return with_config(ConfigDict(extra="forbid", ser_json_inf_nan="constants"))(shape)

    @cached_property
    def _result(self) -> Any:
        return self._adapter(self._hints.get("return", Any))

    @cached_property
    def _plain_result(self) -> Any:
        """The type of which each value is kept as it is."""
        declared = self._hints.get("return", Any)
        return declared if declared in _PLAIN else NoneType if declared is Any else None

    def _adapter(self, shape: Any) -> Any:
        from pydantic import ConfigDict, PydanticUserError, TypeAdapter

        try:
            try:
                # NaN stays NaN, for the engine to refuse: as null it would be another value, without a word.
                return TypeAdapter(shape, config=ConfigDict(ser_json_inf_nan="constants"))
            except PydanticUserError as e:
                if e.code != "type-adapter-config-unused":
                    raise
                return TypeAdapter(shape)
        except PydanticUserError as e:
            first = str(e).splitlines()[0].partition(". Set ")[0]
            raise InvalidInput(f"{self.name} has a type that cannot be kept as JSON: {first}", field="types") from e


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it was written, with its types: behind a partial, or in the class of an object."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _is_plain(value: Any, declared: Any) -> bool:
    """Whether a value is certain to be what is declared, and the same in JSON: pydantic need not look at it."""
    # A text may hold what UTF-8 cannot.
    return type(value) is declared and (declared is not str or value.isascii())


def _as_json(value: Any, adapter: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    # pydantic, too, writes NaN as null, without a word.
    if has_nan(value):
        raise ValueError("NaN and Infinity are not numbers that JSON knows")
    # It was checked against the same type: there is nothing to warn of, and looking for it costs more than all else.
    return adapter.dump_python(value, mode="json", warnings=False)


def validation_message(error: Exception) -> str:
    """What is wrong, in a line: each field and why."""
    details = getattr(error, "errors", None)
    if not callable(details):
        return str(error)
    found = details(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" if d["loc"] else str(d["msg"]) for d in found)


def _first(error: Exception) -> str:
    details = getattr(error, "errors", None)
    found = details(include_url=False, include_context=False, include_input=False) if callable(details) else []
    return str(found[0]["loc"][0]) if found and found[0]["loc"] else "payload"

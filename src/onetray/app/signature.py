"""Check a task's arguments and result against the function's type hints, and convert them to and from JSON.

Uses pydantic, which is imported when the first argument is checked that is not plain or a worker starts, not when a
task is declared.
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
_PLAIN_IN_PYTHON = (*_PLAIN, float)
"""A JSON value of exactly such a type is the argument: pydantic would return it as it is."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature:
    """The types of one function's arguments and result."""

    def __init__(self, function: Callable[..., Any], name: str, types: Mapping[str, Any] | None = None) -> None:
        self.function, self.name, self._types = function, name, types or {}
        try:
            self.parameters = inspect.signature(function).parameters
        except ValueError as e:
            raise InvalidInput(f"{name}: {e}; wrap it in a function", field="function") from e
        for parameter in self.parameters.values():
            if parameter.kind in (*_VARIADIC, inspect.Parameter.POSITIONAL_ONLY):
                raise InvalidInput(
                    f"{name}: {parameter} has no name to store it under: declare each argument by name",
                    field=parameter.name,
                )

    def prepare(self) -> None:
        """Build the adapters now. Importing pydantic takes too long for an event loop."""
        _ = self._arguments, self._plain_types, self._result

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], incomplete: bool = False) -> dict[str, Any]:
        """Check the arguments of a call and return them as JSON values by name. `incomplete`: some may be missing."""
        arguments = dict(kwargs)
        if args:
            names = list(self.parameters)
            if len(args) > len(names):
                raise InvalidInput(f"{self.name} takes {len(names)} arguments, not {len(args)}", field="payload")
            for name, value in zip(names, args, strict=False):
                if name in arguments:
                    raise InvalidInput(f"{self.name}: {name} is passed twice", field=name)
                arguments[name] = value
        if self._plain and self._are_plain(arguments):
            return arguments
        adapter = self._incomplete if incomplete else self._arguments
        checked = self._checked(arguments, adapter)
        if self._plain and all(type(value) in _PLAIN for value in checked.values()):
            return dict(checked)
        return dict(as_json_values(self.name, checked, adapter))

    def payloads(self, calls: list[Any]) -> list[dict[str, Any]] | None:
        """The payloads of many calls at once; None if any call is unusual or invalid: `payload` then says why."""
        if set(map(type, calls)) != {dict}:
            return None
        if self._plain and all(map(self._are_plain, calls)):
            # As pydantic returns them: the caller may change its own.
            return [dict(call) for call in calls]
        try:
            checked: list[dict[str, Any]] = self._many.validate_python(calls)
            if self._plain:
                return checked
            return None if has_nan(checked) else self._many.dump_python(checked, mode="json", warnings=False)
        except Exception:
            return None

    def arguments(self, payload: Any) -> dict[str, Any]:
        """The arguments of the call, from the submitted JSON values."""
        if payload is None:
            payload = {}
        if not isinstance(payload, dict):
            raise InvalidInput(f"{self.name}: the payload must be an object that has the arguments by name")
        if self._are_plain(payload):
            return payload
        # No copy is needed: pydantic creates a new dict.
        checked: dict[str, Any] = self._checked(payload, self._arguments)
        return checked

    def _are_plain(self, arguments: dict[str, Any]) -> bool:
        """Whether all arguments are there, and plainly have their types: half the time of pydantic's check."""
        plain = self._plain_types
        if plain is None or arguments.keys() != plain.keys():
            return False
        # A loop: `all` with a generator takes twice as long, and this runs for every task.
        for name, declared in plain.items():  # noqa: SIM110
            if type(arguments[name]) is not declared:
                return False
        return True

    def kept(self, result: Any) -> Any:
        """The result as JSON values, checked against the function's return type."""
        if _is_plain(result, self._plain_result):
            return result
        adapter = self._result
        try:
            return _as_json(adapter.validate_python(result), adapter)
        except Exception as e:
            raise InvalidInput(
                f"{self.name} returned a value that does not match its return type: {validation_message(e)}",
                field="result",
            ) from e

    def result(self, kept: Any) -> Any:
        """The function's return value, from the stored JSON values."""
        return self._result.validate_python(kept)

    def _checked(self, arguments: Mapping[str, Any], adapter: Any) -> Any:
        try:
            return adapter.validate_python(arguments)
        except Exception as e:
            raise InvalidInput(
                f"{self.name}: {validation_message(e)}. It takes {self._takes}", field=_first_field(e)
            ) from e

    @property
    def _takes(self) -> str:
        return ", ".join(str(p) for p in self.parameters.values()) or "no arguments"

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(_unwrapped(self.function), include_extras=True)
        except NameError as e:
            raise InvalidInput(f"{self.name}: a type hint cannot be resolved: {e}", field="types") from e

    @cached_property
    def _arguments(self) -> Any:
        """Adapter of the arguments as one object. Those with a default may be missing."""
        return self._adapter(self._shape(self._optional))

    @cached_property
    def _many(self) -> Any:
        """Adapter of the arguments of many calls."""
        return self._adapter(list[self._shape(self._optional)])  # type: ignore[misc]

    @cached_property
    def _plain(self) -> bool:
        """Whether every checked argument is its own JSON value."""
        return all(self._hints.get(name, self._types.get(name)) in _PLAIN for name in self.parameters)

    @cached_property
    def _plain_types(self) -> dict[str, type] | None:
        """The types of the arguments, if all of them are plain; else None."""
        types: dict[str, Any] = {name: self._hints.get(name, self._types.get(name)) for name in self.parameters}
        return types if all(declared in _PLAIN_IN_PYTHON for declared in types.values()) else None

    @cached_property
    def _incomplete(self) -> Any:
        """Adapter of arguments of which any may be missing: a flow adds the rest at the call."""
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
        # Before Python 3.12 pydantic needs the TypedDict of typing_extensions.
        shape = TypedDict("Arguments", fields)  # type: ignore[misc]
        return with_config(ConfigDict(extra="forbid", ser_json_inf_nan="constants"))(shape)

    @cached_property
    def _result(self) -> Any:
        return self._adapter(self._hints.get("return", Any))

    @cached_property
    def _plain_result(self) -> Any:
        """The type whose values are stored without conversion; None if there is none."""
        declared = self._hints.get("return", Any)
        return declared if declared in _PLAIN else NoneType if declared is Any else None

    def _adapter(self, shape: Any) -> Any:
        from pydantic import ConfigDict, PydanticUserError, TypeAdapter

        try:
            try:
                # Keep NaN, so that the engine rejects it: by default pydantic silently writes null.
                return TypeAdapter(shape, config=ConfigDict(ser_json_inf_nan="constants"))
            except PydanticUserError as e:
                if e.code != "type-adapter-config-unused":
                    raise
                return TypeAdapter(shape)
        except PydanticUserError as e:
            first = str(e).splitlines()[0].partition(". Set ")[0]
            raise InvalidInput(f"{self.name} has a type that cannot be encoded as JSON: {first}", field="types") from e


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that has the type hints: inside a partial, or the __call__ of an object's class."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _is_plain(value: Any, declared: Any) -> bool:
    """Whether a value surely has the declared type and is its own JSON value, so that pydantic is not needed."""
    # A str that is not ASCII may have lone surrogates, which UTF-8 cannot encode.
    return type(value) is declared and (declared is not str or value.isascii())


def as_json_values(name: str, checked: Any, adapter: Any) -> Any:
    """Checked arguments as JSON values."""
    try:
        return _as_json(checked, adapter)
    except Exception as e:
        # Validation accepts any value for an argument without a precise type.
        raise InvalidInput(
            f"{name}: an argument cannot be encoded as JSON: {validation_message(e)}", field="payload"
        ) from e


def _as_json(value: Any, adapter: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    # pydantic would silently write NaN as null.
    if has_nan(value):
        raise ValueError("JSON has no NaN and no Infinity")
    # The value was validated against the same type; checking again for warnings would cost more than the dump.
    return adapter.dump_python(value, mode="json", warnings=False)


def validation_message(error: Exception) -> str:
    """Each invalid field and its error, in one line."""
    errors = _validation_errors(error)
    if errors is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" if e["loc"] else str(e["msg"]) for e in errors)


def _first_field(error: Exception) -> str:
    errors = _validation_errors(error)
    return str(errors[0]["loc"][0]) if errors and errors[0]["loc"] else "payload"


def _validation_errors(error: Exception) -> Any:
    """The errors of a pydantic ValidationError; None for another exception."""
    errors = getattr(error, "errors", None)
    return errors(include_url=False, include_context=False, include_input=False) if callable(errors) else None

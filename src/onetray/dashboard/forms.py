"""Forms drawn from a JSON Schema: form_fields.py chooses their inputs, form_inputs.py reads what is typed into each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from onetray.dashboard.form_fields import (
    MAX_FIELDS,
    SchemaPart,
    all_fields,
    field_for,
)
from onetray.dashboard.form_inputs import (
    ABSENT,
    GROUP,
    JSON,
    Field,
    texts_of,
    typed_value,
)
from onetray.dashboard.view import Values

WHOLE = "v.json"
"""The name of the text area that takes the whole value as JSON."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A field with what is typed into it, and what is wrong with that."""

    field: Field
    texts: list[str]
    error: str | None
    fields: list[Drawn]

    @property
    def text(self) -> str:
        return self.texts[-1] if self.texts else ""


class BadForm(Exception):
    """What was typed is not a value of the right type. `errors` are messages by JSON pointers."""

    def __init__(self, errors: dict[str, str]) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors


class SchemaForm:
    """The form for a JSON Schema. Any schema has one: that of None takes any JSON."""

    def __init__(self, schema: Any, label: str = "Value") -> None:
        self.root = field_for(SchemaPart(schema, "", label, True, 0), schema)
        if self.root.kind == JSON or sum(1 for _ in all_fields(self.root)) > MAX_FIELDS:
            # An empty text area is null: the engine decides whether that will do.
            self.root = Field("", label, JSON, self.root.help, default=self.root.default)

    @property
    def has_fields(self) -> bool:
        """Whether there is more than a text area for JSON."""
        return self.root.kind != JSON

    def value(self, form: Values) -> Any:
        """The JSON value of a posted form. Raises BadForm."""
        posted = form.as_dict()
        whole = _last(posted.get(WHOLE))
        if whole.strip():
            try:
                return orjson.loads(whole)
            except orjson.JSONDecodeError as error:
                raise BadForm({"": f"this is not JSON: {error}"}) from None
        errors: dict[str, str] = {}
        value = _read(self.root, posted, errors)
        if errors:
            raise BadForm(errors)
        return None if value is ABSENT else value

    def drawn(self, form: Values | None = None, errors: Mapping[str, str] | None = None) -> Drawn:
        """The fields with what was typed, or with their defaults, and with the errors beside them."""
        return _draw(self.root, None if form is None else form.as_dict(), self._placed(errors or {}))

    def _placed(self, errors: Mapping[str, str]) -> dict[str, str]:
        """The errors by the fields that show them: an error deep inside of a value is shown at its field."""
        known = {f.pointer for f in all_fields(self.root)}
        placed: dict[str, str] = {}
        for pointer, message in errors.items():
            at = pointer
            while at and at not in known:
                at = at.rpartition("/")[0]
            placed.setdefault(at, message)
        return placed

    def posts(self, value: Any) -> list[tuple[str, str]] | None:
        """What a browser sends for a value; None if the fields cannot say it."""
        pairs: list[tuple[str, str]] = []
        return pairs if _post(self.root, value, pairs) else None


def _read(found: Field, posted: Mapping[str, list[str]], errors: dict[str, str]) -> Any:
    if found.kind == GROUP:
        return _read_group(found, posted, errors)
    try:
        return typed_value(found, [_unix(text) for text in posted.get(found.name, [])])
    except ValueError as error:
        errors[found.pointer] = str(error)
        return ABSENT


def _read_group(found: Field, posted: Mapping[str, list[str]], errors: dict[str, str]) -> Any:
    values = {each.key: _read(each, posted, errors) for each in found.fields}
    typed = {key: value for key, value in values.items() if value is not ABSENT}
    if found.is_required or isinstance(found.default, dict):
        return typed
    # In a group that can be left out, defaults alone are not an answer.
    is_touched = any(typed[each.key] != each.default for each in found.fields if each.key in typed)
    return typed if is_touched else ABSENT


def _post(found: Field, value: Any, pairs: list[tuple[str, str]]) -> bool:
    if found.kind != GROUP:
        texts = [] if value is ABSENT else texts_of(found, value)
        pairs += [(found.name, text) for text in texts or ()]
        return texts is not None
    if value is ABSENT:
        value = {}
    if not isinstance(value, dict) or not value.keys() <= {each.key for each in found.fields}:
        return False
    return all(_post(each, value.get(each.key, ABSENT), pairs) for each in found.fields)


def _draw(found: Field, posted: Mapping[str, list[str]] | None, errors: Mapping[str, str]) -> Drawn:
    if posted is not None:
        texts = [_unix(text) for text in posted.get(found.name, [])]
    elif found.default is ABSENT or found.kind == GROUP:
        texts = []
    else:
        texts = texts_of(found, found.default) or []
    return Drawn(found, texts, errors.get(found.pointer), [_draw(each, posted, errors) for each in found.fields])


def _unix(text: str) -> str:
    """Browsers send line breaks as CR LF."""
    return text.replace("\r\n", "\n")


def _last(texts: list[str] | None) -> str:
    return texts[-1] if texts else ""

"""The rules of a task about its submits: `debounce_s`, `throttle_s` and the field of the payload that is their key.

Owns how a key is read from a payload. engine/submit_windows.py decides which job a submit gets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from onetray.config import Limits
from onetray.domain.checks import seconds, text
from onetray.domain.errors import InvalidInput, short_repr

LENGTHS = ("debounce_s", "debounce_max_s", "throttle_s")
PATHS = ("debounce_key", "throttle_key")
RULES = (*LENGTHS, *PATHS)
MODES = {"debounce_s": ("debounce_s", "debounce_max_s", "debounce_key"), "throttle_s": ("throttle_s", "throttle_key")}


class WindowRules:
    """What `@app.task` says about debounced or throttled submits. Options of a submit take precedence."""

    def __init__(self, kind: str, rules: Mapping[str, Any], arguments: Collection[str] | None) -> None:
        """`arguments`: the names of the task's arguments, None if they are not known."""
        self._kind = kind
        self._rules = {name: rules[name] for name in RULES if rules.get(name) is not None}
        for name in LENGTHS:
            if name in self._rules:
                seconds(self._rules[name], name, 0.001)
        for mode, names in MODES.items():
            if mode not in self._rules and (alone := [name for name in names if name in self._rules]):
                raise InvalidInput(f"{kind}: {alone[0]} needs {mode}: set it", field=mode)
        if all(mode in self._rules for mode in MODES):
            raise InvalidInput(f"{kind}: set debounce_s or throttle_s, not both", field="debounce_s")
        if self._rules.get("debounce_max_s", float("inf")) < self._rules.get("debounce_s", 0):
            raise InvalidInput(f"{kind}: debounce_max_s must be at least debounce_s", field="debounce_max_s")
        for name in PATHS:
            if name in self._rules:
                self._check_path(name, arguments)

    def _check_path(self, name: str, arguments: Collection[str] | None) -> None:
        path = text(self._rules[name], name, Limits().key_chars)
        if arguments is not None and path.partition(".")[0] not in arguments:
            takes = ", ".join(arguments) or "none"
            raise InvalidInput(f"{self._kind}: {name} {path!r} is no argument; it takes: {takes}", field=name)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def add_to(self, fields: dict[str, Any], payload: Any) -> None:
        """Add the rules to the fields of a submit. `debounce_s=None` or `throttle_s=None` turns them off for it."""
        for mode, names in MODES.items():
            if mode in fields and fields[mode] is None:
                continue
            for name in names:
                if name in self._rules and name not in fields:
                    fields[name] = self._key(name, payload) if name in PATHS else self._rules[name]

    def _key(self, name: str, payload: Any) -> str:
        path, value = str(self._rules[name]), payload
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                raise InvalidInput(f"{self._kind}: the payload has no {path!r}, which is its {name}", field=name)
            value = value[part]
        key = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        if not 0 < len(key) <= Limits().key_chars:
            raise InvalidInput(
                f"{self._kind}: {path} = {short_repr(value)} is its {name}: it must have 1 to {Limits().key_chars} "
                "characters",
                field=name,
            )
        return key

"""Load a program's settings from arguments, the environment, onetray.toml and defaults, in this order of precedence.

    onetray.toml                    environment
    database = "sqlite:///jobs.db"  ONETRAY_DATABASE=sqlite:///jobs.db
    queues = ["mail", "slow"]       ONETRAY_QUEUES=mail,slow
    [engine]
    chunk = 200                     ONETRAY_ENGINE_CHUNK=200
    [limits]
    batch = 1000                    ONETRAY_LIMITS_BATCH=1000
    [http]
    port = 8000                     ONETRAY_HTTP_PORT=8000

The file is onetray.toml in the working directory, or the one that ONETRAY_CONFIG names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from onetray.config import LEAST_RETENTION_S, TOOL_SETS, EngineConfig, HttpConfig, Limits
from onetray.domain.clock import length_s
from onetray.domain.errors import InvalidInput

FILE, FILE_VARIABLE, PREFIX = "onetray.toml", "ONETRAY_CONFIG", "ONETRAY_"
MAX_FILE_BYTES = 1_000_000
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("auto", "json", "text")
ARGUMENT, DEFAULT, OFF = "argument", "default", "off"
_SECTIONS: dict[str, type] = {"engine": EngineConfig, "limits": Limits, "http": HttpConfig}
_CHOICES = {
    "log_level": LOG_LEVELS, "log_format": LOG_FORMATS, "http.log_format": LOG_FORMATS,
    "http.mcp_tools": (*TOOL_SETS, "both", "none"),
}  # fmt: skip
_MAY_BE_EMPTY = ("http.allowed_hosts", "http.allowed_origins")
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a program, with their defaults. Those of the engine and the server are in config.py."""

    database: str = "sqlite:///onetray.db"
    app: str | None = None
    """The path of the app: a module, or module:name."""
    namespace: str = "default"
    concurrency: int = 10
    """How many tasks a worker process runs at once."""
    queues: tuple[str, ...] = ("default",)
    processes: int = 1
    drain_s: float = 30.0
    """How long a stopping worker waits for running handlers."""
    retention: str = "off"
    """How long jobs are kept after their end: 12h, 30d. Workers delete older ones; "off" keeps all."""
    log_level: str = "info"
    log_format: str = "text"
    """Of the worker's log: json, text, or auto: text on a terminal, JSON elsewhere."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Its limits are in the section [limits]."""
    http: HttpConfig = field(default_factory=HttpConfig)

    @property
    def retention_s(self) -> float | None:
        return None if self.retention == OFF else length_s(self.retention)


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of a setting and its source."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: tuple[Setting, ...]

    def origin(self, name: str) -> Setting:
        return next(s for s in self.origins if s.name == name)


_RANGES: dict[str, tuple[float, float]] = {
    "concurrency": (1, 10_000), "processes": (1, 1_000), "drain_s": (0, 86_400), "engine.chunk": (1, 10_000),
    "engine.committers": (1, 100), "engine.names_ttl_s": (0, 3_600), "engine.call_timeout_s": (0.1, 3_600),
    "engine.clock_skew_s": (0.001, 1e9),
    "http.port": (0, 65_535), "http.grace_s": (1, 3_600), "http.threads": (1, 1_000),
    "http.connections": (0, 1_000_000), "http.head_s": (0.1, 3_600), "http.idle_s": (0.1, 86_400),
    "http.token_cache_s": (0, 5), "http.body_s": (0.1, 3_600), "http.json_depth": (1, 1_000),
    "http.requests_per_s": (0, 1_000_000), "http.heartbeat_s": (0.1, 3_600), "http.stall_s": (1, 3_600),
}  # fmt: skip


def load(arguments: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Loaded:
    """Read every setting from the first source that has it. An argument of None counts as missing."""
    environment = os.environ if environment is None else environment
    arguments_set = {name: value for name, value in (arguments or {}).items() if value is not None}
    path, in_file = _file(environment)
    loaded: list[Setting] = []
    for name, default, annotation in _all_settings():
        variable = variable_of(name)
        if name in arguments_set:
            loaded.append(Setting(name, _check(name, arguments_set[name], annotation, "the argument"), ARGUMENT))
        elif environment.get(variable):
            value = _parse(name, environment[variable], annotation, variable)
            loaded.append(Setting(name, _check(name, value, annotation, variable), f"environment {variable}"))
        elif name in in_file:
            loaded.append(Setting(name, _check(name, in_file[name], annotation, str(path)), f"file {path}"))
        else:
            loaded.append(Setting(name, default, DEFAULT))
    return Loaded(_build(loaded), tuple(loaded))


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.replace(".", "_").upper()


def _all_settings() -> Iterator[tuple[str, Any, str]]:
    """The name, default and type of every setting. Names in a section are prefixed with it: `engine.chunk`."""
    for prefix, section, default in (("", Settings, Settings()), *((f"{k}.", t, t()) for k, t in _SECTIONS.items())):
        for f in fields(section):
            if f.name not in _SECTIONS:
                yield prefix + f.name, getattr(default, f.name), str(f.type)


def _build(loaded: list[Setting]) -> Settings:
    def section(prefix: str) -> dict[str, Any]:
        return {s.name.removeprefix(prefix): s.value for s in loaded if s.name.startswith(prefix)}

    engine = replace(EngineConfig(**section("engine.")), limits=Limits(**section("limits.")))
    return Settings(
        engine=engine, http=HttpConfig(**section("http.")), **{s.name: s.value for s in loaded if "." not in s.name}
    )


def _file(environment: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    config_path = environment.get(FILE_VARIABLE)
    path = Path(config_path or FILE)
    if not path.is_file():
        if config_path:
            raise InvalidInput(f"{FILE_VARIABLE} is {config_path}, which does not exist: create or unset it")
        return path, {}
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidInput(f"{path} is larger than {MAX_FILE_BYTES:,} bytes: it is not a settings file")
    # Imported only if there is a file: commands must start fast.
    import tomllib

    try:
        in_file = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as e:
        raise InvalidInput(f"{path} cannot be read: {e}") from e
    return path, _flatten(path, in_file)


def _flatten(path: Path, in_file: dict[str, Any]) -> dict[str, Any]:
    """Prefix the keys of the file with their sections. Raises InvalidInput for an unknown key."""
    flat: dict[str, Any] = {}
    for key, value in in_file.items():
        if key in _SECTIONS and isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    known = [name for name, _, _ in _all_settings()]
    for name in flat:
        if name not in known:
            raise InvalidInput(f"{path}: unknown setting {name!r}; {_nearest(name, known)}", field=name)
    return flat


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    bare_names = {k.rpartition(".")[2]: k for k in reversed(known)}
    close = get_close_matches(name, known, 1) or [bare_names[e] for e in get_close_matches(name, bare_names, 1)]
    return f"did you mean {close[0]!r}?" if close else f"the settings are: {', '.join(known)}"


def _parse(name: str, value: str, annotation: str, where: str) -> Any:
    """Parse an environment variable as the type of its setting."""
    try:
        if annotation.startswith("tuple"):
            return [part.strip() for part in value.split(",")]
        if annotation.startswith("bool"):
            return _FLAGS[value.strip().lower()]
        if annotation.startswith("int"):
            return int(value)
        return float(value) if annotation.startswith("float") else value
    except (ValueError, KeyError):
        raise InvalidInput(f"{where}: {name} must be {_expected(name, annotation)}, not {value[:80]!r}") from None


def _check(name: str, value: Any, annotation: str, where: str) -> Any:
    if not _fits(name, value, annotation):
        raise InvalidInput(f"{where}: {name} must be {_expected(name, annotation)}, not {value!r:.80}", field=name)
    if annotation.startswith("tuple"):
        return tuple(value)
    return float(value) if annotation.startswith("float") else value


def _fits(name: str, value: Any, annotation: str) -> bool:
    if annotation.startswith("tuple"):
        least = 0 if name in _MAY_BE_EMPTY else 1
        return isinstance(value, list | tuple) and least <= len(value) <= 1_000 and all(_is_name(v) for v in value)
    if annotation.startswith("bool"):
        return isinstance(value, bool)
    if annotation.startswith(("int", "float")):
        low, high = _RANGES.get(name, (1, 2**31))
        kinds: Any = int if annotation.startswith("int") else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high
    if name in _CHOICES:
        return value in _CHOICES[name]
    if name == "retention":
        return isinstance(value, str) and (value == OFF or (length_s(value) or 0) >= LEAST_RETENTION_S)
    return _is_name(value, 2_000)


def _is_name(value: Any, max_chars: int = 200) -> bool:
    return isinstance(value, str) and 0 < len(value) <= max_chars and "\0" not in value


def _expected(name: str, annotation: str) -> str:
    if annotation.startswith("tuple"):
        return "a list of names"
    if annotation.startswith("bool"):
        return "true or false"
    if annotation.startswith(("int", "float")):
        low, high = _RANGES.get(name, (1, 2**31))
        return f"{'a whole number' if annotation.startswith('int') else 'a number'} from {low:g} to {high:,.0f}"
    if name == "retention":
        return f"off, or a duration of at least {LEAST_RETENTION_S:g}s such as 12h, 30d or 4w"
    return f"one of {', '.join(_CHOICES[name])}" if name in _CHOICES else "text"


__all__ = ["ARGUMENT", "DEFAULT", "Loaded", "Setting", "Settings", "load", "variable_of"]

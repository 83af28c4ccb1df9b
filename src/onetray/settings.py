"""The settings of a program: from arguments, the environment, onetray.toml, or the defaults that stand here.

Owns where a setting comes from, and what it may be. Each source beats the ones after it.

    onetray.toml                    environment
    database = "sqlite:///jobs.db"  ONETRAY_DATABASE=sqlite:///jobs.db
    queues = ["mail", "slow"]       ONETRAY_QUEUES=mail,slow
    [engine]
    chunk = 200                     ONETRAY_ENGINE_CHUNK=200
    [limits]
    batch = 1000                    ONETRAY_LIMITS_BATCH=1000
    [http]
    port = 8000                     ONETRAY_HTTP_PORT=8000

The file is the working directory's onetray.toml, or the one that ONETRAY_CONFIG names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from onetray.config import LEAST_RETENTION_S, EngineConfig, HttpConfig, Limits
from onetray.domain.clock import length_s
from onetray.domain.errors import InvalidInput

FILE, FILE_VARIABLE, PREFIX = "onetray.toml", "ONETRAY_CONFIG", "ONETRAY_"
MOST_BYTES = 1_000_000
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("auto", "json", "text")
ARGUMENT, DEFAULT, OFF = "argument", "default", "off"
_SECTIONS: dict[str, type] = {"engine": EngineConfig, "limits": Limits, "http": HttpConfig}
_CHOICES = {"log_level": LOG_LEVELS, "http.log_format": LOG_FORMATS}
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a program of onetray's needs to know. Defaults stand here, and in config.py."""

    database: str = "sqlite:///onetray.db"
    app: str | None = None
    """Where the handlers are: a module, or module:name."""
    namespace: str = "default"
    concurrency: int = 10
    """Tasks that one worker process runs at the same time."""
    queues: tuple[str, ...] = ("default",)
    processes: int = 1
    drain_s: float = 30.0
    """How long a worker that stops waits for what it runs."""
    retention: str = "off"
    """How long jobs are kept after their end: 12h, 30d. Workers remove what is older; "off" keeps everything."""
    log_level: str = "info"
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Its limits are the ones under [limits]."""
    http: HttpConfig = field(default_factory=HttpConfig)

    @property
    def retention_s(self) -> float | None:
        return None if self.retention == OFF else length_s(self.retention)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its value and where it came from."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: tuple[Setting, ...]


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
    """Every setting, from the first source that has it. An argument that is None was not given."""
    environment = os.environ if environment is None else environment
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    path, told = _file(environment)
    found: list[Setting] = []
    for name, default, annotation in _known():
        variable = PREFIX + name.replace(".", "_").upper()
        if name in given:
            found.append(Setting(name, _checked(name, given[name], annotation, "the argument"), ARGUMENT))
        elif environment.get(variable):
            value = _parsed(name, environment[variable], annotation, variable)
            found.append(Setting(name, _checked(name, value, annotation, variable), f"environment {variable}"))
        elif name in told:
            found.append(Setting(name, _checked(name, told[name], annotation, str(path)), f"file {path}"))
        else:
            found.append(Setting(name, default, DEFAULT))
    return Loaded(_built(found), tuple(found))


def _known() -> Iterator[tuple[str, Any, str]]:
    """Every setting with its default and its type. The engine's own are named by their section."""
    for at, section, default in (("", Settings, Settings()), *((f"{k}.", t, t()) for k, t in _SECTIONS.items())):
        for f in fields(section):
            if f.name not in _SECTIONS:
                yield at + f.name, getattr(default, f.name), str(f.type)


def _built(found: list[Setting]) -> Settings:
    def of(prefix: str) -> dict[str, Any]:
        return {s.name.removeprefix(prefix): s.value for s in found if s.name.startswith(prefix)}

    engine = replace(EngineConfig(**of("engine.")), limits=Limits(**of("limits.")))
    return Settings(
        engine=engine, http=HttpConfig(**of("http.")), **{s.name: s.value for s in found if "." not in s.name}
    )


def _file(environment: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    named = environment.get(FILE_VARIABLE)
    path = Path(named or FILE)
    if not path.is_file():
        if named:
            raise InvalidInput(f"{FILE_VARIABLE} names {named}, and there is no such file: make it, or unset it")
        return path, {}
    if path.stat().st_size > MOST_BYTES:
        raise InvalidInput(f"{path} has more than {MOST_BYTES:,} bytes: that is no file of settings")
    # Loaded only where there is a file: commands start quickly.
    import tomllib

    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as e:
        raise InvalidInput(f"{path} cannot be read: {e}") from e
    return path, _flat(path, told)


def _flat(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """The file's keys with their sections; an unknown one is refused."""
    flat: dict[str, Any] = {}
    for key, value in told.items():
        if key in _SECTIONS and isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    known = [name for name, _, _ in _known()]
    for name in flat:
        if name not in known:
            raise InvalidInput(f"{path}: there is no setting {name!r}; {_nearest(name, known)}", field=name)
    return flat


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    ends = {k.rpartition(".")[2]: k for k in reversed(known)}
    close = get_close_matches(name, known, 1) or [ends[e] for e in get_close_matches(name, ends, 1)]
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"


def _parsed(name: str, value: str, annotation: str, where: str) -> Any:
    """The text of a variable as the setting's type."""
    try:
        if annotation.startswith("tuple"):
            return [part.strip() for part in value.split(",")]
        if annotation.startswith("bool"):
            return _FLAGS[value.strip().lower()]
        if annotation.startswith("int"):
            return int(value)
        return float(value) if annotation.startswith("float") else value
    except (ValueError, KeyError):
        raise InvalidInput(f"{where}: {name} must be {_must(name, annotation)}, not {value[:80]!r}") from None


def _checked(name: str, value: Any, annotation: str, where: str) -> Any:
    if not _fits(name, value, annotation):
        raise InvalidInput(f"{where}: {name} must be {_must(name, annotation)}, not {value!r:.80}", field=name)
    if annotation.startswith("tuple"):
        return tuple(value)
    return float(value) if annotation.startswith("float") else value


def _fits(name: str, value: Any, annotation: str) -> bool:
    if annotation.startswith("tuple"):
        return isinstance(value, list | tuple) and 0 < len(value) <= 1_000 and all(_is_name(v) for v in value)
    if annotation.startswith("bool"):
        return isinstance(value, bool)
    if annotation.startswith(("int", "float")):
        least, most = _RANGES.get(name, (1, 2**31))
        kinds: Any = int if annotation.startswith("int") else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most
    if name in _CHOICES:
        return value in _CHOICES[name]
    if name == "retention":
        return isinstance(value, str) and (value == OFF or (length_s(value) or 0) >= LEAST_RETENTION_S)
    return _is_name(value, 2_000)


def _is_name(value: Any, most: int = 200) -> bool:
    return isinstance(value, str) and 0 < len(value) <= most and "\0" not in value


def _must(name: str, annotation: str) -> str:
    if annotation.startswith("tuple"):
        return "a list of names"
    if annotation.startswith("bool"):
        return "true or false"
    if annotation.startswith(("int", "float")):
        least, most = _RANGES.get(name, (1, 2**31))
        return f"{'a whole number' if annotation.startswith('int') else 'a number'} from {least:g} to {most:,.0f}"
    if name == "retention":
        return f"off, or a length of time from {LEAST_RETENTION_S:g}s on, as 12h, 30d or 4w"
    return f"one of {', '.join(_CHOICES[name])}" if name in _CHOICES else "text"


__all__ = ["Loaded", "Setting", "Settings", "load"]

"""Check single fields: text, numbers, choices, JSON, ids.

Each check returns the value, or raises InvalidInput, which names the field.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import fields, is_dataclass
from typing import Any

import orjson

from onetray.config import Limits
from onetray.domain.errors import InvalidInput, TooLarge, short_repr
from onetray.domain.task import RawJson

FAR_US = 2**62
"""Later than any real time."""
MOST = 1e15
"""The maximum of an amount: a float represents every whole number up to it."""
MOST_SECONDS = 4_000_000_000
MAX_ROWS = 10_000
"""The maximum of rows that one read returns, or one step of the janitor handles."""
_NEVER_NAN = frozenset({str, int, bool, type(None)})
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_ALL_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * 19
_LONG_WHOLE = re.compile(rb"(?<![\d.eE+-])-?\d{19,}+(?![.eE])")
_TRACEPARENT = re.compile(r"[\da-f]{2}-[\da-f]{32}-[\da-f]{16}-[\da-f]{2}")
_UUID = re.compile(r"[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}")


def text(value: object, field: str, most: int, least: int = 1) -> str:
    """Text within its limits, without NUL and lone surrogates."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text, not {type(value).__name__}", field=field)
    if not least <= len(value) <= most:
        kind = TooLarge if len(value) > most else InvalidInput
        raise kind(f"{field} must have {least} to {most} characters, not {len(value)}", field=field, limit=most)
    if "\0" in value:
        raise InvalidInput(f"{field} contains a NUL character: remove it", field=field)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{field} contains a lone surrogate: send valid Unicode", field=field) from None
    return value


def optional_text(value: object, field: str, most: int) -> str | None:
    return None if value is None else text(value, field, most)


def whole(value: object, field: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(
            f"{field} must be a whole number from {least} to {most}, not {short_repr(value)}", field=field
        )
    return value


def seconds(value: object, field: str, least: float = 0.0) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= MOST_SECONDS:
        is_too_many = isinstance(value, int | float) and value > MOST_SECONDS
        bound = f"at most {MOST_SECONDS:,}" if is_too_many else f"{least} or more"
        raise InvalidInput(f"{field} must be seconds, {bound}, not {short_repr(value)}", field=field)
    return value


def amount(value: object, field: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise InvalidInput(f"{field} must be a number from 0 to {MOST:g}, not {short_repr(value)}", field=field)
    return value


def check_when(delay_s: object, run_at: object, where: str = "") -> None:
    if delay_s is not None:
        seconds(delay_s, f"{where}delay_s")
        if run_at is not None:
            raise InvalidInput(f"set {where}delay_s or {where}run_at, not both", field=f"{where}delay_s")
    if run_at is not None:
        time_us(run_at, f"{where}run_at")


def time_us(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= FAR_US:
        raise InvalidInput(
            f"{field} must be microseconds since the epoch, not {short_repr(value)}; "
            "an app also takes an aware datetime",
            field=field,
        )
    return value


def choice(value: object, field: str, among: tuple[str, ...]) -> str:
    if value not in among:
        raise InvalidInput(f"{field} must be one of {', '.join(among)}, not {short_repr(value)}", field=field)
    return str(value)


def flag(value: object, field: str) -> bool:
    if type(value) is not bool:
        raise InvalidInput(f"{field} must be true or false, not {short_repr(value)}", field=field)
    return value


def listed(value: object, field: str, least: int, most: int) -> tuple[object, ...]:
    must = f"{field} must be a list of {least} to {most:,} entries"
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidInput(f"{must}, not {short_repr(value)}", field=field)
    if not least <= len(value) <= most:
        raise InvalidInput(f"{must}, not of {len(value):,}", field=field)
    return tuple(value)


def read_json(raw: bytes) -> Any:
    """Parse JSON. Rejects a whole number of more than 64 bits, which orjson would turn into a float.

    Raises orjson.JSONDecodeError; for such a number TypeError, as orjson.dumps does.
    """
    value = orjson.loads(raw)
    if _LONG in raw.translate(_ALL_ZEROS):
        _must_fit_64_bits(raw)
    return value


def _must_fit_64_bits(raw: bytes) -> None:
    quotes = at = 0
    for match in _LONG_WHOLE.finditer(raw):
        if not _fits_64_bits(match[0]):
            # After an even number of unescaped quotes it is not inside of a string.
            quotes += raw[at : match.start()].replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"')
            at = match.start()
            if quotes % 2 == 0:
                raise TypeError("Integer exceeds 64-bit range: send it as text")


def _fits_64_bits(digits: bytes) -> bool:
    # JSON has no leading zeros, so more digits mean a larger number. Python limits the digits that int() parses.
    return len(digits) <= 20 and -(2**63) <= int(digits) < 2**64


def json_text(value: object, field: str, most: int) -> str:
    """Encode any JSON value within its limit. Rejects NaN, NUL and types that JSON does not have."""
    try:
        if isinstance(value, RawJson):
            # A plain copy: orjson accepts bytes, but no subclass of it.
            raw = bytes(value)
            # Also encode it: JSON that orjson can parse may be nested too deeply to be encoded.
            orjson.dumps(read_json(raw))
        else:
            raw = orjson.dumps(value)
            # orjson silently encodes NaN as null.
            if b"null" in raw and has_nan(value):
                raise TypeError("JSON has no NaN and no Infinity")
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, TypeError, RecursionError) as e:
        raise InvalidInput(f"{field} is not valid JSON: {e}"[:300], field=field) from None
    if len(raw) > most:
        raise TooLarge(
            f"{field} has {len(raw)} bytes; at most {most} are allowed. Keep large data elsewhere and send its address",
            field=field,
            limit=most,
        )
    if b"\\u0000" in raw and _ESCAPED_NUL.search(raw.decode()):
        raise InvalidInput(f"{field} contains a NUL character: remove it, or send base64", field=field)
    return raw.decode()


def json_texts(values: list[object], field: str, most: int) -> list[str]:
    """Like json_text for many values. Checks all of them together, and each by itself only if something is unusual."""
    dumps = orjson.dumps
    try:
        # Decode each at once: keeping many bytes objects of orjson makes creating them ten times as slow.
        texts = [dumps(value).decode() for value in values]
    except (orjson.JSONEncodeError, TypeError, RecursionError):
        return [json_text(value, field, most) for value in values]
    together = "".join(texts)
    longest = max(map(len, texts), default=0) * (1 if together.isascii() else 4)
    if "null" in together or "\\u0000" in together or longest > most:
        return [json_text(value, field, most) for value in values]
    return texts


def as_json(value: object) -> str:
    """Encode a value that was checked before."""
    return bytes(value).decode() if isinstance(value, RawJson) else orjson.dumps(value).decode()


def has_nan(value: object) -> bool:
    if type(value) in _NEVER_NAN:
        return False
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(has_nan(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(has_nan(v) for v in value)
    if is_dataclass(value):
        return any(has_nan(getattr(value, f.name)) for f in fields(value))
    return False


def optional_json(value: object, field: str, most: int) -> str | None:
    return None if value is None else json_text(value, field, most)


def check_labels(value: object, limits: Limits) -> dict[str, str] | None:
    """Labels by name: few, short, printable. Returns a copy, which the caller cannot change after the check."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidInput(
            f'labels must be an object of texts, as {{"team": "a"}}, not {short_repr(value)}', field="labels"
        )
    if len(value) > limits.labels:
        raise TooLarge(
            f"a job has at most {limits.labels} labels, not {len(value)}", field="labels", limit=limits.labels
        )
    return {
        _label_text(name, "a name in labels", limits): _label_text(
            content, f"the value of {short_repr(name)} in labels", limits
        )
        for name, content in value.items()
    }


def alias_text(value: object, field: str, limits: Limits) -> str:
    """An id that a caller has chosen: any text without control characters."""
    alias = text(value, field, limits.name_chars)
    if any(unicodedata.category(character) == "Cc" for character in alias):
        raise InvalidInput(f"{field} contains a control character: remove it from {short_repr(alias)}", field=field)
    return alias


def _label_text(value: object, what: str, limits: Limits) -> str:
    try:
        label = text(value, what, limits.name_chars)
    except InvalidInput as e:
        e.facts["field"] = "labels"
        raise
    if not label.isprintable():
        raise InvalidInput(f"{what} must be printable, without line breaks: {short_repr(label)} is not", field="labels")
    return label


def is_traceparent(value: str) -> bool:
    """Whether it is a traceparent that names a span. By the W3C, version ff and ids of zeros are invalid."""
    if not _TRACEPARENT.fullmatch(value):
        return False
    version, trace_id, span_id, _ = value.split("-")
    return version != "ff" and bool(trace_id.strip("0")) and bool(span_id.strip("0"))


def trace_text(value: object, label: str = "trace") -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _TRACEPARENT.fullmatch(value):
        raise InvalidInput(f"{label} must be a W3C traceparent (00-<32 hex>-<16 hex>-<2 hex>)", field=label)
    return value


def task_id(value: object, field: str = "task") -> str:
    if not isinstance(value, str) or not _UUID.fullmatch(value.lower()):
        raise InvalidInput(f"{field} must be an id as submit returned it, not {short_repr(value)}", field=field)
    return value.lower()


def id_or_none(value: str) -> str | None:
    """The text in lower case if it is an id, else None."""
    return value.lower() if _UUID.fullmatch(value.lower()) else None

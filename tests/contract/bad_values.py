"""Values that no field takes: each group is for fields of one sort."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from onetray.domain.task import RawJson
from tests.support.tasks import UNKNOWN_ID

NUL, SURROGATE, LONG = "a\0b", "a\ud800b", "x" * 30_000
NAN, INF, HUGE = float("nan"), float("inf"), 10**5000
TEXT: tuple[Any, ...] = (5, b"bytes", ["a"], NUL, SURROGATE, LONG, "")
WORDS: tuple[Any, ...] = (5, b"bytes", ["a"], NUL, SURROGATE, LONG)
ALIAS: tuple[Any, ...] = (*TEXT, "x" * 201, "a\nb", "\x7f", "\x9f")
WHOLE: tuple[Any, ...] = ("5", 1.5, True, [1], HUGE, -HUGE, NAN)
SECONDS: tuple[Any, ...] = ("5", True, [1], HUGE, -1, -HUGE, NAN, INF, -INF, 1e300)
AMOUNTS: tuple[Any, ...] = ("5", True, [1], -1, -HUGE, NAN, INF, -INF, 1e300, HUGE)
LABELS: tuple[Any, ...] = (
    5, "team=a", [("team", "a")], {5: "a"}, {"team": 5}, {"team": None}, {"": "a"}, {"team": ""}, {"team": "a\nb"},
    {"a\tb": "c"}, {"team": NUL}, {"team": SURROGATE}, {"team": "x" * 201}, {"x" * 201: "a"},
    {str(n): "a" for n in range(21)},
)  # fmt: skip
SWITCH: tuple[Any, ...] = (1, 0, "yes", [True])
TRACE: tuple[Any, ...] = (5, "", "not a trace", NUL, "00-" + "A" * 32 + "-" + "b" * 16 + "-01")
MB2 = "x" * 2_000_000
JSON: tuple[Any, ...] = (
    NAN,
    [INF],
    {"a": {"b": (-INF,)}},
    object(),
    {1, 2},
    b"bytes",
    1j,
    timedelta(1),
    {1: 2},
    HUGE,
    NUL,
    {NUL: 1},
    [{"a": [NUL]}],
    SURROGATE,
    {SURROGATE: 1},
    MB2,
    RawJson(b""),
    RawJson(b"{"),
    RawJson(b"{'a': 1}"),
    RawJson(b"[1,]"),
    RawJson(b"NaN"),
    RawJson(b"\xff"),
    RawJson(b'"\\ud800"'),
    RawJson(b'"\\u0000"'),
    RawJson(b'{"a\\u0000": 1}'),
    RawJson(b'"\0"'),
    RawJson(b'"' + MB2.encode() + b'"'),
    RawJson(b"[" * 100_000),
)
TASK: tuple[Any, ...] = (
    None,
    "",
    "abc",
    0,
    -1,
    True,
    1.5,
    [UNKNOWN_ID],
    2**63,
    HUGE,
    UNKNOWN_ID + "0",
    UNKNOWN_ID[:-1] + "g",
    NUL,
)


def label(value: object) -> str:
    return "huge" if isinstance(value, int) and abs(value) > 2**80 else repr(value)[:60]

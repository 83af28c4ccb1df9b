"""Many small cases in one test.

    @each_case(("verb", "state"), CASES)
    def test_a_verb_in_a_state(shared_engine: Engine, verb: str, state: str) -> None: …

It takes what `pytest.mark.parametrize` takes. A test for each case would spend more on its engine, its database and
its report than on the case. All cases share the fixtures of the test, so each has to look at its own jobs alone. What a
case leaves open in the fixture `engine` is ended, so that the next one claims nothing of it.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from onetray.engine import Engine
from tests.support.tasks import leave_nothing_open


def each_case(
    names: str | Sequence[str], values: Iterable[Any], *, ids: Callable[[Any], object] | Iterable[object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every case. All of them run, and the failure tells of each that went wrong."""
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = _cases(words, list(values), ids)
    if not cases:
        raise ValueError(f"there is no case of {', '.join(words)}")

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            faults = [fault for name, case in cases if (fault := _fault(test, name, {**fixtures, **case}))]
            if faults:
                pytest.fail("\n\n".join([f"{len(faults)} of {len(cases)} cases", *faults]), pytrace=False)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in words]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def _cases(words: list[str], values: list[Any], ids: Any) -> list[tuple[str, dict[str, Any]]]:
    cases = []
    labels = None if ids is None or callable(ids) else list(ids)
    for place, value in enumerate(values):
        is_param = hasattr(value, "values") and hasattr(value, "marks")
        given = value.values if is_param else (value,) if len(words) == 1 else tuple(value)
        shown = (
            value.id if is_param and value.id else "-".join(str(ids(v)) if callable(ids) else repr(v) for v in given)
        )
        cases.append((str(labels[place]) if labels else shown[:200], dict(zip(words, given, strict=True))))
    return cases


def _fault(test: Callable[..., None], name: str, arguments: dict[str, Any]) -> str | None:
    fault = _caught(name, lambda: test(**arguments))
    engine = arguments.get("engine")
    left = _caught(name, lambda: leave_nothing_open(engine)) if isinstance(engine, Engine) else None
    return fault or left


def _caught(name: str, call: Callable[[], None]) -> str | None:
    try:
        call()
    except (Exception, pytest.fail.Exception) as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        return f"{name}: {frame.filename}:{frame.lineno}: {type(e).__name__}: {e}"
    return None

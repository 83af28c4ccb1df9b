"""Test support for programs that use onetray: an engine in memory, a virtual clock, tasks that run on demand.

    from onetray.testing import Harness

    with Harness(app) as harness:
        job = send_mail.submit(to="ann")
        harness.drain()
        harness.assert_state(job, "succeeded")

The public names are imported on first use: pytest loads this package at every start, for its plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onetray.testing.harness import Harness
    from onetray.testing.inline import run_inline

_HOME = {"Harness": "onetray.testing.harness", "run_inline": "onetray.testing.inline"}

__all__ = ["Harness", "run_inline"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'onetray.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

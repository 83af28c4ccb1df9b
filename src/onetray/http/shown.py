"""What clients are shown of the engine's values: everything but what a kind has asked to be hidden.

Owns the one door that values of streams and dialects go through on their way out. What is hidden is the engine's to
say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from onetray.engine import Engine

T = TypeVar("T")


def shown(engine: Engine, value: T, of: str | Sequence[str] | None = None) -> T:
    """A value, or a list of values, as others may see it. `of`: whose it is, or each is, where it does not say so
    itself.

    It may ask the database: call it in a thread.
    """
    return engine.veiled(value, of)

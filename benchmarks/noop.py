"""An app whose one task does nothing: what is left is the cost of the engine. `--database` says where it is."""

from __future__ import annotations

from onetray.app.onetray import Onetray

app = Onetray("sqlite:///noop.db")


@app.task
async def noop(number: int) -> None:
    """Its number is only a payload."""

"""The news pipeline of the examples. In the stage that HANG_IN names, every task hangs until its worker is gone."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

from onetray.examples.news_pipeline import app, news

__all__ = ["HANG_IN", "app"]

HANG_IN = "HANG_IN"


async def hang(**_: Any) -> Any:
    await asyncio.sleep(600)


if (name := os.environ.get(HANG_IN)) is not None:
    stage = news.stages[name]
    app.tasks[stage.task.kind] = replace(stage.task, function=hang)

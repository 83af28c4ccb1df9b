"""The news pipeline of the examples. The first attempt of every task of a stage hangs until its worker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onetray import ctx
from onetray.examples.news_pipeline import app, news

__all__ = ["app"]


def hanging(function: Callable[..., Any]) -> Callable[..., Any]:
    async def hang_first(**arguments: Any) -> Any:
        if ctx.attempt == 1:
            await asyncio.sleep(600)
        return await function(**arguments)

    return hang_first


for stage in news.stages.values():
    app.tasks[stage.task.kind] = replace(stage.task, function=hanging(stage.task.function))

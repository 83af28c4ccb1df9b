"""The start page: queues and workers."""

from __future__ import annotations

from typing import Any

from onetray.dashboard.pages import page
from onetray.dashboard.view import View

MOST = 100


@page("/", title="Overview", nav=10)
def overview(view: View) -> dict[str, Any]:
    return {"queues": view.engine.queues(limit=MOST), "workers": view.engine.workers(limit=MOST)}

"""Queues: how full they are, how long their oldest task has waited, who claims from them, and pausing them."""

from __future__ import annotations

from typing import Any

from onetray.dashboard.pages import Flash, action, page
from onetray.dashboard.view import Form, View


@page("/queues", title="Queues", nav=30)
def queues(view: View) -> dict[str, Any]:
    return {"queues": view.engine.overview().queues}


@action("/queues/{name:path}/pause")
def pause_queue(view: View, form: Form) -> Flash:
    name = view.path["name"]
    view.engine.pause_queue(name, reason=form.text("reason") or None)
    return Flash(f"The queue {name} is paused. Its running tasks continue.")


@action("/queues/{name:path}/resume")
def resume_queue(view: View, form: Form) -> Flash:
    name = view.path["name"]
    view.engine.resume_queue(name, reason=form.text("reason") or None)
    return Flash(f"The queue {name} is resumed.")

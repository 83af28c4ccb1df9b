"""The lifecycles of tasks, stages and flows: diagrams and tables, from the tables that the engine enforces."""

from __future__ import annotations

from typing import Any

from onetray.dashboard.pages import page
from onetray.dashboard.state_diagram import lifecycle_svg
from onetray.dashboard.view import View
from onetray.domain.diagram import who_may
from onetray.domain.lifecycle import MACHINES


@page("/lifecycle", title="Lifecycle", nav=80)
def lifecycle(view: View) -> dict[str, Any]:
    return {"machines": list(MACHINES.values()), "lifecycle_svg": lifecycle_svg, "who_may": who_may}

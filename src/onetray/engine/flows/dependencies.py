"""Dependencies of new tasks of a flow, on each other and on tasks that exist.

Owns which task a name or an id means. create.py writes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onetray.domain.checks import id_or_none
from onetray.domain.errors import DependencyCycle, InvalidInput, NameTaken
from onetray.domain.lifecycle import RUNNING, SUCCEEDED, TASK
from onetray.engine.submit import Spec
from onetray.store.rows import FlowRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext

Member = tuple[Spec, tuple[str, ...]]
"""A new task, and the names or ids of the tasks that it depends on."""

Known = dict[str, tuple[int, str, int]]
"""Tasks of a flow, by name and by id: key, state, and the place of their stage."""


def known_members(batch: BatchContext, flow: FlowRow, members: list[Member]) -> Known:
    """The existing tasks that the new ones depend on. Raises NameTaken if a new name is taken."""
    new_names = {spec.name for spec, _ in members if spec.name is not None}
    new_ids = {spec.id for spec, _ in members}
    wanted = {name for _, needs in members for name in needs} - new_ids
    if not new_names and not wanted:
        return {}
    ids = sorted({i for i in map(id_or_none, wanted) if i is not None})
    known: Known = {}
    for row in batch.tx.query("members_named", job=flow.key, names=sorted(new_names | wanted), ids=ids):
        if row.name in new_names:
            raise NameTaken(f"the flow has a task called {row.name!r} already", name=row.name)
        # `settle` will count this success for all dependents, new ones included: do not count it here, too.
        state = RUNNING if row.key in batch.locked.new_successes else row.state
        known[row.id] = row.key, state, row.ord
        if row.name is not None:
            known[row.name] = known[row.id]
    return known


def resolve(members: list[tuple[int, Member]], known: Known) -> tuple[dict[int, dict[int, bool]], dict[int, str]]:
    """The dependencies of each new task, and whether each is met; and tasks with a failed dependency, with its name."""
    new = {spec.name: (spec, ord_) for ord_, (spec, _) in members if spec.name is not None}
    new |= {spec.id: (spec, ord_) for ord_, (spec, _) in members}
    needs: dict[int, dict[int, bool]] = {}
    unrunnable: dict[int, str] = {}
    for stage_ord, (spec, wanted) in members:
        for name in wanted:
            if name in new:
                other, ord_ = new[name]
                key, state = other.key, TASK.submit.target
            elif name in known or name.lower() in known:
                key, state, ord_ = known.get(name) or known[name.lower()]
            else:
                raise InvalidInput(f"depends_on names {name!r}, and the flow has no such task", field="depends_on")
            if ord_ > stage_ord:
                raise DependencyCycle(
                    f"a task of stage {stage_ord} needs {name!r} of stage {ord_}, which opens only after it",
                    cycle=[spec.name or "the task", name, spec.name or "the task"],
                )
            # By key: a task may be listed twice, by name and by id.
            needs.setdefault(spec.key, {})[key] = state == SUCCEEDED
            if state in TASK.terminal and state != SUCCEEDED:
                unrunnable[spec.key] = name
    return needs, unrunnable

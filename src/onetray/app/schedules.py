"""Schedules in the code of an app: `@app.task(cron=…)` and `app.schedule(…)`.

Owns how a declared schedule becomes a ScheduleSpec. Workers of the app register them when they start, and say every
minute that they still have them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from onetray.app.flows import FlowDefinition
from onetray.app.rules import ScheduleRules, known
from onetray.app.tasks import TaskDefinition
from onetray.config import Limits
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput, Unavailable
from onetray.domain.schedule import ScheduleSpec

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray

logger = logging.getLogger("onetray.app")

Target = TaskDefinition[Any, Any] | FlowDefinition[Any, Any] | str


@dataclass(frozen=True)
class DeclaredSchedule:
    """A schedule as the code declares it. The arguments of its task are checked when it is registered."""

    app: Onetray
    name: str
    target: Target
    payload: Any
    rules: dict[str, Any]

    def spec(self) -> ScheduleSpec:
        """Raises InvalidInput if the task is unknown, or if it does not take these arguments."""
        target = self._target()
        if isinstance(target, FlowDefinition):
            return ScheduleSpec(name=self.name, flow=target.name, payload=target.checked(self.payload)[1], **self.rules)
        if not isinstance(self.payload, dict | None):
            raise InvalidInput(
                f"schedule {self.name}: payload must be a dict of arguments, not {type(self.payload).__name__}",
                field="payload",
            )
        payload = target.signature.payload((), self.payload or {})
        rules = {"queue": target.queue, **self.rules}
        return ScheduleSpec(name=self.name, kind=target.kind, payload=payload, **rules)

    def _target(self) -> TaskDefinition[Any, Any] | FlowDefinition[Any, Any]:
        if not isinstance(self.target, str):
            return self.target
        return self.app.flow_of(self.target) or self.app.definition(self.target)


def declare_schedule(app: Onetray, name: str, target: object, payload: Any = None, **rules: Any) -> DeclaredSchedule:
    """Check the rules of a schedule as far as the code that follows is not needed for it."""
    known(rules, ScheduleRules, "setting", "a schedule")
    if not isinstance(target, TaskDefinition | FlowDefinition | str):
        raise InvalidInput(
            f"schedule {name}: task must be a task, a flow or the name of one, not {type(target).__name__}",
            field="task",
        )
    rules |= {name: _micros(rules[name], name) for name in ("starts_at", "ends_at") if name in rules}
    ScheduleSpec(name=name, kind="any", payload=None, **rules).check(Limits())
    return DeclaredSchedule(app, name, target, payload, rules)


def _micros(at: datetime | int, name: str) -> int:
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        raise InvalidInput(f"{name} has no time zone: use an aware datetime, as datetime.now(UTC)", field=name)
    return int(at.timestamp() * SECOND)


def specs_of(app: Onetray) -> list[ScheduleSpec]:
    """The schedules of an app, without those that could not be submitted, which are logged."""
    specs: list[ScheduleSpec] = []
    for schedule in app.schedules.values():
        try:
            specs.append(schedule.spec())
        except Exception as e:
            # Types of users may raise anything, and the app's other schedules must still fire.
            logger.error("the schedule %s is not registered: %s", schedule.name, e)
    return specs


def register_schedules(app: Onetray, worker: str, renew: bool) -> None:
    """Register the app's schedules, for a worker. It runs without them, too: what fails is logged."""
    try:
        refused = app.engine.declare_schedules(
            specs_of(app), app=app.name, worker=worker, renew=renew, namespace=app.namespace
        )
    except Unavailable:
        raise
    except Exception as e:
        # A token may not be allowed to submit, and a server may be too old to know schedules.
        if app.schedules:
            logger.warning("the schedules of the app are not registered: %s", e)
        return
    for name in refused if not renew else ():
        logger.warning(
            "the schedule %s is not registered: somebody has added one of this name. Remove it with `onetray schedules "
            "remove`, or choose another name", name,
        )  # fmt: skip

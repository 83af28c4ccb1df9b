"""`onetray stages`: list the stages of a flow; approve, reject, skip or cancel one.

A stage is named by its id or as FLOW/name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli import Absent, BadInput
from onetray.cli.completion import complete_flow_jobs
from onetray.cli.jobs.act import print_asked, print_result, reason_option
from onetray.cli.options import acting_user, common, json_value, opened
from onetray.cli.output import print_json_list
from onetray.cli.show import print_stages
from onetray.cli.target import SERVER

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi

SHOWN_STAGES = 20

note_option = click.option("--note", help="A note, stored with the stage.")


by_option = click.option("--by", metavar="NAME", help="Answer in this name. Default: your login name.")


@click.group(short_help="List the stages of a flow; approve, reject, skip or cancel one.")
def stages() -> None:
    """List the stages of a flow; approve, reject, skip or cancel one.

    Name a stage by its id (the first or last characters are enough), or as FLOW/name.
    """


@stages.command("list", short_help="List the stages of a flow.")
@click.argument("flow", shell_complete=complete_flow_jobs)
@common
def list_(flow: str, database: str, namespace: str, as_json: bool) -> None:
    """List the stages of FLOW in order."""
    with opened(database) as engine:
        located, now = engine.locate(flow, among=("flow",), namespace=namespace), engine.now()
        stages = engine.stages(located.id, namespace=namespace)
    print_json_list("stages", stages) if as_json else print_stages(stages, now)


@stages.command(short_help="Approve a waiting stage.")
@click.argument("stage")
@click.option("--input", "input_", type=json_value, metavar="JSON", help="The input, as the stage's form requires it.")
@note_option
@by_option
@common
def approve(
    stage: str, input_: Any, note: str | None, by: str | None, database: str, namespace: str, as_json: bool
) -> None:
    """Approve STAGE, which waits for approval. Its tasks then run.

    Only the user or the group that it waits for may answer. A server takes the name from the token.
    """
    actor = _answering(by, database)
    with opened(database) as engine:
        id_ = stage_id(engine, stage, namespace)
        print_result(engine.approve_stage(id_, input=input_, note=note, namespace=namespace, **actor), as_json)


@stages.command(short_help="Reject a waiting stage.")
@click.argument("stage")
@click.option("--reason", required=True, help="Why; stored with the stage.")
@by_option
@common
def reject(stage: str, reason: str, by: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Reject STAGE, which waits for approval. The stage then fails."""
    actor = _answering(by, database)
    with opened(database) as engine:
        id_ = stage_id(engine, stage, namespace)
        print_result(engine.reject_stage(id_, note=reason, namespace=namespace, **actor), as_json)


@stages.command(short_help="Skip a stage that has not started.")
@click.argument("stage")
@note_option
@by_option
@common
def skip(stage: str, note: str | None, by: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Skip STAGE, which waits or has not started. The flow continues with the next stage."""
    actor = _answering(by, database)
    with opened(database) as engine:
        id_ = stage_id(engine, stage, namespace)
        print_result(engine.skip_stage(id_, note=note, namespace=namespace, **actor), as_json)


@stages.command(short_help="Cancel a stage.")
@click.argument("stage")
@click.option("--hard", is_flag=True, help="End running tasks at once instead of asking their handlers to stop.")
@reason_option
@common
def cancel(stage: str, hard: bool, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Cancel the open tasks of STAGE.

    Without --hard, running tasks are asked to stop and have cancel_grace_s to do so. Whether the flow then continues
    or ends depends on the stage's on_failure.
    """
    with opened(database) as engine:
        id_ = stage_id(engine, stage, namespace)
        print_result(engine.cancel_stage(id_, hard=hard, cause=reason, namespace=namespace, **acting_user()), as_json)
        if not hard and not as_json:
            print_asked(engine.stage(id_, namespace=namespace).counts.held, f"onetray stages cancel {id_} --hard")


def _answering(by: str | None, database: str) -> dict[str, str]:
    """The actor of an answer. A server takes it from the token."""
    if by is not None and database.startswith(SERVER):
        raise BadInput("--by needs a database: a server takes the name from the token, so use a token of that user")
    return acting_user() if by is None else {"actor_name": by}


def stage_id(engine: EngineApi, reference: str, namespace: str) -> str:
    """The id of a stage that is named by a full or partial id, or as FLOW/name."""
    from onetray.domain.errors import NotFound

    flow, slash, name = reference.partition("/")
    if not slash:
        return _stage_of_id(engine, reference, namespace)
    stages = engine.stages(engine.locate(flow, among=("flow",), namespace=namespace).id, namespace=namespace)
    for stage in stages:
        if stage.name == name:
            return stage.id
    raise NotFound(f"the flow has no stage {name!r}; it has: {', '.join(s.name for s in stages[:20])}")


def _stage_of_id(engine: EngineApi, id_: str, namespace: str) -> str:
    from onetray.domain.errors import NotFound

    try:
        return engine.locate(id_, among=("stage",), namespace=namespace).id
    except NotFound as e:
        raise Absent(f"{e}{_instead(engine, id_, namespace)}") from e


def _instead(engine: EngineApi, id_: str, namespace: str) -> str:
    """What to pass instead of an id that is not a stage's: the waiting stages of the flow that it belongs to."""
    from onetray.domain.errors import OnetrayError
    from onetray.domain.lifecycle import WAITING

    try:
        located = engine.locate(id_, among=("flow", "task"), namespace=namespace)
        flow = located.id if located.entity == "flow" else engine.task(located.id, namespace=namespace).job_id
        stages = engine.stages(flow, namespace=namespace)
    except OnetrayError:
        return ""
    waiting = [s for s in stages if s.state == WAITING]
    found = "these of its stages wait" if waiting else "none of its stages waits; it has"
    names = ", ".join(f"{flow}/{s.name}" for s in (waiting or stages)[:SHOWN_STAGES])
    return f"; it is a {located.entity}, and {found}: {names}"

"""`onetray stages`: see the stages of a flow, and answer those that wait for somebody.

Owns how a stage is named: by its id, or as FLOW/name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli.jobs.act import print_result
from onetray.cli.options import common, json_value, opened, who
from onetray.cli.output import print_json
from onetray.cli.show import print_stages

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi

note_option = click.option("--note", help="A word about it. It is kept with the stage.")


@click.group(short_help="See the stages of a flow; approve, reject or skip one.")
def stages() -> None:
    """See the stages of a flow, and answer those that wait.

    A stage is given by its id (its beginning or its end will do), or as FLOW/name.
    """


@stages.command("list", short_help="List the stages of a flow.")
@click.argument("flow")
@common
def list_(flow: str, database: str, namespace: str, as_json: bool) -> None:
    """List the stages of FLOW, in their order."""
    with opened(database) as engine:
        found, now = engine.locate(flow, among=("flow",), namespace=namespace), engine.now()
        stages = engine.stages(found.id, namespace=namespace)
    print_json(stages) if as_json else print_stages(stages, now)


@stages.command(short_help="Approve a stage that waits.")
@click.argument("stage")
@click.option("--input", "input_", type=json_value, metavar="JSON", help="What the stage's form asks for.")
@note_option
@common
def approve(stage: str, input_: Any, note: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Approve STAGE, which waits for approval: it opens."""
    with opened(database) as engine:
        id_ = stage_id(engine, stage, namespace)
        print_result(engine.approve_stage(id_, input=input_, note=note, namespace=namespace, **who()), as_json)


@stages.command(short_help="Reject a stage that waits.")
@click.argument("stage")
@click.option("--reason", required=True, help="Why. It is kept with the stage.")
@common
def reject(stage: str, reason: str, database: str, namespace: str, as_json: bool) -> None:
    """Reject STAGE, which waits for approval: it fails."""
    with opened(database) as engine:
        id_ = stage_id(engine, stage, namespace)
        print_result(engine.reject_stage(id_, note=reason, namespace=namespace, **who()), as_json)


@stages.command(short_help="Skip a stage that has not begun.")
@click.argument("stage")
@note_option
@common
def skip(stage: str, note: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Skip STAGE, which waits or has not begun: the next one has its turn."""
    with opened(database) as engine:
        id_ = stage_id(engine, stage, namespace)
        print_result(engine.skip_stage(id_, note=note, namespace=namespace, **who()), as_json)


def stage_id(engine: EngineApi, word: str, namespace: str) -> str:
    """The id of the stage that a word names."""
    from onetray.domain.errors import NotFound

    flow, slash, name = word.partition("/")
    if not slash:
        return engine.locate(word, among=("stage",), namespace=namespace).id
    stages = engine.stages(engine.locate(flow, among=("flow",), namespace=namespace).id, namespace=namespace)
    for stage in stages:
        if stage.name == name:
            return stage.id
    raise NotFound(f"the flow has no stage {name!r}; it has: {', '.join(s.name for s in stages[:20])}")

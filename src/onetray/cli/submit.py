"""`onetray submit`: submit a task or a flow, and with --wait follow it to its end.

Owns how arguments stand on the command line. What they may be is the app's to say, where one is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli import FOUND, BadInput
from onetray.cli.format import age
from onetray.cli.options import common, json_value, opened
from onetray.cli.output import print_json

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi


@click.command(short_help="Submit a task or a flow.")
@click.argument("kind")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--app", "path", metavar="MODULE:APP",
              help="Check the arguments against this app; a flow needs one. Otherwise the setting app.")  # fmt: skip
@click.option("--payload", metavar="JSON", help="The arguments, or a flow's config, as one JSON value.")
@click.option("--queue", metavar="NAME", help="Another queue than the task's own.")
@click.option("--priority", type=int, help="Higher is sooner.")
@click.option("--delay", metavar="AGE", type=age, help="Not before this time has passed: 90s, 15m, 2h, 3d.")
@click.option("--idempotency-key", metavar="KEY", help="Submitted again with the same key, it is the same job.")
@click.option("--unique-key", metavar="KEY", help="While a job with this key is open, there is no second one.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="May be given several times.")
@click.option("--correlation-id", metavar="ID", help="What belongs together.")
@click.option("--wait", is_flag=True, help="Follow its log and its progress until it has ended.")
@click.option("--timeout", metavar="AGE", type=age, help="With --wait: for so long at most.")
@common
def submit(
    kind: str, arguments: tuple[str, ...], path: str | None, payload: str | None, labels: tuple[str, ...], wait: bool,
    timeout: float | None, database: str, namespace: str, as_json: bool, delay: float | None, **options: Any,
) -> None:  # fmt: skip
    """Submit a task of KIND, or a flow of that name.

    A VALUE is JSON if it can be read as such, and text otherwise: n=5 is a number, to=ann is text.

    With --wait it exits with 0 when the job has succeeded and with 1 when it ended in another way.
    """
    from onetray.settings import load

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if delay is not None:
        given["delay_s"] = delay
    if labels:
        given["labels"] = dict(_pair(label, "--label") for label in labels)
    body = json_value(payload) if payload is not None else {n: _value(v) for n, v in map(_pair, arguments)}
    if payload is not None and arguments:
        raise BadInput("give NAME=VALUE or --payload, not both")
    with opened(database, create=True) as engine:
        id_, entity, repeated = _submit(engine, path or load().settings.app, kind, body, namespace, given)
        if wait:
            from onetray.cli.wait import follow

            if not follow(engine, id_, entity, namespace, timeout, as_json):
                click.get_current_context().exit(FOUND)
        elif as_json:
            print_json({"id": id_, "entity": entity, "repeated": repeated})
        else:
            click.echo(f"{id_}{' (it was there already)' if repeated else ''}")


def _submit(
    engine: EngineApi, path: str | None, kind: str, body: Any, namespace: str, given: dict[str, Any]
) -> tuple[str, str, bool]:
    """Submit through the app where one is given; the id, what it is, and whether it was there already."""
    if path is None:
        receipt = engine.submit(kind, body, namespace=namespace, **given)
        assert receipt.id is not None
        return receipt.id, "task", receipt.repeated
    from onetray.worker.app_loader import load_app

    app = load_app(path)
    app.use(engine)
    app.namespace = namespace
    if kind in app.flows:
        late = sorted(set(given) & {"queue", "priority", "delay_s"})
        if late:
            raise BadInput(f"a flow has no {late[0]}: its stages have")
        job = app.flows[kind].submit(body or None, **given)
    elif kind in app.tasks:
        job = app.submit(kind, body, **given)
    else:
        known = ", ".join(sorted({*app.flows, *app.tasks}))
        raise BadInput(f"{path} has no task or flow {kind!r}; it has: {known}")
    return job.id, job.entity, job.repeated


def _pair(text: str, what: str = "an argument") -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BadInput(f"{what} is written NAME=VALUE, not {text!r}")
    return name, value


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text

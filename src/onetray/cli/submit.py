"""`onetray submit`: submit a task or a flow; with --wait, follow it to its end.

Owns the syntax of arguments. With --app, the app checks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from onetray.cli import CHECK_FAILED, BadInput
from onetray.cli.completion import complete_kinds, complete_queues
from onetray.cli.format import age
from onetray.cli.options import acting_user, common, json_value, label, opened
from onetray.cli.output import print_json
from onetray.cli.target import absolute, app_path, use_app

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.engine.api import EngineApi

DEFAULT_QUEUE = "default"


@click.command(short_help="Submit a task or a flow.")
@click.argument("kind", shell_complete=complete_kinds)
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--unknown-kind", is_flag=True, help="Submit a task of a kind that neither the database nor the app knows."
)
@click.option("--payload", metavar="JSON", help="The arguments, or a flow's config, as one JSON value.")
@click.option(
    "--queue", metavar="NAME", shell_complete=complete_queues, help="Use this queue instead of the task's own."
)
@click.option("--priority", type=int, help="Higher runs sooner.")
@click.option("--delay", metavar="AGE", type=age, help="Wait this long before it may run: 90s, 15m, 2h, 3d.")
@click.option("--idempotency-key", metavar="KEY", help="A repeated submit with this key returns the same job.")
@click.option("--unique-key", metavar="KEY", help="At most one job with this key is open at a time.")
@click.option("--debounce", metavar="AGE", type=age, help="Run after this long without another submit of this kind.")
@click.option("--debounce-key", metavar="KEY", help="With --debounce: only submits with this key count.")
@click.option("--debounce-max", metavar="AGE", type=age, help="With --debounce: wait no longer than this.")
@click.option("--throttle", metavar="AGE", type=age, help="For this long, submits of this kind return this job.")
@click.option("--throttle-key", metavar="KEY", help="With --throttle: only submits with this key count.")
@click.option("--alias", metavar="TEXT", help="An id of your own, unique in the namespace.")
@click.option("--label", "labels", metavar="NAME=VALUE", type=label, multiple=True, help="A label. May be repeated.")
@click.option("--metadata", type=json_value, metavar="JSON", help="JSON that is stored with the job and shown.")
@click.option("--correlation-id", metavar="ID", help="An id that related jobs share.")
@click.option("--wait", is_flag=True, help="Follow its log and its progress until it has ended.")
@click.option("--timeout", metavar="AGE", type=age, help="With --wait: the longest time to wait.")
@common
def submit(
    kind: str, arguments: tuple[str, ...], unknown_kind: bool, payload: str | None,
    labels: tuple[tuple[str, str], ...], wait: bool,
    timeout: float | None, database: str, namespace: str, as_json: bool, delay: float | None, **options: Any,
) -> None:  # fmt: skip
    """Submit a task of KIND, or a flow of that name.

    With an app (--app, or the setting app), the app checks the arguments. A flow needs its app; without it, use
    `onetray flows submit`. A task needs no app if the database knows its kind: a worker has declared it, or there is a
    job of it.

    A VALUE is JSON if it is valid JSON, and text otherwise: n=5 is a number, to=ann is text.

    With --wait it exits with 0 if the job succeeded and with 1 otherwise.
    """
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in ("debounce", "debounce_max", "throttle"):
        if name in fields:
            fields[f"{name}_s"] = fields.pop(name)
    if delay is not None:
        fields["delay_s"] = delay
    if labels:
        fields["labels"] = dict(labels)
    body = json_value(payload) if payload is not None else {n: _value(v) for n, v in map(_pair, arguments)}
    if payload is not None and arguments:
        raise BadInput("pass NAME=VALUE or --payload, not both")
    path = app_path()
    with opened(database) as engine:
        app = None if path is None else _app(path, engine, database, namespace)
        if not unknown_kind:
            _check_kind(engine, path, app, kind, namespace)
        if app is None and "queue" not in fields:
            _warn_of_other_queue(engine, kind, namespace)
        submitted = _submit(engine, app, kind, body, namespace, fields)
        if wait:
            from onetray.cli.wait import wait_for_end

            if not wait_for_end(engine, submitted.id, submitted.entity, namespace, timeout, as_json):
                click.get_current_context().exit(CHECK_FAILED)
        elif as_json:
            print_json(submitted._asdict())
        else:
            click.echo(f"{submitted.id}{_remark(submitted)}")


class Submitted(NamedTuple):
    """The job of a submit, and whether it existed already."""

    id: str
    entity: str
    repeated: bool
    window: str | None = None


def _remark(submitted: Submitted) -> str:
    if submitted.window == "throttled":
        return " (throttled: an earlier submit created this job)"
    if submitted.window == "debounced":
        return " (debounced: the payload of this job was replaced)"
    return " (already submitted)" if submitted.repeated else ""


def _app(path: str, engine: EngineApi, database: str, namespace: str) -> Onetray:
    app, warnings = use_app(path, database, namespace)
    for warning in warnings:
        click.echo(f"onetray: {warning}", err=True)
    app.use(engine)
    return app


def _check_kind(engine: EngineApi, path: str | None, app: Onetray | None, kind: str, namespace: str) -> None:
    """Raise BadInput if nobody knows the kind: a task of it would wait for ever."""
    from onetray.domain.errors import Forbidden

    if app is not None:
        if kind not in app.flows and kind not in app.tasks:
            hint = f"{_nearest(kind, [*app.tasks, *app.flows])} To submit it anyway: --unknown-kind"
            raise BadInput(f"{path} has no task or flow {kind!r}; {hint}")
        return
    try:
        if engine.policy_of(kind, namespace=namespace) is not None:
            return
        known = engine.kinds(namespace=namespace)
    except Forbidden:
        # A token that may only submit cannot ask.
        return
    if kind in [flow.name for flow in engine.declared_flows(namespace=namespace)]:
        raise BadInput(f"{kind!r} is a flow: `onetray flows submit {kind}`, or name its app with --app")
    where = f"the namespace {namespace} of {absolute(click.get_current_context().params['database'])}"
    hint = f"{_nearest(kind, known)} Start its worker first, or name its app with --app, or pass --unknown-kind"
    raise BadInput(f"nobody knows the kind {kind!r} in {where}; {hint}")


def _warn_of_other_queue(engine: EngineApi, kind: str, namespace: str) -> None:
    """Only the app knows the queue of a task: without it, the last job of the kind is the best hint."""
    from onetray.domain.errors import Forbidden

    try:
        last = engine.jobs(kind=kind, entity="task", limit=1, namespace=namespace).jobs
    except Forbidden:
        return
    if last and last[0].queue != DEFAULT_QUEUE:
        click.echo(
            f"onetray: this job is in the queue {DEFAULT_QUEUE}, the last one of {kind} was in {last[0].queue}: "
            "only the app knows the queue of a task, so pass --app or --queue",
            err=True,
        )


def _nearest(kind: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(kind, known, 3)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {', '.join(sorted(known)[:20])}." if known else "no kind is known yet."


def _submit(
    engine: EngineApi, app: Onetray | None, kind: str, body: Any, namespace: str, fields: dict[str, Any]
) -> Submitted:
    """Submit, through the app if it knows the kind."""
    if app is None or (kind not in app.flows and kind not in app.tasks):
        receipt = engine.submit(kind, body, namespace=namespace, **acting_user(), **fields)
        assert receipt.id is not None
        return Submitted(receipt.id, "task", receipt.repeated, receipt.window)
    if kind in app.flows:
        from onetray.app.window_rules import RULES

        task_fields = sorted(set(fields) & {"queue", "delay_s", *RULES})
        if task_fields:
            raise BadInput(f"a flow has no {task_fields[0]}: set it on its stages")
        job = app.flows[kind].submit(body or None, **fields)
    else:
        job = app.submit(kind, body, **fields)
    return Submitted(job.id, job.entity, job.repeated, job.window)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BadInput(f"an argument must be NAME=VALUE, not {text!r}")
    return name, value


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text

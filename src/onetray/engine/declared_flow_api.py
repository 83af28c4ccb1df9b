"""The registry of declared flows: workers declare them, anybody lists and submits them by name.

The declaration of the worker that started last is the current one. Workers that already run only renew what they
declared, so two versions of an app beside each other do not replace each other's declarations again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from onetray.domain.checks import text
from onetray.domain.clock import SECOND
from onetray.domain.commands import Command
from onetray.domain.declared_flow import (
    DeclaredFlow,
    DeclaredFlowSummary,
    FlowDeclaration,
    check_declaration,
    declaration_of,
    shown_stage,
    submit_by_name,
)
from onetray.domain.errors import NotFound, OnetrayError
from onetray.domain.flow_commands import SubmitDeclared
from onetray.domain.task import Verdict
from onetray.domain.verbs import check_command
from onetray.engine.kind_api import KindApi
from onetray.engine.reads import DatabaseReads, act, own_route, read
from onetray.redaction.answers import plain
from onetray.store.base import Tx
from onetray.store.shown_rows import DeclaredFlowRow

RENEW_S = 600.0
"""How old `seen_at` may become before a worker writes it again."""


class DeclaredFlowApi(DatabaseReads):
    """The engine's methods about declared flows, on a database."""

    def __init__(self, kinds: KindApi) -> None:
        super().__init__(kinds.store, kinds.config, kinds.must_not_have_forked)
        self._kinds = kinds

    @own_route
    def declare_flow(
        self, flow: FlowDeclaration, *, worker: str = "anonymous", renew: bool = False, namespace: str = "default"
    ) -> None:
        """Declare a flow, in place of an earlier declaration. Writes nothing if it is already the current one.

        With `renew` it only says that this version is still in use, and declares the flow if nobody has.
        """
        limits = self.config.limits
        checked = check_declaration(flow, limits)
        body, version = checked.body, checked.version
        text(worker, "worker", limits.name_chars)
        ns = self.store.names.intern_namespace(text(namespace, "namespace", limits.name_chars))
        rows = self._read("declared_flow", namespace=namespace, flow=flow.name)
        # The same version may name its fields in another order, in which forms show them.
        replaces = not rows or ((rows[0].version, rows[0].body) != (version, body) and not renew)
        if not replaces and self._is_fresh(rows[0], version):
            return

        def write(tx: Tx) -> None:
            if replaces:
                tx.query(
                    "declare_flow", ns=ns, name=flow.name, version=version, stages=len(flow.stages), at=tx.now,
                    by=worker, body=body,
                )  # fmt: skip
            else:
                tx.query("renew_flow", ns=ns, name=flow.name, version=version, at=tx.now)

        self.store.write(write)

    def _is_fresh(self, row: DeclaredFlowRow, version: str) -> bool:
        seen_at = row.seen_at if row.version == version else row.other_seen_at if row.other_version == version else None
        return seen_at is not None and self.store.now() - seen_at < RENEW_S * SECOND

    @read(plain)
    def declared_flows(self, *, namespace: str = "default", limit: int = 1000) -> list[DeclaredFlowSummary]:
        """The flows that workers have declared, by name."""
        return self._read("declared_flows", namespace=namespace, limit=limit)

    @read(plain)
    def declared_flow(self, name: str, *, namespace: str = "default") -> DeclaredFlow:
        """A declared flow: its stages, its rules, and the JSON Schema of its config."""
        row = self._row(name, namespace)
        declared, policy_of = declaration_of(row.body), self._kinds.policy_of
        own = policy_of(name, namespace=namespace)
        stages = tuple(shown_stage(stage, policy_of(stage.kind, namespace=namespace)) for stage in declared.stages)
        return DeclaredFlow(
            namespace, name, row.version, row.declared_at, row.declared_by, row.seen_at, row.other_version,
            row.other_seen_at, declared.roll_up, declared.singleton, declared.deadline_s,
            () if own is None else own.redact, declared.config_schema, stages,
        )  # fmt: skip

    @act
    def forget_flow(self, name: str, *, namespace: str = "default") -> None:
        """Remove the declaration of a flow. Its jobs stay. A worker that still has it declares it again."""
        text(name, "name", self.config.limits.name_chars)
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        if ns is None or not self.store.write(lambda tx: tx.query("forget_flow", ns=ns, name=name)):
            raise _undeclared(name)

    def _row(self, name: str, namespace: str) -> DeclaredFlowRow:
        rows = self._read("declared_flow", namespace=namespace, flow=text(name, "name", self.config.limits.name_chars))
        if not rows:
            raise _undeclared(name)
        return rows[0]

    def resolve(self, commands: Sequence[Command]) -> tuple[list[Command], dict[int, Verdict]]:
        """The commands with submits of stages in place of submits by name, and the refusals, by their places."""
        resolved: list[Command] = []
        refused: dict[int, Verdict] = {}
        for i, command in enumerate(commands):
            try:
                resolved.append(self._resolve(command) if isinstance(command, SubmitDeclared) else command)
            except OnetrayError as e:
                refused[i] = Verdict(error=e)
        return resolved, refused

    def _resolve(self, command: SubmitDeclared) -> Command:
        check_command(command, self.config.limits)
        return submit_by_name(declaration_of(self._row(command.name, command.namespace).body), command)


def _undeclared(name: str) -> NotFound:
    return NotFound(
        f"no worker has declared a flow {name!r} in this namespace: start a worker of its app, or submit its stages",
        flow=name,
    )

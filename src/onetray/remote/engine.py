"""RemoteEngine: the engine's API over HTTP.

    app = Onetray("http://host:8321", token="…")

Sends commands, calls reads and acts by name, and waits for wake-ups of the server. Methods that need a database raise
StoreError.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import NoReturn, ParamSpec, TypeVar, overload

from onetray.config import EngineConfig, Limits
from onetray.domain.checks import choice
from onetray.domain.commands import Command
from onetray.domain.declared_flow import FlowDeclaration, check_declaration
from onetray.domain.errors import InvalidInput, StoreError
from onetray.domain.machine import ACTORS, USER
from onetray.domain.policy import Policy
from onetray.domain.schedule import ScheduleSpec
from onetray.domain.task import Verdict
from onetray.domain.worker import WorkerBeat, check_beat
from onetray.engine.api import EngineApi
from onetray.engine.reads import ApiMethod
from onetray.notify.wake import Wake
from onetray.remote.command_codec import encode_fields
from onetray.remote.notify import RemoteSource
from onetray.remote.sender import CommandSender
from onetray.remote.transport import Transport
from onetray.remote.value_codec import decode, dumps

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("onetray.remote")

TOKEN = "ONETRAY_TOKEN"
ANY = "default"
"""The default namespace: the server replaces it by the token's."""
SCHEMES = ("http://", "https://")


class NeedsDatabase:
    """An attribute that only an engine with a database has: access raises StoreError."""

    @overload
    def __get__(self, engine: None, owner: type) -> NeedsDatabase: ...
    @overload
    def __get__(self, engine: RemoteEngine, owner: type) -> NoReturn: ...
    def __get__(self, engine: RemoteEngine | None, owner: type) -> NeedsDatabase:
        if engine is None:
            return self
        raise StoreError(f"this needs the database itself, but {engine.url} is a server: do it there")


class RemoteEngine(EngineApi):
    """The client of a server. Thread-safe."""

    def __init__(
        self, url: str, *, token: str | None = None, config: EngineConfig | None = None, redacted: bool = False
    ) -> None:
        """With `redacted`, the server also redacts answers to a token that may read secrets."""
        self._local_config = config or EngineConfig()
        self._token = token or os.environ.get(TOKEN) or None
        self._transport = Transport(url, self._token, self._local_config.call_timeout_s, redacted=redacted)
        self.url = self._transport.url
        super().__init__(CommandSender(self._transport, self.check_namespace), Wake(RemoteSource(self._transport)))
        self._namespace = ANY

    store = feed = tokens = http_keys = redaction = NeedsDatabase()
    expire_leases = do_due = sweep = janitor = prunable = prune = prune_notes = retention = NeedsDatabase()
    on_event = on_batch = tally = undo_claim = declare_keeping_redaction = reserve_key = NeedsDatabase()
    bulk_steps = fire_schedules = NeedsDatabase()

    @cached_property
    def config(self) -> EngineConfig:  # type: ignore[override]
        return self.introduce()

    def introduce(self, patience_s: float | None = None) -> EngineConfig:
        """Read the token's namespace and the server's limits."""
        answer = self._transport.request("GET", "/api/v1/whoami", None, writes=False, patience_s=patience_s)
        if not isinstance(answer, dict) or not isinstance(answer.get("limits"), dict):
            raise StoreError(f"{self._transport.url} returned no limits: check that it is an onetray server")
        known = {f.name for f in fields(Limits)}
        limits = Limits(**{name: limit for name, limit in answer["limits"].items() if name in known})
        self._namespace = str(answer.get("namespace"))
        self.config = replace(self._local_config, limits=limits)
        return self.config

    def check_namespace(self, namespace: str) -> None:
        """Raises InvalidInput unless the token is for this namespace."""
        if namespace != ANY and namespace != self._namespace:
            self.introduce()
            if namespace != self._namespace:
                raise InvalidInput(
                    f"the token is for the namespace {self._namespace!r}, not for {namespace!r}: use another token",
                    field="namespace",
                )

    def close(self) -> None:
        if "redacted" in vars(self):
            self.redacted.close()
        self.wake.close()
        self._committer.close()

    @cached_property
    def redacted(self) -> RemoteEngine:
        return RemoteEngine(self.url, token=self._token, config=self._local_config, redacted=True)

    def bind(self, method: ApiMethod[P, R]) -> Callable[P, R]:
        path = f"/api/v1/{'acts' if method.writes else 'reads'}/{method.name}"

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = method.arguments(args, kwargs)
            self.check_namespace(arguments.get("namespace", ANY))
            actor = choice(arguments.get("actor", USER), "actor", ACTORS)
            body = dumps({name: arguments[name] for name in method.parameters if name in arguments})
            answer = self._transport.post(path, body, writes=method.writes)
            value = decode(method.answer_type, answer["value"])
            return value if actor == USER else replace(value, actor=actor)  # type: ignore[no-any-return]

        return call

    def declare(self, policies: Mapping[str, Policy], *, namespace: str = ANY) -> None:
        self.check_namespace(namespace)
        answer = self._transport.post("/api/v1/kinds", dumps({"policies": dict(policies)}))
        for kind, paths in answer.get("kept", {}).items():
            logger.warning("the server keeps redacting %s of %s: only a token with operate can stop that", paths, kind)

    def declare_flow(
        self, flow: FlowDeclaration, *, worker: str = "anonymous", renew: bool = False, namespace: str = ANY
    ) -> None:
        self.check_namespace(namespace)
        check_declaration(flow, self.config.limits)
        body = {**encode_fields(flow), "worker": worker, "renew": renew}
        self._transport.post("/api/v1/flow-definitions", dumps(body))

    def declare_schedules(
        self, schedules: Sequence[ScheduleSpec], *, app: str = "default", worker: str = "anonymous",
        renew: bool = False, namespace: str = ANY,
    ) -> list[str]:  # fmt: skip
        self.check_namespace(namespace)
        for spec in schedules:
            spec.check(self.config.limits)
        body = {"schedules": list(map(encode_fields, schedules)), "app": app, "worker": worker, "renew": renew}
        refused: list[str] = self._transport.post("/api/v1/schedules/declare", dumps(body))["refused"]
        return refused

    def configure(self, kind: str, policy: Policy, *, namespace: str = ANY) -> None:
        self.declare({kind: policy}, namespace=namespace)

    def worker_beat(self, beat: WorkerBeat, *, namespace: str = ANY) -> None:
        self.check_namespace(namespace)
        check_beat(beat, self.config.limits)
        self._transport.post("/api/v1/workers/beat", dumps(beat))

    def worker_leave(self, name: str, *, namespace: str = ANY) -> None:
        self.check_namespace(namespace)
        self._transport.post("/api/v1/workers/leave", dumps({"name": name}))

    def _submit_within(self, connection: object, commands: Sequence[Command]) -> list[Verdict]:
        raise InvalidInput(
            "a job cannot be submitted to a server inside your own transaction: leave out connection, or connect to "
            "the database",
            field="connection",
        )

"""RemoteEngine: an engine whose database is a server's.

    app = Onetray("http://host:8321", token="…")

Owns what is different from one that has the database itself: commands are sent, reads are asked by their names, news
come from the server. Verbs and checks are the engine's own. What cannot be done from here says so.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, NoReturn, TypeVar

from onetray.config import EngineConfig, Limits
from onetray.domain.checks import choice
from onetray.domain.commands import Command
from onetray.domain.errors import InvalidInput, StoreError
from onetray.domain.machine import ACTORS, USER
from onetray.domain.policy import Policy
from onetray.domain.task import Verdict
from onetray.domain.worker import WorkerBeat, check_beat
from onetray.engine import Engine
from onetray.engine.piggyback import Piggyback
from onetray.notify.wake import Wake
from onetray.remote.notify import RemoteSource
from onetray.remote.reads import ACTS, READS, parameters
from onetray.remote.sender import CommandSender
from onetray.remote.transport import Transport
from onetray.remote.value_codec import decode, dumps

T = TypeVar("T")

logger = logging.getLogger("onetray.remote")

TOKEN = "ONETRAY_TOKEN"
ANY = "default"
"""The namespace of whoever names none: then it is the token's."""
SCHEMES = ("http://", "https://")


class RemoteEngine(Engine):
    """The engine of a server, with the same verbs and reads. Safe to use from any thread."""

    is_remote: ClassVar[bool] = True

    def __init__(
        self, url: str, *, token: str | None = None, config: EngineConfig | None = None, veiled: bool = False
    ) -> None:
        """With `veiled`, what kinds have asked to be redacted is hidden, also from a token that may see it."""
        # Not the engine's own: there is no store here, and what would need one is asked of the server.
        self._given = config or EngineConfig()
        token = token or os.environ.get(TOKEN) or None
        self._transport = Transport(url, token, self._given.call_timeout_s, veiled=veiled)
        self._committer = CommandSender(self._transport, self.must_be_ours)
        self._namespace = ANY
        self.rides = Piggyback()
        self.wake = Wake(RemoteSource(self._transport))

    def __getattr__(self, name: str) -> Any:
        if name == "config":
            return self.introduce()
        if name in ("store", "feed", "_listeners", "_janitors", "_chance"):
            self._needs_the_database()
        raise AttributeError(name)

    def introduce(self, patience_s: float | None = None) -> EngineConfig:
        """Ask the server who this is, and what its limits are. Once: all else follows from it."""
        told = self._transport.ask("GET", "/api/v1/whoami", None, writes=False, patience_s=patience_s)
        if not isinstance(told, dict) or not isinstance(told.get("limits"), dict):
            raise StoreError(f"{self._transport.url} does not say what its limits are: is it a server of onetray's?")
        known = {f.name for f in fields(Limits)}
        limits = Limits(**{name: most for name, most in told["limits"].items() if name in known})
        self._namespace = str(told.get("namespace"))
        self.config = replace(self._given, limits=limits)
        return self.config

    def must_be_ours(self, namespace: str) -> None:
        """A token is for one namespace: to ask for another by its name is a mistake."""
        if namespace != ANY and namespace != self._namespace:
            self.introduce()
            if namespace != self._namespace:
                raise InvalidInput(
                    f"the token is for the namespace {self._namespace!r}, not for {namespace!r}: use another token",
                    field="namespace",
                )

    def close(self) -> None:
        self.wake.close()
        self._committer.close()

    # What is no command.

    def declare(self, policies: Mapping[str, Policy], *, namespace: str = ANY) -> None:
        self.must_be_ours(namespace)
        answer = self._transport.post("/api/v1/kinds", dumps({"policies": dict(policies)}))
        for kind, paths in answer.get("kept", {}).items():
            logger.warning("the server goes on redacting %s of %s: a token with operate can end it", paths, kind)

    def configure(self, kind: str, policy: Policy, *, namespace: str = ANY) -> None:
        self.declare({kind: policy}, namespace=namespace)

    def worker_beat(self, beat: WorkerBeat, *, namespace: str = ANY) -> None:
        self.must_be_ours(namespace)
        check_beat(beat, self.config.limits)
        self._transport.post("/api/v1/workers/beat", dumps(beat))

    def worker_leave(self, name: str, *, namespace: str = ANY) -> None:
        self.must_be_ours(namespace)
        self._transport.post("/api/v1/workers/leave", dumps({"name": name}))

    def veiled(self, value: T, of: str | Sequence[str] | None = None) -> T:
        """As it came: what others must not see, the server has hidden already."""
        return value

    def veiled_json(self, value: Any, of: str) -> Any:
        return value

    def janitor(
        self, every_s: float = 1.0, *, retention_s: float | None = None, namespace: str | None = None
    ) -> NoReturn:
        self._needs_the_database()

    def _submit_within(self, connection: object, commands: Sequence[Command]) -> list[Verdict]:
        raise InvalidInput(
            "a job cannot be submitted to a server inside your own transaction: leave out connection, or open the "
            "database itself",
            field="connection",
        )

    def _needs_the_database(self) -> NoReturn:
        raise StoreError(f"this needs the database itself, and {self._transport.url} is a server: do it there")


def _question(name: str, path: str, *, writes: bool) -> Callable[..., Any]:
    """A method that asks the server what the engine's own of this name would."""
    signature, gives = inspect.signature(getattr(Engine, name)), READS[name].gives if name in READS else None

    def ask(self: RemoteEngine, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        self.must_be_ours(given.get("namespace", ANY))
        actor = choice(given.get("actor", USER), "actor", ACTORS)
        body = dumps({field: given[field] for field in parameters(name) if field in given})
        value = decode(gives, self._transport.post(f"{path}/{name}", body, writes=writes)["value"])
        return value if actor == USER else replace(value, actor=actor)

    ask.__name__, ask.__doc__ = name, getattr(Engine, name).__doc__
    return ask


for _name in READS:
    setattr(RemoteEngine, _name, _question(_name, "/api/v1/reads", writes=False))
for _name in ACTS:
    setattr(RemoteEngine, _name, _question(_name, "/api/v1/acts", writes=True))

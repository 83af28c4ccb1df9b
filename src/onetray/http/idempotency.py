"""`Idempotency-Key`: a request that is sent again is answered again, and carried out once.

Owns which answers are kept, how they are given again, and that a key stays with its request while that runs. What is
kept is the engine's (engine/http_keys.py). A submit gives its key to the job instead, a claim to its lease: these
routes see to it themselves.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import orjson
from fastapi import Request, Response

from onetray.domain.errors import AnswerNotKept, InProgress, InvalidInput, OnetrayError, OutcomeUnknown, Unavailable
from onetray.domain.task import Verdict
from onetray.engine.http_keys import DIED_S, HeldKey
from onetray.http import problems
from onetray.http.auth.scopes import Principal, principal_of
from onetray.http.json_answers import Json
from onetray.http.limits.requests import SMALL_BODY_BYTES
from onetray.http.services import Services, services_of
from onetray.store.retry_transaction import MayBeRepeated

logger = logging.getLogger("onetray.http")

KEPT_PROBLEMS = (404, 409)
"""Refusals that are answers: the request was understood, and looked at. All others may be different next time."""
ANSWER_BYTES = 256_000
REPLAY = {"Idempotent-Replay": "true"}
RENEW_S = DIED_S / 4
"""How often other servers are told that a request is still under way."""

NOT_KEPT = "onetray.not_kept"
"""Set in the scope of a request whose answer is not kept, although it is 200."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def key_of(request: Request) -> str | None:
    """The key of a request, if it has one."""
    found = request.headers.getlist("idempotency-key")
    if not found:
        return None
    if len(found) > 1 or not found[0].isprintable() or not found[0].isascii() or not found[0].strip():
        raise InvalidInput("Idempotency-Key must be one word of printable ASCII", field="Idempotency-Key")
    return found[0]


def caller_of(who: Principal) -> str:
    """Whose key it is: two callers may use the same."""
    return f"{who.namespace}/{who.token or who.name}"[-500:]


def free_key_if_unavailable(request: Request, verdicts: Sequence[Verdict]) -> None:
    """Give the key back if a part was not carried out, or may not have been: to do all of it again harms nothing."""
    if any(isinstance(v.error, Unavailable) for v in verdicts):
        request.scope[NOT_KEPT] = True


def free_key_if_nothing_was_done(request: Request, verdicts: Sequence[Verdict]) -> None:
    """Give the key back if parts were not carried out, and surely no other was: it would be done a second time."""
    if not any(v.error is None or isinstance(v.error, OutcomeUnknown) for v in verdicts):
        free_key_if_unavailable(request, verdicts)


async def under_its_key(request: Request, route: str, go: Handler) -> Response:
    """Carry a request out, or give the answer again that it got before."""
    key, desk = key_of(request), services_of(request)
    assert key is not None
    body = await request.body()
    hashed = (
        await asyncio.to_thread(_hash, request.url.path, body)
        if len(body) > SMALL_BODY_BYTES
        else _hash(request.url.path, body)
    )
    caller = caller_of(principal_of(request))
    # Not left to the database: it may have been away for so long that nobody could be told of the first one.
    if (caller, key) in desk.keys_in_use:
        raise InProgress(idempotency_key=key, retry_after_s=1)
    begun = await desk.read(desk.engine.begin_request, caller, key, route=route, body_hash=hashed)
    if begun.status is not None:
        return _again(begun.status, begun.answer)
    async with Reservation(desk, begun) as held:
        return await _carry_out(held, request, go)


async def _carry_out(held: Reservation, request: Request, go: Handler) -> Response:
    try:
        response = await go(request)
    except OnetrayError as error:
        # Of unknown outcome: the key must not have it carried out a second time, unless that does no harm.
        unknown = isinstance(error, OutcomeUnknown) and not isinstance(error, MayBeRepeated)
        if error.status in KEPT_PROBLEMS or unknown:
            await held.keep(error.status, orjson.dumps(problems.of_error(error)))
        else:
            await held.drop()
        raise
    except Exception:
        await held.drop()
        raise
    if NOT_KEPT in request.scope:
        await held.drop()
    else:
        await held.keep(response.status_code, bytes(response.body))
    return response


class Reservation:
    """A key while its request is carried out: nobody else may have it, however long that takes."""

    def __init__(self, desk: Services, begun: HeldKey) -> None:
        self._desk, self._begun = desk, begun

    async def __aenter__(self) -> Reservation:
        self._desk.keys_in_use.add((self._begun.caller, self._begun.key))
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._renewing.cancel()
        self._desk.keys_in_use.discard((self._begun.caller, self._begun.key))

    async def _renew(self) -> None:
        engine = self._desk.engine
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                # The time first: if the answer to the renewal is lost, either of the two stands in the database.
                self._begun = self._begun.also_at(await self._desk.read(engine.now))
                renewed = await self._desk.read(engine.renew_request, self._begun)
            except OnetrayError as e:
                logger.warning("a key could not be renewed: %s", e)
                continue
            if renewed is None:
                logger.warning("a request was taken over by another server while it ran here")
                return
            self._begun = renewed

    async def keep(self, status: int, body: bytes) -> None:
        fits = len(body) <= ANSWER_BYTES
        try:
            await self._desk.read(self._desk.engine.answer_request, self._begun, status, body.decode() if fits else "")
        except OnetrayError as e:
            # It was carried out: whoever asked is to know that, even if nobody is told again.
            logger.warning("an answer could not be kept: %s", e)

    async def drop(self) -> None:
        try:
            await self._desk.read(self._desk.engine.drop_request, self._begun)
        except OnetrayError as e:
            logger.warning("a key could not be given back, it is free in a minute: %s", e)


def _again(status: int, answer: str) -> Response:
    if not answer:
        raise AnswerNotKept
    media_type = problems.MEDIA_TYPE if status >= 400 else Json.media_type
    return Response(answer, status, REPLAY, media_type)


def _hash(path: str, body: bytes) -> str:
    """The same for the same request. The keys in a body may have another order, unless it is a large one."""
    # To write a large one in order would hold the interpreter for seconds.
    if len(body) <= SMALL_BODY_BYTES:
        with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError):  # Refused in a moment, by whoever reads it.
            body = orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    hashed = hashlib.sha256(path.encode(errors="replace") + b"\0")
    hashed.update(body)
    return hashed.hexdigest()

"""`Idempotency-Key`: a repeated request runs once and gets the same response.

Owns which responses are stored, how they are replayed, and that a key is reserved while its request runs.
engine/http_keys.py stores them. Submits and claims do not pass through here: their routes give the key to the job or
the lease.
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
from onetray.http.request import header_values
from onetray.http.services import Services, services_of
from onetray.store.retry_transaction import MayBeRepeated

logger = logging.getLogger("onetray.http")

KEY_HEADER = b"idempotency-key"
KEPT_PROBLEMS = (404, 409)
"""Errors that are stored: they are decisions about a valid request. Other errors may not occur again."""
ANSWER_BYTES = 256_000
REPLAY = {"Idempotent-Replay": "true"}
RENEW_S = DIED_S / 4
"""How often the reservation is renewed, so that other servers know that the request still runs."""

NOT_KEPT = "onetray.not_kept"
"""Key in a request's scope: its response is not stored, although the status is 200."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def key_of(request: Request) -> str | None:
    """The request's Idempotency-Key, if it has one."""
    found = header_values(request.scope).get(KEY_HEADER)
    if found is None:
        return None
    values = [value.decode("latin-1") for value in found]
    if len(values) > 1 or not values[0].isprintable() or not values[0].isascii() or not values[0].strip():
        raise InvalidInput("send one Idempotency-Key, in printable ASCII characters", field="Idempotency-Key")
    return values[0]


def caller_of(principal: Principal) -> str:
    """The owner of a key: two callers may use the same one."""
    return f"{principal.namespace}/{principal.token or principal.name}"[-500:]


def free_key_if_unavailable(request: Request, verdicts: Sequence[Verdict]) -> None:
    """Free the key if any command did not run, or may not have: repeating all of them is harmless."""
    if any(isinstance(v.error, Unavailable) for v in verdicts):
        request.scope[NOT_KEPT] = True


def free_key_if_nothing_was_done(request: Request, verdicts: Sequence[Verdict]) -> None:
    """Free the key if commands did not run, and none of the others can have: it would run a second time."""
    if not any(v.error is None or isinstance(v.error, OutcomeUnknown) for v in verdicts):
        free_key_if_unavailable(request, verdicts)


async def run_with_key(request: Request, route: str, handler: Handler) -> Response:
    """Run a request, or replay the stored response."""
    key, services = key_of(request), services_of(request)
    assert key is not None
    body = await request.body()
    path, is_large = request.url.path, len(body) > SMALL_BODY_BYTES
    body_hash = await asyncio.to_thread(_hash, path, body) if is_large else _hash(path, body)
    caller = caller_of(principal_of(request))
    # Not left to the database, which may have been unavailable since the first request began.
    if (caller, key) in services.keys_in_use:
        raise InProgress(idempotency_key=key, retry_after_s=1)
    held_key = await services.read(services.unredacted.http_keys.begin, caller, key, route=route, body_hash=body_hash)
    if held_key.status is not None:
        return _replay(held_key.status, held_key.answer)
    async with Reservation(services, held_key) as reservation:
        return await _carry_out(reservation, request, handler)


async def _carry_out(reservation: Reservation, request: Request, handler: Handler) -> Response:
    try:
        response = await handler(request)
    except OnetrayError as error:
        # Unknown outcome: keep the key, so that the request cannot run twice, unless repeating it is harmless.
        unknown = isinstance(error, OutcomeUnknown) and not isinstance(error, MayBeRepeated)
        if error.status in KEPT_PROBLEMS or unknown:
            await reservation.keep(error.status, orjson.dumps(problems.of_error(error)))
        else:
            await reservation.drop()
        raise
    except Exception:
        await reservation.drop()
        raise
    if NOT_KEPT in request.scope:
        await reservation.drop()
    else:
        await reservation.keep(response.status_code, bytes(response.body))
    return response


class Reservation:
    """Holds a key while its request runs, however long that takes."""

    def __init__(self, services: Services, held_key: HeldKey) -> None:
        self._services, self._held_key = services, held_key

    async def __aenter__(self) -> Reservation:
        self._services.keys_in_use.add((self._held_key.caller, self._held_key.key))
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._renewing.cancel()
        self._services.keys_in_use.discard((self._held_key.caller, self._held_key.key))

    async def _renew(self) -> None:
        engine = self._services.unredacted
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                # The time first: if the response to the renewal is lost, the database has one of these two times.
                self._held_key = self._held_key.also_at(await self._services.read(engine.now))
                renewed = await self._services.read(engine.http_keys.renew, self._held_key)
            except OnetrayError as e:
                logger.warning("the reservation of an Idempotency-Key could not be renewed: %s", e)
                continue
            if renewed is None:
                logger.warning("another server took over a request while it ran here")
                return
            self._held_key = renewed

    async def keep(self, status: int, body: bytes) -> None:
        # A renewal at the same time would change the time that the response is stored under.
        self._renewing.cancel()
        text = body.decode() if len(body) <= ANSWER_BYTES else ""
        try:
            await self._services.read(self._services.unredacted.http_keys.answer, self._held_key, status, text)
        except OnetrayError as e:
            # The request has taken effect, so its caller gets the response even though it cannot be replayed.
            logger.warning("a response could not be stored: %s", e)

    async def drop(self) -> None:
        self._renewing.cancel()
        try:
            await self._services.read(self._services.unredacted.http_keys.drop, self._held_key)
        except OnetrayError as e:
            logger.warning("an Idempotency-Key could not be freed and expires within a minute: %s", e)


def _replay(status: int, answer: str) -> Response:
    if not answer:
        raise AnswerNotKept
    media_type = problems.MEDIA_TYPE if status >= 400 else Json.media_type
    return Response(answer, status, REPLAY, media_type)


def _hash(path: str, body: bytes) -> str:
    """The same for equal requests. The order of keys in the body does not matter, unless the body is large."""
    # Sorting the keys of a large body would block the interpreter for seconds.
    if len(body) <= SMALL_BODY_BYTES:
        with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError):  # The route rejects it.
            body = orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    hashed = hashlib.sha256(path.encode(errors="replace") + b"\0")
    hashed.update(body)
    return hashed.hexdigest()


def submit_key(body: Any, key: str | None) -> dict[str, Any]:
    """The field of a submit that the header sets."""
    if key is None or body.idempotency_key == key:
        return {}
    if body.idempotency_key is not None:
        raise InvalidInput("Idempotency-Key and idempotency_key differ: send only one", field="idempotency_key")
    return {"idempotency_key": key}

"""`Idempotency-Key`: a request that is sent again is answered again, and carried out once.

Owns which answers are kept, and how they are given again. What is kept is the engine's (engine/requests.py). A submit
gives its key to the job instead, a claim to its lease: these routes see to it themselves.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import orjson
from fastapi import Request, Response

from onetray.engine.requests import Begun
from onetray.errors import AnswerNotKept, InvalidInput, OnetrayError
from onetray.http import problems
from onetray.http.access import Principal, principal_of
from onetray.http.desk import Desk, desk_of
from onetray.http.wire import Json

logger = logging.getLogger("onetray.http")

KEPT_PROBLEMS = (404, 409)
"""Refusals that are answers: the request was understood, and looked at. All others may be different next time."""
ANSWER_BYTES = 256_000
REPLAY = {"Idempotent-Replay": "true"}

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


async def under_its_key(request: Request, route: str, go: Handler) -> Response:
    """Carry a request out, or give the answer again that it got before."""
    key, desk = key_of(request), desk_of(request)
    assert key is not None
    hashed = _hash(request.url.path, await request.body())
    caller = caller_of(principal_of(request))
    begun = await desk.read(desk.engine.begin_request, caller, key, route=route, body_hash=hashed)
    if begun.status is not None:
        return _again(begun.status, begun.answer)
    try:
        response = await go(request)
    except OnetrayError as error:
        if error.status in KEPT_PROBLEMS:
            await _keep(desk, begun, error.status, orjson.dumps(problems.of_error(error)))
        else:
            await _drop(desk, begun)
        raise
    except Exception:
        await _drop(desk, begun)
        raise
    await _keep(desk, begun, response.status_code, bytes(response.body))
    return response


async def _keep(desk: Desk, begun: Begun, status: int, body: bytes) -> None:
    fits = len(body) <= ANSWER_BYTES
    try:
        await desk.read(desk.engine.answer_request, begun, status, body.decode() if fits else "")
    except OnetrayError as e:
        # It was carried out: whoever asked is to know that, even if nobody is told again.
        logger.warning("an answer could not be kept: %s", e)


async def _drop(desk: Desk, begun: Begun) -> None:
    try:
        await desk.read(desk.engine.drop_request, begun)
    except OnetrayError as e:
        logger.warning("a key could not be given back, it is free in a minute: %s", e)


def _again(status: int, answer: str) -> Response:
    if not answer:
        raise AnswerNotKept
    media_type = problems.MEDIA_TYPE if status >= 400 else Json.media_type
    return Response(answer, status, REPLAY, media_type)


def _hash(path: str, body: bytes) -> str:
    """The same for the same request, whatever the order of the keys in its body."""
    with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError):  # Refused in a moment, by whoever reads it.
        body = orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(path.encode(errors="replace") + b"\0" + body).hexdigest()

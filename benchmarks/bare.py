"""A bare server: parses what it is sent, and answers what it was told to. What a server costs without an engine."""

from __future__ import annotations

import json
import sys

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onetray.http.server import listen, url_of

IDLE_S = 600


def _route(path: str, answer: str) -> Route:
    told = orjson.loads(answer)

    async def post(request: Request) -> Response:
        orjson.loads(await request.body())
        return Response(orjson.dumps(told), media_type="application/json")

    return Route(path, post, methods=["POST"])


def main(answers: dict[str, str]) -> None:
    """Serve until SIGTERM, on a port that is said in the first line."""
    listening = listen("127.0.0.1", 0)
    app = Starlette(routes=[_route(path, answer) for path, answer in answers.items()])
    print(f"listens on {url_of(listening)};", flush=True)
    # Its connections are idle while the other sides have their turns.
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=IDLE_S)
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main(json.load(sys.stdin))

"""`onetray mcp`: the tools for agents, over stdio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from onetray.cli import BadInput
from onetray.cli.options import acting_user, database_option, namespace_option, opened_database
from onetray.cli.target import SERVER, name_database, settings
from onetray.config import TOOL_SETS

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi


@click.command(short_help="Serve the tools for agents over stdio (MCP).")
@database_option
@namespace_option
@click.option(
    "--tools", type=click.Choice([*TOOL_SETS, "both"]), default="both", show_default=True, help="The tools to offer."
)
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing.")
@click.option("--no-janitor", is_flag=True, help="Leave expired leases and due tasks to other processes.")
def mcp(database: str, namespace: str, tools: str, read_only: bool, no_janitor: bool) -> None:
    """Serve the tools for agents over stdio, until the client closes stdin. MCP clients start this command themselves.

    The database may be a server: then the token comes from ONETRAY_TOKEN. A SQLite file that does not exist is created.
    A server offers the same tools at /mcp: see `onetray serve`.
    """
    try:
        from onetray.mcp.transports import serve_stdio
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("onetray"):
            raise
        raise BadInput(f"{e.name} is missing: install it with `pip install 'onetray[mcp]'`") from e
    from onetray.domain.token import READ, SCOPES
    from onetray.http.auth.scopes import Principal
    from onetray.log_format import set_up
    from onetray.mcp.registry import load_tools

    set_up("warning", "text")
    principal = Principal(acting_user()["actor_name"], namespace, frozenset({READ} if read_only else SCOPES))
    with _engine(database, no_janitor or read_only) as engine:
        serve_stdio(engine, load_tools(tools), principal)


@contextmanager
def _engine(database: str, no_janitor: bool) -> Iterator[EngineApi]:
    if database.startswith(SERVER):
        from onetray.remote.engine import RemoteEngine

        name_database(database)
        with RemoteEngine(database, config=settings().engine) as remote:
            remote.introduce(patience_s=0.0)
            yield remote
        return
    with opened_database(database, create=True) as engine:
        if not no_janitor:
            engine.janitor().start()
        yield engine

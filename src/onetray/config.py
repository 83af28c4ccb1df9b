"""Settings and their defaults: one frozen dataclass for each part."""

from __future__ import annotations

import re
from dataclasses import dataclass

LEAST_RETENTION_S = 1.0
"""The shortest retention: callers that wait for a job need time to read its outcome."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum sizes of one command or batch. A larger one raises TooLarge, and nothing is written."""

    name_chars: int = 200
    key_chars: int = 500
    reason_chars: int = 2_000
    error_chars: int = 20_000
    line_chars: int = 20_000
    payload_bytes: int = 1_000_000
    result_bytes: int = 1_000_000
    batch: int = 10_000
    labels: int = 20
    stages: int = 1_000
    """Stages in the submit of a flow. More can be added later."""
    flow_bytes: int = 50_000_000
    """All payloads of one command together."""
    collected: int = 1_000
    """The largest stage whose task results are collected into its own result. Larger ones are read in pages."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine. The defaults suit one process on either database."""

    limits: Limits = Limits()
    chunk: int = 500
    """Most commands in one transaction. Larger batches were slower on both databases."""
    bulk: int = 1_000
    """Most tasks of a `submit_many` in one transaction."""
    committers: int | None = None
    """Threads that write. Default: one on SQLite, which allows one writer, three on PostgreSQL."""
    names_ttl_s: float = 1.0
    """How long a kind's policy is cached: a submit may use one that is this old."""
    call_timeout_s: float = 60.0
    """How long a call waits for an unavailable database before it raises Unavailable."""
    note_types: tuple[str, ...] = ("task.heartbeat",)
    """Events without a transition that the janitor deletes after `note_ttl_s`. All others stay as long as their job."""
    note_ttl_s: float = 86_400.0
    clock_skew_s: float = 5.0
    """SQLite: how far the clock may be behind the newest time in the database before a warning is logged."""
    pooler: bool = False
    """PostgreSQL behind pgbouncer in transaction mode: no prepared statements, no LISTEN."""


@dataclass(frozen=True, slots=True)
class WorkerTuning:
    """How a worker's claims and reports travel. docs/worker.md has the measured gain of each strategy."""

    prefetch_s: float = 0.2
    """Prefetch: how much work to claim ahead, in seconds of the recent rate."""
    max_prefetch: int = 4_000
    max_prefetch_age_s: float = 1.0
    """A prefetched task that has waited for this long is released: tasks have become slower, and others may be idle."""
    max_unreported: int = 10_000
    """While more finished tasks than this wait to be reported, no more are claimed: it bounds the memory."""
    max_claim: int = 1_000
    """Most tasks of one claim."""
    piggyback: bool = True
    """Run the next claim in the transaction of a report, or of a submit of the same process."""
    piggyback_wait_s: float = 0.02
    """How long to wait for reports that carry the next claim."""
    merge_starts_s: float = 0.05
    """A start is recorded with the outcome, unless the handler still runs after this time."""
    output_delay_s: float = 0.1
    """How long log lines and progress are buffered at most."""
    report_batch: int = 500
    """Most reports of one transaction: `EngineConfig.chunk`. A piggyback claim comes on top. Two of these are a full
    claim: with one less, the last two tasks of a stage of 1,000 would be reported by themselves."""
    busy_batch: int = 50
    """Gather: after a batch of this size, wait for `gather_s` unless another full batch waits already."""
    gather_s: float = 0.005
    backlog: int = 1_000
    """Successes that wait: two full batches. Only then do `helpers` send, too: the transactions of several workers on
    one machine delay each other."""
    helpers: int = 2
    """Threads that send plain successes of a backlog, beside the main one."""
    stuck_s: float = 1.0
    """They also send if a batch takes longer than this: one report that waits for a lock must not delay all others, and
    with them the next claims."""


BUILT_IN_DIALECTS = ("so1", "jobnik", "pipeline")
"""The dialects that onetray contains, each at onetray.dialects.<name>."""
TOOL_SETS = {"native": "onetray.mcp.native", "parallel-mcp": "onetray.mcp.parallel"}
"""The module of each set of MCP tools, which has a value `TOOL_SET`."""


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Settings of the HTTP server."""

    host: str = "127.0.0.1"
    port: int = 8321
    """0: any free port. The server prints it at the start."""
    dialects: tuple[str, ...] = BUILT_IN_DIALECTS
    """Dialects to serve besides the native API, by name: those of onetray, or of installed packages. "none": none."""
    jobnik_lease_s: float = 1_800.0
    """How long a Jobnik worker may take for a task: it sends no heartbeats. After that the attempt has failed."""
    jobnik_pages: bool = False
    """Whether Jobnik's lists are pages `{total, items}` even if the request names no page."""
    mcp_tools: str = "both"
    """The tools that agents find at /mcp: one of the sets, both, or none."""
    grace_s: float = 10.0
    """How long open requests may continue after a request to stop."""
    threads: int = 16
    """Threads that query the database for requests. Commands need few: concurrent ones share a transaction."""
    log_format: str = "auto"
    """json, text, or auto: text on a terminal, JSON elsewhere."""
    allowed_hosts: tuple[str, ...] = ()
    """Accepted Host headers of a server with tokens. Empty: any."""
    allowed_origins: tuple[str, ...] = ()
    """Accepted Origin headers of a server with tokens, such as https://jobs.example.org. Empty: none."""
    token_cache_s: float = 3.0
    """How long a valid token is cached. A revoked token may work for this long."""
    connections: int = 0
    """Most open connections. 0: as many as the limit of open files allows, up to 4,096."""
    head_s: float = 10.0
    """How long the request line and headers may take to arrive."""
    idle_s: float = 75.0
    """Keep-alive timeout: longer than that of client pools and load balancers, so that they close first."""
    unsent_bytes: int = 100_000_000
    """Most bytes of unread responses in all. Beyond it, the clients that have not read for longest are disconnected."""
    body_bytes: int = 10_000_000
    bodies_bytes: int = 100_000_000
    """Most bytes of request bodies in memory, over all requests. Beyond it, incomplete requests are rejected."""
    body_s: float = 30.0
    """How long a request body may take to arrive."""
    json_depth: int = 64
    requests_per_s: float = 0.0
    """Rate limit of one token, in requests per second. 0: no limit."""
    streams: int = 1_000
    """Most open streams of the server; also at most three quarters of its connections."""
    streams_each: int = 600
    """Most open streams of one token."""
    stream_queue: int = 5_000
    """Most events queued for a slow stream. Beyond it, the stream gets the cursor to resume from and is closed."""
    heartbeat_s: float = 15.0
    """How often an idle stream sends a comment to keep the connection open."""
    stall_s: float = 30.0
    """How long a client may take to read its response, or 64 KiB of a large one, before it is disconnected."""


def plain_url(url: str) -> str:
    """A database's URL without the driver that SQLAlchemy's have: postgresql+psycopg://… as postgresql://…"""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}" if separator and scheme.startswith("postgres") else url


_IN_AUTHORITY = re.compile(r"^(\w[\w+.-]*://[^:@/?]*):[^?]*@")
_IN_OPTIONS = re.compile(r"([?&])((?:ssl)?password=)[^&]*")


def hide_password(url: str, mark: str = "***") -> str:
    """A database's URL for messages and logs. Without a mark it has no password, and can be passed on."""
    if url.startswith("sqlite:"):
        return url
    if mark:
        return _IN_OPTIONS.sub(rf"\1\2{mark}", _IN_AUTHORITY.sub(rf"\1:{mark}@", url))
    bare = _IN_OPTIONS.sub(r"\1", _IN_AUTHORITY.sub(r"\1@", url))
    return re.sub(r"\?&*$", "", re.sub(r"([?&])&+", r"\1", bare).rstrip("&"))

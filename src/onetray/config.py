"""The settings: one frozen dataclass for each concern. Defaults stand here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RETENTION_S = 1.0
"""Whoever waits for a job must have the time to see how it ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command or batch may be. Past a limit the answer is TooLarge and nothing is written."""

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
    """Stages that one flow is submitted with. More can be added."""
    flow_bytes: int = 50_000_000
    """The payloads of all tasks that one command brings."""
    collected: int = 1_000
    """Tasks of a stage whose results are collected into its own. Those of a larger one are read in pages."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine works. The defaults suit one process on either database."""

    limits: Limits = Limits()
    chunk: int = 500
    """Commands in one transaction at most: larger batches were measured slower on both databases."""
    bulk: int = 1_000
    """Tasks of one `submit_many` in one transaction at most."""
    committers: int | None = None
    """Threads that write: one on SQLite (it has one writer), three on PostgreSQL."""
    names_ttl_s: float = 1.0
    """How old a kind's policy may be when a task is submitted under it."""
    call_timeout_s: float = 60.0
    """How long a call waits for the database to come back before it says Unavailable."""
    clock_skew_s: float = 5.0
    """SQLite: how far the clock may be behind the newest time in the database before the log says so."""
    pooler: bool = False
    """PostgreSQL behind pgbouncer in transaction mode: no prepared statements, no LISTEN."""


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """How a server works."""

    host: str = "127.0.0.1"
    port: int = 8321
    """0 takes any that is free; the line that is printed at the start says which."""
    dialects: tuple[str, ...] = ("so1",)
    """Other systems whose routes are served, too. "none" alone: only the native API."""
    grace_s: float = 10.0
    """How long requests that are under way may go on once a stop was asked for."""
    threads: int = 16
    """Threads that ask the database for requests. Commands need few: those that come together share one."""
    log_format: str = "auto"
    """json, text, or auto: text on a terminal, JSON elsewhere."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that a server with tokens may be called by. None: by any."""
    allowed_origins: tuple[str, ...] = ()
    """Pages of browsers that may call a server with tokens: https://jobs.example.org. None: none may."""
    token_cache_s: float = 3.0
    """How long a token that was found good counts as good. So long may a revoked one live on."""
    connections: int = 0
    """Connections at once. 0: as many as the limit of open files leaves room for, 4,096 at most."""
    head_s: float = 10.0
    """How long the line and the headers of a request may take to come."""
    idle_s: float = 75.0
    """How long a connection may be silent: longer than pools and balancers keep theirs, so that they close it."""
    unsent_bytes: int = 100_000_000
    """Bytes of answers that clients do not read. Past that, those who have not read for longest are cut off."""
    body_bytes: int = 10_000_000
    bodies_bytes: int = 100_000_000
    """Bytes of the bodies of all requests that are under way. Past that, those that are not whole give way."""
    body_s: float = 30.0
    """How long the body of a request may take to come."""
    json_depth: int = 64
    requests_per_s: float = 0.0
    """Requests of one token in a second. 0: any number."""
    streams: int = 1_000
    """Open streams on this server, and at most three quarters of its connections."""
    streams_each: int = 600
    """Open streams of one token."""
    stream_queue: int = 5_000
    """Events that wait at most for a stream that is slow: past that it is told where to go on from, and closed."""
    heartbeat_s: float = 15.0
    """How often a stream that has nothing to tell says that it is there."""
    stall_s: float = 30.0
    """How long a client may leave its answer unread before its connection is cut off: 64 KiB of a large one."""

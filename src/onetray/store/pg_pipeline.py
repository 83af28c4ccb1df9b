"""Send statements to PostgreSQL in one round trip, prepared, by libpq itself.

Owns what a statement costs this process: psycopg's cursors cost more than the rest of a short transaction
(ADR 11). psycopg still opens the connections, reads the rows and makes the errors.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from select import POLLIN, POLLOUT, poll
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

if TYPE_CHECKING:
    from psycopg import Connection

    from onetray.store.base import Columns, Rows
    from onetray.store.sql_template import Statement

Query = tuple[str, dict[str, Any]]
MAX_PREPARED = 300
"""Statements that a connection keeps prepared. Most processes use fewer."""
OIDS = {int: 20, bool: 16, float: 701}
"""The types of parameters: numbers are bigint. The server infers all others."""
AWAY = ("57P01", "57P02", "57P03", "25006")
"""The server shuts down, starts, or has become a read-only standby."""
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")
_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})
_TUPLES, _DONE, _SYNC = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.PIPELINE_SYNC


class PreparedNames(OrderedDict[tuple[str, tuple[int, ...]], bytes]):
    """The statements that one connection has prepared, by text and types. The one that was used last is the last."""

    last = 0

    def add(self, key: tuple[str, tuple[int, ...]]) -> bytes:
        self.last += 1
        name = self[key] = b"onetray%d" % self.last
        return name


class Text(NamedTuple):
    """A statement with numbered parameters, and their names."""

    sql: bytes
    names: tuple[str, ...]


def bind_postgres(statement: Statement, params: Columns) -> dict[str, Any]:
    """Format lists of numbers as PostgreSQL arrays: psycopg takes ten times as long for that."""
    arrays = {name: _array(params[name]) for name in statement.numbers}
    return {**params, **arrays}


def _array(numbers: Iterable[int | None]) -> str:
    # orjson writes numbers ten times as fast as str does.
    return "{" + orjson.dumps([*numbers])[1:-1].decode().replace("null", "NULL") + "}"


@lru_cache(maxsize=2048)
def numbered(sql: str) -> Text:
    """A statement with psycopg's placeholders, `%(name)s`, as PostgreSQL has them."""
    places: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        return "%" if match[1] is None else f"${places.setdefault(match[1], len(places) + 1)}"

    return Text(_PLACEHOLDER.sub(place, sql).encode(), tuple(places))


def run_queries(connection: Connection[Any], queries: Sequence[Query]) -> list[Rows]:
    """Run statements in one round trip. Returns the rows of each. Raises the first error; those after it did not run.

    Without BEGIN, all of them are one transaction.
    """
    run = _Run(connection)
    try:
        run.send(queries)
        rows = run.receive()
    except BaseException as e:
        if not isinstance(e, psycopg.Error | TypeError | ValueError) or run.is_open:
            # What is under way would be the answer to the next statement.
            connection.close()
        raise
    return rows


class _Run:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection, self._pgconn = connection, connection.pgconn
        self._prepared: PreparedNames | None = getattr(connection, "prepared_names", None)
        self._sent: list[tuple[str, tuple[int, ...]] | None] = []
        """For each command: the statement that it prepares, or None for one that runs."""
        self._ignored: set[int] = set()
        self.is_open = False

    def send(self, queries: Sequence[Query]) -> None:
        todo = []
        for sql, params in queries:
            text = numbered(sql)
            values = [params[name] for name in text.names]
            # Before anything is sent: a value may be refused.
            todo.append((sql, text, tuple(OIDS.get(type(v), 0) for v in values), [_dumped(v) for v in values]))
        self._pgconn.enter_pipeline_mode()
        self.is_open = True
        for sql, text, oids, dumped in todo:
            self._send_one(sql, text, oids, dumped)
        self._pgconn.pipeline_sync()
        while self._pgconn.flush():
            if self._wait(POLLIN | POLLOUT) & POLLIN:
                self._pgconn.consume_input()

    def _send_one(self, sql: str, text: Text, oids: tuple[int, ...], values: list[bytes | None]) -> None:
        if self._prepared is None:
            self._pgconn.send_query_params(text.sql, values, oids)
        else:
            self._pgconn.send_query_prepared(self._name(sql, text, oids), values)
        self._sent.append(None)

    def _name(self, sql: str, text: Text, oids: tuple[int, ...]) -> bytes:
        """The name of a prepared statement. Prepares it first if this connection has not."""
        assert self._prepared is not None
        key = sql, oids
        name = self._prepared.get(key)
        if name is not None:
            self._prepared.move_to_end(key)
            return name
        if len(self._prepared) >= MAX_PREPARED:
            _, oldest = self._prepared.popitem(last=False)
            self._pgconn.send_query_params(b"DEALLOCATE " + oldest, None)
            self._ignored.add(len(self._sent))
            self._sent.append(None)
        name = self._prepared.add(key)
        self._pgconn.send_prepare(name, text.sql, oids)
        self._sent.append(key)
        return name

    def receive(self) -> list[Rows]:
        transformer, rows = Transformer(self._connection), []
        error: psycopg.Error | None = None
        done = 0
        while True:
            result = self._next()
            if result is None:
                continue
            if result.status == _SYNC:
                break
            # The end of its command, which has one result. `_next` would release the GIL first, and a busy event loop
            # is slow to give it back.
            self._pgconn.get_result()
            if result.status not in (_TUPLES, _DONE):
                error = error or self._error(result)
                if done < len(self._sent) and (key := self._sent[done]) is not None:
                    assert self._prepared is not None
                    self._prepared.pop(key, None)
            elif self._sent[done] is None and done not in self._ignored:
                transformer.set_pgresult(result)
                rows.append(transformer.load_rows(0, result.ntuples, tuple) if result.status == _TUPLES else [])
            done += 1
        self._pgconn.exit_pipeline_mode()
        self.is_open = False
        if error is not None:
            raise error
        return rows

    def _next(self) -> Any:
        """The next result; None at the end of each command's."""
        while self._pgconn.is_busy():
            self._wait(POLLIN)
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is None and self._pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError("the connection is lost")
        return result

    def _error(self, result: Any) -> psycopg.Error | None:
        if result.status == pq.ExecStatus.PIPELINE_ABORTED:
            return None
        return error_from_result(result, self._connection.info.encoding)

    def _wait(self, events: int) -> int:
        ready = poll()
        ready.register(self._pgconn.socket, events)
        return sum({event for _, event in ready.poll()})


def is_refused(e: psycopg.Error) -> bool:
    """Whether the server rejected a statement, and so everything sent after it, including a COMMIT.

    False if the connection is gone. A pooler reports that in the server's name, as a connection exception (08).
    """
    fatal = e.diag.severity_nonlocalized in ("FATAL", "PANIC")
    return e.sqlstate is not None and not fatal and e.sqlstate not in AWAY and not e.sqlstate.startswith("08")


def _dumped(value: Any) -> bytes | None:
    """A parameter as PostgreSQL's text."""
    if value is None:
        return None
    if isinstance(value, str):
        if "\0" in value:
            raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00)")
        return value.encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, float):
        return repr(value).encode()
    if isinstance(value, list | tuple):
        return b"{%s}" % b",".join(map(_element, value))
    raise TypeError(f"a parameter of type {type(value).__name__}")


def _element(value: Any) -> bytes:
    """An element of an array."""
    if isinstance(value, str):
        return b'"%s"' % (_dumped(value.translate(_ESCAPED)) or b"")
    return _dumped(value) or b"NULL"

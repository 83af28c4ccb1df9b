"""A log in which each event has a row of its own, so that a test can damage one of them by plain SQL."""

from __future__ import annotations

from onetray.domain.clock import VirtualClock
from onetray.store import open_store
from onetray.store.base import Tx
from onetray.store.event_log import decode_batch, encode_batch
from onetray.store.event_rows import EventBatch

_ALL = f"SELECT {', '.join(EventBatch._fields)} FROM onetray.event_batch ORDER BY id"


def split_batches(url: str) -> None:
    """Split every row of the log into rows with one event."""
    store = open_store(url, VirtualClock())
    try:
        store.write(_split)
    finally:
        store.close()


def _split(tx: Tx) -> None:
    rows = [EventBatch._make(row) for row in tx.fetch(_ALL, {})]
    tx.fetch("DELETE FROM onetray.event_batch", {})
    tx.fetch("DELETE FROM onetray.flow_event", {})
    flows = {key for (key,) in tx.fetch("SELECT key FROM onetray.flow", {})}
    for event in (event for row in rows for event in decode_batch(row)):
        columns = {**event._asdict(), "entity": [event.entity], "job": [event.job]}
        tx.write_batch(event.id, encode_batch(columns), [event.job] if event.job in flows else [])

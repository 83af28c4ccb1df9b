"""Celery on Redis: one process without a pool, which is fastest for jobs that do nothing; no results, no events."""

from __future__ import annotations

import sys

from celery import Celery
from redis import Redis

from benchmarks.sides import HANDLER_S, Submitter, handle_here, leave_with_the_input

role, url = sys.argv[1:]
POOL = ["--pool=threads", "--concurrency=50"] if HANDLER_S else ["--pool=solo"]
app = Celery("bench", broker=url)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(number: int) -> None:
    handle_here(number)


def left() -> int:
    return int(redis.llen("celery")) + int(redis.hlen("unacked"))


if role == "submit":
    redis = Redis.from_url(url)
    # It has no call for many.
    Submitter(noop.delay, None, left).listen()
elif role == "work":
    leave_with_the_input()
    app.worker_main(
        ["worker", *POOL, "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    )

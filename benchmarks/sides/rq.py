"""RQ, with its worker that does not fork for each job."""

from __future__ import annotations

import logging
import sys

from redis import Redis
from rq import Queue, SimpleWorker
from rq.registry import StartedJobRegistry

from benchmarks.sides import Submitter, handle_here, leave_with_the_input

NOOP = f"{handle_here.__module__}.{handle_here.__name__}"


def main(role: str, url: str) -> None:
    connection = Redis.from_url(url)
    queue = Queue("default", connection=connection)
    if role == "submit":
        running = StartedJobRegistry(queue=queue)
        Submitter(
            lambda number: queue.enqueue(NOOP, number),
            lambda numbers: queue.enqueue_many([Queue.prepare_data(NOOP, (number,)) for number in numbers]),
            lambda: queue.count + running.count,
        ).listen()
    elif role == "work":
        logging.disable(logging.CRITICAL)
        leave_with_the_input()
        SimpleWorker([queue], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    main(*sys.argv[1:])

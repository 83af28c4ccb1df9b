"""A program that runs a worker by itself, without `onetray worker`: `python -m tests.support.embedded URL HOW`.

HOW says where it runs and what the program does about signals: plain, own-handler or thread.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any

from onetray.worker import Worker
from tests.support import workload


def main(url: str, how: str) -> None:
    logging.basicConfig(level=logging.INFO)
    # A shell has its background jobs ignore it, and with them the tests that run there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    workload.app.database = url
    worker = workload.app.worker(drain_s=600)
    if how == "own-handler":
        signal.signal(signal.SIGTERM, stopping(worker))
    before = dispositions()
    if how == "thread":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        running = threading.Thread(target=worker.run)
        running.start()
        signal.sigwait({signal.SIGUSR1})
        unchanged = dispositions() == before
        worker.ask_to_stop()
        running.join()
        print("unchanged" if unchanged else "changed", flush=True)
    else:
        worker.run()
    print("restored" if dispositions() == before else f"not restored: {dispositions()}", flush=True)


def stopping(worker: Worker) -> Any:
    def handle(number: int, frame: FrameType | None) -> None:
        print("the program's own handler", flush=True)
        worker.ask_to_stop()

    return handle


def dispositions() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]


if __name__ == "__main__":
    main(*sys.argv[1:])

"""DBOS on PostgreSQL: workflows without steps, 500 at once, looking for work every 50 ms."""

from __future__ import annotations

import signal
import sys
import threading

import sqlalchemy
from dbos import DBOS, DBOSClient

from benchmarks.sides import HANDLER_S, Submitter, at_once, began, handle, leave_with_the_input

role, url = sys.argv[1:]
ADDRESS = url.replace("postgresql://", "postgresql+psycopg://")
JOB = {"workflow_name": "noop", "queue_name": "bench", "app_version": "1"}
LEFT = sqlalchemy.text("SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')")


def launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": ADDRESS,
            "application_version": "1",
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    DBOS.workflow(name="noop")(handle if HANDLER_S else began)
    DBOS.launch()


def set_up() -> None:
    launch()
    DBOS.register_queue(
        "bench", worker_concurrency=at_once(500), polling_interval_sec=0.05, on_conflict="always_update"
    )
    DBOS.destroy()


def submit() -> None:
    client, engine = DBOSClient(system_database_url=ADDRESS), sqlalchemy.create_engine(ADDRESS)

    def many(numbers: range) -> None:
        with engine.begin() as connection:
            for number in numbers:
                client.enqueue_in_transaction(connection, JOB, number)

    def left() -> int:
        with engine.begin() as connection:
            return int(connection.execute(LEFT).scalar_one())

    Submitter(lambda number: client.enqueue(JOB, number), many, left).listen()
    client.destroy()


def work() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    launch()
    leave_with_the_input()
    stop.wait()
    DBOS.destroy()


{"set_up": set_up, "submit": submit, "work": work}[role]()

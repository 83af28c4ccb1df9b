"""Fill a database with the jobs of a small shop over the last hours: flows, failures, approvals, progress, logs.

    ./go python tools/demo_shop.py sqlite:////tmp/shop.db

For pictures of the dashboard, and to try it with something to see. Owns the story; time passes on a virtual clock that
ends now, and chance has a fixed seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from onetray.domain.clock import SECOND, SystemClock, VirtualClock
from onetray.domain.commands import Submit
from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.engine.statistics import StatisticsCounter
from onetray.store import open_store, sqlite

HOURS = 6
LEASE_S = 6 * 3600.0
QUEUES = ("default", "mail", "media", "payments")
WORKERS = {"web-1.shop": ("default", "mail"), "web-2.shop": ("default", "payments"), "gpu-1.shop": ("media",)}
KINDS = {
    "mail.order_confirmation": ("mail", 8, Policy(max_attempts=5)),
    "mail.newsletter": ("mail", 3, Policy(max_attempts=3)),
    "images.resize": ("media", 5, Policy(max_attempts=3)),
    "payments.capture": ("payments", 3, Policy(max_attempts=3, lease_s=120, concurrency=(Concurrency(5),))),
    "stock.sync": ("default", 2, Policy(max_attempts=3)),
    "reports.daily_sales": ("default", 1, Policy(max_attempts=2, timeout_s=600)),
}
"""Each with its queue, how many there are in a busy minute, and its policy."""
FAULTS = {
    "mail.order_confirmation": ("SMTPServerDisconnected", "the mail server closed the connection"),
    "mail.newsletter": ("SMTPRecipientsRefused", "550 5.1.1 no such user: jo@example.com"),
    "images.resize": ("UnidentifiedImageError", "cannot identify image file 'uploads/4711.heic'"),
    "payments.capture": ("CardDeclined", "the bank declined the card: insufficient funds"),
    "stock.sync": ("ReadTimeout", "the warehouse did not answer within 30 s"),
    "reports.daily_sales": ("OperationalError", "canceling statement due to statement timeout"),
}
REFUND = {
    "type": "object", "required": ["cents"],
    "properties": {
        "cents": {"type": "integer", "minimum": 0, "maximum": 24_990, "title": "Amount in cents"},
        "reason": {"enum": ["damaged", "late", "goodwill"], "title": "Reason", "default": "damaged"},
        "message": {"type": "string", "maxLength": 1_000, "title": "Message to the customer"},
        "restock": {"type": "boolean", "title": "Put the item back into stock"},
    },
}  # fmt: skip
CAMPAIGN = {
    "type": "object", "required": ["segment", "subject"],
    "properties": {
        "segment": {"enum": ["new customers", "regulars", "all"], "title": "Who gets it"},
        "subject": {"type": "string", "maxLength": 120, "title": "Subject"},
        "send_at": {"type": "string", "format": "date-time", "title": "Not before"},
        "discount": {"type": "integer", "minimum": 0, "maximum": 50, "default": 10, "title": "Discount in percent",
                     "description": "Shown in the first line."},
        "countries": {"type": "array", "items": {"type": "string"}, "title": "Only these countries"},
        "is_test": {"type": "boolean", "default": True, "title": "Send it to ourselves first"},
    },
}  # fmt: skip
TOKENS = {"ada": ["admin"], "checkout": ["submit", "read"], "workers": ["work"], "grafana": ["read"]}
COUNTRIES, TIERS = ("de", "fr", "nl", "pl", "es"), ("free", "pro", "business")


class Shop:
    """The shop, with its own clock."""

    def __init__(self, url: str) -> None:
        self.random = random.Random(7)
        self.clock = VirtualClock(SystemClock().now() - (HOURS * 60 + 3) * 60 * SECOND)
        # Thousands of commits: none has to wait for the disk.
        sqlite.PRAGMAS = (*sqlite.PRAGMAS, "synchronous = OFF")
        store = open_store(url, self.clock)
        store.migrate()
        self.engine = Engine(store, seed=7)
        self.statistics = StatisticsCounter(store)
        self.orders = 4100
        for kind, (_, _, policy) in KINDS.items():
            self.engine.configure(kind, policy)

    def run(self) -> None:
        self._workers()
        self._schedules()
        for minute in range(HOURS * 60):
            self._minute(minute)
        self._now()
        self.engine.close()

    def _minute(self, minute: int) -> None:
        began = self.clock.now()
        busy = 0.55 + 0.45 * abs(((minute / 60) % 4) - 2) / 2
        self._submit(busy)
        if minute % 6 == 2:
            self._order()
        self.clock.advance(self.random.uniform(0.05, 0.4))
        # The warehouse was down for a while.
        stock_down = 130 <= minute < 150
        for turn in range(3):
            self._work(stock_down)
            self.clock.advance(10 + turn)
            self.engine.sweep()
        self.clock.advance(max(0, began + 60 * SECOND - self.clock.now()) / SECOND)
        # A janitor counts every second. Counted at the end, few tasks of a minute would be in the sample of times.
        self.statistics.count_window()

    def _submit(self, busy: float) -> None:
        jobs = []
        for kind, (queue, often, _) in KINDS.items():
            for _ in range(int(often * busy + self.random.random())):
                jobs.append(Submit(kind=kind, queue=queue, payload=self._payload(kind), labels=self._labels()))
        self.engine.run(jobs)

    def _payload(self, kind: str) -> dict[str, object]:
        number = self.random.randint(4000, 9999)
        match kind.split(".")[0]:
            case "mail":
                return {"order": number, "template": kind.split(".")[1], "language": self.random.choice(COUNTRIES)}
            case "images":
                return {"path": f"uploads/{number}.jpg", "widths": [320, 640, 1280]}
            case "payments":
                return {"order": number, "amount": {"cents": self.random.randint(900, 90_000), "currency": "EUR"}}
            case _:
                return {"warehouse": self.random.choice(("lyon", "essen", "gdansk")), "full": False}

    def _labels(self) -> dict[str, str]:
        return {"country": self.random.choice(COUNTRIES), "tier": self.random.choice(TIERS)}

    def _order(self) -> None:
        """An order is a flow: large ones wait for approval."""
        self.orders += 1
        cents = self.random.choice((4_900, 8_900, 12_500, 249_900))
        approval = (
            Approval(owner="finance", reason=f"Order {self.orders} is over 1,000 EUR") if cents > 100_000 else None
        )
        self.engine.submit_flow("order", self._stages(approval), data={"order": self.orders, "cents": cents},
            labels=self._labels(), actor_name="checkout")  # fmt: skip

    def _stages(self, approval: Approval | None) -> list[StageSpec]:
        order = {"order": self.orders}
        parts = [
            TaskSpec("stock.reserve", {**order, "item": item}, name=f"reserve-{item}")
            for item in ("lamp", "desk", "chair")[: self.random.randint(1, 3)]
        ]
        return [
            StageSpec("reserve", parts),
            StageSpec("pay", [TaskSpec("payments.capture", order, queue="payments")], approval=approval),
            StageSpec("ship", [
                TaskSpec("label.print", order, name="label"),
                TaskSpec("parcel.book", order, name="parcel", depends_on=("label",)),
            ]),
            StageSpec("tell", [TaskSpec("mail.order_confirmation", order, queue="mail")]),
        ]  # fmt: skip

    def _work(self, stock_down: bool) -> None:
        for worker, queues in WORKERS.items():
            for queue in queues:
                for task in self.engine.claim(queue, worker=worker, limit=50, lease_s=120):
                    self.engine.start(task)
                    self.engine.log(task, f"attempt {task.attempt} on {worker}")
                    self.clock.advance(self.random.expovariate(1 / 0.08))
                    self._end(task, stock_down)

    def _end(self, task: Assignment, stock_down: bool) -> None:
        chance = self.random.random()
        fails = stock_down if task.kind == "stock.sync" else chance < 0.05
        if fails and task.kind in FAULTS:
            error_class, message = FAULTS[task.kind]
            self.engine.log(task, ("error", message, {"attempt": task.attempt}))
            self.engine.fail(task, message, error_class=error_class, retryable=task.kind != "payments.capture")
        else:
            self.engine.succeed(task, {"ok": True})

    def _now(self) -> None:
        """What is open at the moment of the picture."""
        self.clock.advance((SystemClock().now() - self.clock.now()) / SECOND - 90)
        self._submit(1.0)
        self._submit(1.0)
        self.engine.submit("reports.daily_sales", {"day": "2026-11-16"}, delay_s=5 * 3600)
        self._long_runs()
        self._workers()
        self._people()
        self.engine.pause_queue("payments", reason="the bank is down for maintenance", by="ada")
        self.clock.advance(85)

    def _people(self) -> None:
        """What people have done, and what they may do."""
        stages = [StageDeclaration(name=name, kind=f"mail.{name}", queue="mail") for name in ("select", "newsletter")]
        self.engine.declare_flow(
            FlowDeclaration(name="campaign", stages=stages, config_schema=CAMPAIGN), worker="web-1.shop"
        )
        first, second, *_ = self.engine.waiting(limit=10).entries
        self.engine.approve_stage(first.id, note="paid by bank transfer", actor_name="grace", actor_groups=("finance",))
        self.engine.reject_stage(
            second.id, note="the customer has cancelled", actor_name="grace", actor_groups=("finance",)
        )
        delayed = self.engine.submit("mail.newsletter", {"campaign": "autumn"}, queue="mail", delay_s=3600)
        self.engine.cancel(delayed.id, cause="sent twice", actor_name="lin")
        for letter in self.engine.dead_lines(limit=2):
            self.engine.redrive(letter.id, cause="the mail server is back", actor_name="lin")
        self.engine.start_bulk("priority", {"kind": "mail.order_confirmation"}, priority=20, reason="sale", by="ada")
        self.engine.start_bulk("redrive", {"kind": "stock.sync"}, canary=3, reason="the warehouse is back", by="lin")
        while any(operation.state == "running" for operation in self.engine.bulks(unfinished=True)):
            self.engine.bulk_steps().step()
        self.engine.pause_queue("media", reason="a new encoder", by="ada")
        self.engine.resume_queue("media", by="ada")

    def _long_runs(self) -> None:
        runs: Sequence[tuple[str, str, dict[str, object], float, str]] = (
            ("videos.encode", "media", {"path": "tours/loft.mov", "codec": "av1"}, 62, "frame 3,720 of 6,000"),
            ("videos.encode", "media", {"path": "tours/attic.mov", "codec": "av1"}, 17, "frame 1,020 of 6,000"),
            ("search.reindex", "default", {"index": "products"}, 88, "88,210 of 100,000 products"),
        )
        for kind, queue, payload, percent, message in runs:
            self.engine.submit(kind, payload, queue=queue, priority=50, labels={"tier": "business"})
            worker = next(name for name, queues in WORKERS.items() if queue in queues)
            (task,) = self.engine.claim(queue, worker=worker, kinds=(kind,), lease_s=LEASE_S)
            self.engine.start(task)
            self.engine.say_progress(task, percent, 100, message)
            self.engine.log(task, "opened", ("info", message, {"percent": percent}))
        self.engine.submit("refunds.approve", {"order": 4117, "cents": 24_990}, priority=60)
        (task,) = self.engine.claim(worker="web-1.shop", kinds=("refunds.approve",), lease_s=LEASE_S)
        self.engine.checkpoint(task, {"form": REFUND, "notes": "The parcel arrived open. Photos are in the ticket."})
        self.engine.pause(task, state="waiting_input", owner="finance", reason="Refund of 249.90 EUR: how much of it?")

    def _schedules(self) -> None:
        self.engine.put_schedule("sales-report", kind="reports.daily_sales", payload={"day": "yesterday"},
            cron="0 7 * * mon-fri", timezone="Europe/Berlin", by="ada")  # fmt: skip
        self.engine.put_schedule("stock-check", kind="stock.sync", payload={"warehouse": "lyon", "full": True},
            every_s=3600, overlap="skip", by="lin")  # fmt: skip

    def _workers(self) -> None:
        for number, (name, queues) in enumerate(WORKERS.items()):
            beat = WorkerBeat(
                name=name, host=name, pid=4000 + number, version="0.1.0", queues=queues, concurrency=8,
                running=(1, 0, 2)[number], claimed=(1, 0, 2)[number], ttl_s=24 * 3600.0,
            )  # fmt: skip
            self.engine.worker_beat(beat)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the URL of an empty database, e.g. sqlite:////tmp/shop.db")
    Shop(sys.argv[1]).run()

"""What `onetray demo` shows: one scene for each promise, written as a user of the engine would write it.

Owns the scenes and how they are printed. Every state on the screen is what the engine answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from onetray import Approval, Assignment, Engine, LeaseLost, Policy, Receipt, StageSpec, TaskSpec

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

PATIENCE_S = 20.0
COLOURS = {"succeeded": "green", "cancelled": "yellow", "failed": "red", "dead_lettered": "red", "refused": "magenta"}


def tell(engine: Engine, out: Console) -> None:
    """Play all scenes, then show one job's log."""
    out.print("Seven scenes on a fresh SQLite file. Each line: the state the engine answered, and who did what.")
    story = Story(engine, out)
    janitor = engine.janitor(every_s=0.1)
    janitor.start()
    try:
        story.a_job_that_works()
        story.the_same_job_twice()
        story.a_failure_that_is_tried_again()
        vanished = story.a_worker_that_vanishes()
        story.a_job_that_is_cancelled()
        story.a_dead_letter_that_is_redriven()
        story.a_flow_with_an_approval()
        story.the_log_of(vanished)
    finally:
        janitor.stop()


class Story:
    def __init__(self, engine: Engine, out: Console) -> None:
        self.engine, self.out = engine, out

    def a_job_that_works(self) -> None:
        self.scene("A job is submitted, claimed, started and finished")
        engine = self.engine
        self.said(engine.submit("mail", {"to": "ann"}), "user:anonymous submits mail")
        job = self.claimed("mail", worker="w1")
        self.said(engine.start(job), "worker:w1 starts it")
        self.said(engine.succeed(job, {"sent": True}), "worker:w1 reports success")

    def the_same_job_twice(self) -> None:
        self.scene("A submit and a report are sent twice: nothing happens twice")
        engine = self.engine
        first = engine.submit("invoice", {"no": 7}, idempotency_key="invoice-7")
        again = engine.submit("invoice", {"no": 7}, idempotency_key="invoice-7")
        self.said(first, "user:anonymous submits invoice with a key")
        self.said(again, f"and again: {'the same job' if again.id == first.id else 'ANOTHER job'}")
        job = self.claimed("invoice", worker="w1")
        self.said(engine.succeed(job), "worker:w1 reports success (the start is recorded too)")
        self.said(engine.succeed(job), "and again: accepted, without a second event")

    def a_failure_that_is_tried_again(self) -> None:
        self.scene("A job fails once and is tried again after a pause")
        engine = self.engine
        engine.configure("thumbnail", Policy(backoff_base_s=0.2, jitter=False))
        self.said(engine.submit("thumbnail", {"image": "cat.png"}), "user:anonymous submits thumbnail")
        job = self.claimed("thumbnail", worker="w1")
        failed = engine.fail(job, "disk is full", error_class="TransientError")
        self.said(failed, "worker:w1 reports TransientError: attempt 1 of 3")
        job = self.claimed("thumbnail", worker="w2")
        self.said(engine.succeed(job), f"worker:w2 reports success on attempt {job.attempt}")

    def a_worker_that_vanishes(self) -> str:
        self.scene("A worker vanishes: its lease runs out, and its late report is refused")
        engine = self.engine
        engine.configure("import", Policy(backoff_base_s=0.1, jitter=False))
        submitted = engine.submit("import", {"file": "people.csv"})
        self.said(submitted, "user:anonymous submits import")
        lost = self.claimed("import", worker="w1", lease_s=2)
        self.said(engine.start(lost), "worker:w1 starts it, then says nothing more")
        soon(lambda: engine.task(lost.id).state == "queued")
        self.line("queued", "system:janitor takes it back: the lease ran out")
        job = self.claimed("import", worker="w2")
        try:
            engine.succeed(lost, {"rows": 3})
        except LeaseLost as e:
            self.line("refused", f"worker:w1 comes back with fence {e.fence}, the job is at fence {e.current_fence}")
        self.said(engine.succeed(job, {"rows": 3}), "worker:w2 reports success: one outcome, its own")
        return str(submitted.id)

    def a_job_that_is_cancelled(self) -> None:
        self.scene("A job that waits for its time is cancelled")
        later = self.engine.submit("newsletter", {"issue": 12}, delay_s=3600)
        self.said(later, "user:anonymous submits newsletter, to run in an hour")
        cancelled = self.engine.cancel(str(later.id), actor_name="ann", cause="sent by hand")
        self.said(cancelled, "user:ann cancels it")

    def a_dead_letter_that_is_redriven(self) -> None:
        self.scene("A job uses up its attempts, becomes a dead letter and is redriven")
        engine = self.engine
        engine.configure("sync", Policy(max_attempts=1))
        submitted = engine.submit("sync", {"shop": "north"})
        self.said(submitted, "user:anonymous submits sync, with one attempt")
        job = self.claimed("sync", worker="w1")
        self.said(engine.fail(job, "shop is closed", error_class="HTTP 503"), "worker:w1 reports HTTP 503")
        (letter,) = engine.dead_letters(submitted.id)
        self.line("", f"the letter says: {letter.reason_code}, last owner {letter.last_owner}")
        self.said(
            engine.redrive(letter.task_id, actor_name="ann"), "user:ann redrives it: a new job, linked to the old"
        )
        job = self.claimed("sync", worker="w1")
        self.said(engine.succeed(job), "worker:w1 reports success")

    def a_flow_with_an_approval(self) -> None:
        self.scene(
            "A flow of three stages: two tasks side by side, somebody who approves, one task that builds on them"
        )
        engine = self.engine
        flow = engine.submit_flow(
            "report",
            [
                StageSpec("fetch", [TaskSpec("fetch", {"shop": shop}) for shop in ("north", "south")]),
                StageSpec("check", [TaskSpec("check")], approval=Approval(owner="ann", reason="looks at the figures")),
                StageSpec("send", [TaskSpec("send")]),
            ],
        )
        self.line(flow.state, "user:anonymous submits a flow with the stages fetch, check and send")
        for sold in (3, 4):
            self.said(engine.succeed(self.claimed("fetch", worker="w1"), sold), f"worker:w1 reports {sold} sold")
        self.line(engine.flow(flow.id).state, engine.explain(flow.id)[0].message)
        approved = engine.approve_stage(flow.stages[1], actor_name="ann", note="looks right")
        self.line(approved.state, "user:ann approves the stage")
        self.said(engine.succeed(self.claimed("check", worker="w2")), "worker:w2 reports success")
        job = self.claimed("send", worker="w2")
        total = sum(engine.inputs(job.id)["stages"]["fetch"])
        self.said(engine.succeed(job, total), f"worker:w2 sends the total of what the first stage gave: {total}")
        self.line(engine.flow(flow.id).state, f"the flow, {engine.progress(flow.id).percentage} % done")

    def the_log_of(self, task_id: str) -> None:
        self.scene("The log of the job whose worker vanished: one event for each transition")
        for e in self.engine.events(task_id):
            change = f"{e.was or '(new)'} → {e.state}"
            self.out.print(
                f"  {e.version}  {e.type:<19} {change:<22} {e.actor:<15} fence {e.fence}  attempt {e.attempts}"
            )

    def claimed(self, kind: str, worker: str, lease_s: float = 60) -> Assignment:
        """Claim a job of this kind, as soon as there is one to claim."""
        job = soon(lambda: self.engine.claim(worker=worker, kinds=(kind,), lease_s=lease_s))[0]
        self.line(job.state, f"worker:{worker} claims it: attempt {job.attempt}, fence {job.fence}")
        return job

    def scene(self, title: str) -> None:
        self.out.print(f"\n{title}", style="bold")

    def said(self, receipt: Receipt, words: str) -> None:
        self.line(receipt.state, words)

    def line(self, state: str, words: str) -> None:
        from rich.text import Text

        self.out.print(Text.assemble("  ", (f"{state:<14}", COLOURS.get(state, "cyan")), words))


def soon(ask: Callable[[], T]) -> T:
    """Ask until there is an answer: a job that was retried or lost comes back when its time has come."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.02)
    raise TimeoutError(f"what the demo waits for did not happen within {PATIENCE_S:.0f} s")

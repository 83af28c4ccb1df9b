"""What an operator does to jobs in a browser: to one, to some, to all that match, and to queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine, bulk_steps
from tests.browser.conftest import Site
from tests.browser.test_forms import flash


@pytest.fixture(autouse=True)
def small_steps(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a handful of jobs takes several steps. The next test gets no operation of this one."""
    monkeypatch.setattr(bulk_steps, "BATCH", 2)
    yield
    finish(site.engine)


def step(engine: Engine) -> int:
    """A step of the operations: the servers here have no janitor."""
    return engine.bulk_steps().step()


def finish(engine: Engine) -> None:
    while any(operation.state == "running" for operation in engine.bulks(unfinished=True)):
        step(engine)


def letters(engine: Engine, kind: str, count: int) -> list[str]:
    """Dead letters of a kind, oldest first."""
    engine.configure(kind, Policy(max_attempts=1))
    ids = [engine.submit(kind, queue=kind).id for _ in range(count)]
    for claimed in engine.claim(kind, worker="w", limit=count):
        engine.fail(claimed, "mailbox full", error_class="SmtpError")
    return ids


def redriven(engine: Engine, ids: list[str]) -> list[str]:
    return sorted(engine.retried(ids))


def start(page: Page, button: str) -> None:
    """Start the operation that the preview shows, and go to its page."""
    if (sure := page.get_by_label("All that match are meant")).count():
        sure.check()
    page.get_by_role("button", name=button).click()
    expect(flash(page)).to_contain_text("Started")


def test_dead_letters_are_redriven_one_and_some(site: Site, page: Page, queue: str) -> None:
    ids = letters(site.engine, queue, 4)
    page.goto(f"{site.url}/ui/dead?kind={queue}")
    expect(page.locator("tbody tr [data-label=Count]")).to_have_text("4")
    page.get_by_role("link", name="SmtpError").click()
    page.locator(f"[data-key='{ids[0]}']").get_by_role("button", name="Redrive").click()
    expect(flash(page)).to_contain_text("Redriven as")
    assert redriven(site.engine, ids) == [ids[0]]
    for id_ in ids[1:3]:
        page.get_by_label(f"Select {queue} {id_}").check()
    page.locator("header.bulk").get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("heading", name="Redrive 2 dead letters")).to_be_visible()
    start(page, "Redrive them")
    assert step(site.engine) == 2
    expect(page.get_by_role("heading", name="2 done")).to_be_visible()
    assert redriven(site.engine, ids) == sorted(ids[:3])


def test_all_matching_letters_are_redriven_after_a_canary_or_not(site: Site, page: Page, queue: str) -> None:
    ids = letters(site.engine, queue, 4)
    for decision in ("Stop", "Do the rest"):
        page.goto(f"{site.url}/ui/dead?kind={queue}")
        page.get_by_role("link", name="Redrive all matching").click()
        left = 4 if decision == "Stop" else 3
        expect(page.get_by_role("heading", name=f"Redrive {left} dead letters")).to_be_visible()
        page.get_by_label("Canary").fill("1")
        start(page, "Redrive them")
        expect(page.get_by_text("letters are being redriven")).to_be_visible()
        assert step(site.engine) == 1
        expect(page.get_by_text("Waits for a decision")).to_be_visible()
        (canary,) = site.engine.claim(queue, worker="w")
        site.engine.succeed(canary)
        expect(page.get_by_text("1 of 1 succeeded")).to_be_visible()
        page.get_by_role("button", name=decision).click()
        expect(flash(page)).to_be_visible()
    # The first one was stopped, and what was done stays done.
    finish(site.engine)
    expect(page.locator("h2 .badge")).to_have_text("done")
    assert redriven(site.engine, ids) == sorted(ids)


def test_all_matching_jobs_are_cancelled_until_somebody_stops_it(site: Site, page: Page, queue: str) -> None:
    ids = [site.engine.submit("work", queue=queue).id for _ in range(5)]
    page.goto(f"{site.url}/ui/jobs?queue={queue}")
    page.get_by_role("link", name="Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel 5 jobs")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_label("Reason").fill("the shop closes")
    start(page, "Cancel them")
    step(site.engine)
    expect(page.get_by_role("heading", name="2 done")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(flash(page)).to_have_text("Stopped. What was done stays done.")
    step(site.engine)
    states = sorted(site.engine.task(id_).state for id_ in ids)
    assert states == ["cancelled"] * 2 + ["queued"] * 3


def test_all_matching_jobs_are_retried_and_the_chosen_get_a_priority(site: Site, page: Page, queue: str) -> None:
    ids = [site.engine.submit("work", queue=queue).id for _ in range(3)]
    for id_ in ids:
        site.engine.cancel(id_)
    page.goto(f"{site.url}/ui/jobs?queue={queue}&state=cancelled")
    page.get_by_role("link", name="Retry…").click()
    start(page, "Retry them")
    finish(site.engine)
    expect(page.get_by_role("heading", name="3 done")).to_be_visible()
    new = [job.id for job in site.engine.jobs(queue=queue, states=["queued"]).jobs]
    page.goto(f"{site.url}/ui/jobs?queue={queue}&state=queued")
    for id_ in new[:2]:
        page.get_by_label(f"Select work {id_}").check()
    page.get_by_role("button", name="Set priority").click()
    page.get_by_label("New priority").fill("7")
    start(page, "Set the priority of them")
    finish(site.engine)
    expect(page.get_by_role("heading", name="2 done")).to_be_visible()
    assert [site.engine.task(id_).priority for id_ in new] == [7, 7, 0]


def test_a_queue_is_paused_with_a_reason_and_resumed(site: Site, page: Page, queue: str) -> None:
    site.engine.submit("work", queue=queue)
    page.goto(f"{site.url}/ui/queues")
    row = page.locator(f"tr[data-key='{queue}']")
    row.get_by_label("Reason").fill("a <b>new</b> release")
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("by local: a <b>new</b> release")
    assert site.engine.claim(queue, worker="w") == []
    row.get_by_role("button", name="Resume").click()
    expect(flash(page)).to_have_text(f"The queue {queue} is resumed.")
    assert len(site.engine.claim(queue, worker="w")) == 1


def ask(page: Page, action: str) -> None:
    """Open the question of an action."""
    page.get_by_role("group", name="Actions").get_by_role("button", name=action, exact=True).first.click()


def test_a_task_is_prioritised_run_now_cancelled_and_run_again(site: Site, page: Page, queue: str) -> None:
    id_ = site.engine.submit("work", queue=queue, delay_s=3600).id
    page.goto(f"{site.url}/ui/jobs/{id_}")
    ask(page, "Priority")
    page.get_by_role("spinbutton", name="Priority").fill("5")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(flash(page)).to_have_text("The priority is 5.")
    ask(page, "Run now")
    expect(flash(page)).to_have_text("The task may run now.")
    assert site.engine.task(id_).priority == 5
    ask(page, "Cancel")
    page.get_by_role("button", name="Cancel it").click()
    expect(flash(page)).to_have_text("The task is cancelled.")
    ask(page, "Run again")
    expect(flash(page)).to_have_text("This is the new task.")
    (task,) = site.engine.claim(queue, worker="w")
    assert site.engine.task(task.id).retry_of == id_


def test_a_task_that_waits_is_resumed_on_its_page(site: Site, page: Page, queue: str) -> None:
    id_ = site.engine.submit("work", queue=queue).id
    (task,) = site.engine.claim(queue, worker="w")
    site.engine.pause(task, state="waiting_input", owner="ann", reason="which one?")
    page.goto(f"{site.url}/ui/jobs/{id_}")
    ask(page, "Resume")
    dialog = page.locator("dialog:popover-open")
    dialog.get_by_label("Input as JSON").fill("{")
    dialog.get_by_role("button", name="Resume").click()
    expect(flash(page)).to_contain_text("JSON")
    ask(page, "Resume")
    dialog.get_by_label("Input as JSON").fill('"the second"')
    dialog.get_by_role("button", name="Resume").click()
    expect(flash(page)).to_contain_text("The task is resumed")
    assert site.engine.task(id_).input == "the second"


def test_a_flow_is_paused_resumed_skipped_cancelled_and_run_again(site: Site, page: Page, queue: str) -> None:
    stages = [StageSpec(name, [TaskSpec("work", queue=queue)]) for name in ("first", "second")]
    flow = site.engine.submit_flow(queue, stages).id
    page.goto(f"{site.url}/ui/jobs/{flow}")
    ask(page, "Pause")
    expect(flash(page)).to_contain_text("The flow is paused")
    ask(page, "Resume")
    expect(flash(page)).to_have_text("The flow is resumed.")
    page.locator("#stages").get_by_role("button", name="Skip").first.click()
    page.locator("dialog:popover-open").get_by_role("button", name="Skip").click()
    expect(flash(page)).to_have_text("The stage is skipped.")
    ask(page, "Cancel")
    page.get_by_role("button", name="Cancel it").click()
    expect(flash(page)).to_have_text("The flow is cancelled.")
    ask(page, "Run again")
    page.get_by_label("From").select_option("1. first")
    page.locator("dialog:popover-open").get_by_role("button", name="Run again").click()
    expect(flash(page)).to_have_text("This is the new flow.")
    (new,) = [each for each in site.engine.flows(limit=10) if each.retry_of == flow]
    assert (new.state, sorted(stage.state for stage in site.engine.stages(flow))) == (
        "pending", ["cancelled", "skipped"],
    )  # fmt: skip

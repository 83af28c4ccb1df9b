"""A job's page in a browser: it follows the job by itself, and its buttons do what they say."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.browser.conftest import OpenPage, Site

LONG = Policy(max_attempts=2, lease_s=3600)


def running(engine: Engine, queue: str) -> Assignment:
    (held,) = engine.claim(queue, worker="w-1")
    engine.start(held)
    return held


def test_a_job_is_followed_from_its_queue_to_its_end(site: Site, page: Page, queue: str) -> None:
    id_ = site.engine.submit("video.encode", {"file": "a.mp4"}, queue=queue, policy=LONG).id
    page.goto(f"{site.url}/ui/jobs/{id_}")
    why = page.locator('[data-live="why"]')
    expect(why).to_contain_text("Why it does not run yet")
    expect(why).to_contain_text("onetray worker --app")
    held = running(site.engine, queue)
    expect(why).to_contain_text("It is running")
    site.engine.say_progress(held, 1, 4, "a quarter")
    expect(page.locator('[data-live="head"]')).to_contain_text("25 %")
    site.engine.succeed(held, {"frames": 1234})
    expect(why).to_contain_text("It has succeeded")
    expect(page.locator('[data-live="values"]')).to_contain_text("1234")
    expect(page.locator('[data-live="events"] code').first).to_have_text("task.succeeded")
    expect(page.get_by_role("button", name="Run again")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def is_at_end(page: Page) -> bool:
    return bool(page.locator("[data-follow]").evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight < 24"))


def test_a_log_is_followed_until_the_reader_scrolls_up(site: Site, page: Page, queue: str) -> None:
    id_ = site.engine.submit("work", queue=queue, policy=LONG).id
    held = running(site.engine, queue)
    site.engine.log(held, *(f"line {i}" for i in range(100)))
    page.goto(f"{site.url}/ui/jobs/{id_}")
    switch = page.get_by_label("Follow")
    expect(switch).to_be_checked()
    site.engine.log(held, "the newest line")
    expect(page.get_by_text("the newest line")).to_have_count(1)
    assert is_at_end(page)
    page.locator("[data-follow]").evaluate("e => { e.scrollTop = 0; }")
    expect(switch).not_to_be_checked()
    site.engine.log(held, "one more")
    expect(page.get_by_text("one more")).to_have_count(1)
    assert not is_at_end(page)
    switch.check()
    assert is_at_end(page)
    page.get_by_label("Search the log").fill("LINE 42")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("[data-follow] li")).to_have_count(1)


def test_what_the_reader_has_opened_stays_open(any_site: Site, page: Page, queue: str) -> None:
    id_ = any_site.engine.submit("work", queue=queue, policy=LONG).id
    page.goto(f"{any_site.url}/ui/jobs/{id_}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_label("Reason, for the event").locator("visible=true").fill("half a sen")
    running(any_site.engine, queue)
    expect(page.locator('[data-live="why"]')).to_contain_text("It is running")
    expect(page.get_by_role("heading", name="Cancel the task?")).to_be_visible()
    expect(page.get_by_label("Reason, for the event").locator("visible=true")).to_have_value("half a sen")
    page.get_by_role("button", name="Cancel hard").click()
    expect(page.locator(".flash")).to_have_text("The task is cancelled.")
    assert any_site.engine.events(str(id_))[-1].cause == "half a sen"


def test_the_id_and_the_input_are_copied(any_site: Site, open_page: OpenPage, queue: str) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    id_ = any_site.engine.submit("work", {"to": "ann"}, queue=queue).id
    page.goto(f"{any_site.url}/ui/jobs/{id_}")
    page.get_by_role("button", name=str(id_)).click()
    expect(page.locator(".job-head .copied")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == id_
    page.locator('[data-live="values"]').get_by_role("button", name="Copy").click()
    expect(page.locator('[data-live="values"] .copied')).to_have_count(1)
    assert re.sub(r"\s", "", page.evaluate("navigator.clipboard.readText()")) == '{"to":"ann"}'


def flow_that_waits(engine: Engine, queue: str) -> str:
    first = [TaskSpec("extract", queue=queue, policy=LONG, name=f"extract-{i}") for i in range(3)]
    stages = [
        StageSpec("extract", first),
        StageSpec("review", [TaskSpec("publish", queue=queue)], approval=Approval(reason="look at it"),
                  start_as_waiting=True),
    ]  # fmt: skip
    flow = engine.submit_flow("report", stages).id
    for held in engine.claim(queue, worker="w-1", limit=3):
        engine.log(held, "extracted")
        engine.succeed(held, {"rows": 1})
    return flow


def test_a_stage_is_approved_and_the_past_can_be_looked_at(any_site: Site, page: Page, queue: str) -> None:
    flow = flow_that_waits(any_site.engine, queue)
    page.goto(f"{any_site.url}/ui/jobs/{flow}")
    page.get_by_role("button", name="Approve").first.click()
    page.locator("dialog:popover-open").get_by_label("Note").fill("fine")
    page.locator("dialog:popover-open").get_by_role("button", name="Approve").click()
    expect(page.locator(".flash")).to_have_text("The stage is approved.")
    assert any_site.engine.stages(flow)[1].state == "pending"
    page.get_by_role("link", name=re.compile("stage.waiting")).first.click()
    expect(page.get_by_text("As of event")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    page.get_by_role("link", name="Back to now").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()

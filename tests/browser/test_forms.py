"""Forms in a browser: what waits for a person, what is submitted, tokens. Wrong input is said beside its field."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.browser.conftest import Guarded, Site
from tests.browser.test_login import log_in
from tests.browser.test_pages import HOSTILE
from tests.support.browser import axe_clean, expect_problem

FORM = {
    "type": "object",
    "required": ["budget", "city"],
    "properties": {
        "budget": {"type": "integer", "minimum": 1, "title": "Budget"},
        "city": {"type": "string", "minLength": 2, "title": HOSTILE},
        "urgent": {"type": "boolean", "title": "Urgent"},
    },
}
TOKEN = re.compile(r"ot_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")


def flash(page: Page) -> Locator:
    return page.locator(".flash")


def wrong(page: Page, pointer: str) -> Locator:
    """What is said beside a field."""
    return page.locator(f"[id='v{pointer}-about'] .wrong")


def stage_that_asks(engine: Engine, flow: str, form: Any = None) -> str:
    stage = StageSpec("publish", [TaskSpec("x")], approval=Approval(reason=f"May it go out? {HOSTILE}", form=form))
    return engine.submit_flow(flow, [stage]).stages[0]


def task_that_asks(engine: Engine, kind: str, form: Any) -> str:
    engine.submit(kind, queue=kind)
    (task,) = engine.claim(kind, worker="w")
    engine.start(task)
    engine.checkpoint(task, {"form": form, "notes": HOSTILE})
    engine.pause(task, state="waiting_input", owner="ann", reason="Where to?")
    return task.id


def test_an_approval_is_refused_with_its_faults_then_given(site: Site, page: Page, queue: str) -> None:
    expect_problem(page, "status of 400")
    stage, other = (stage_that_asks(site.engine, f"{queue}-{n}", form) for n, form in enumerate((FORM, None)))
    page.goto(f"{site.url}/ui/waiting")
    expect(page.locator(f"[data-key='{stage}']")).to_contain_text("May it go out?")
    page.get_by_role("link", name=f"Answer {queue}-0 publish").click()
    page.get_by_label("Budget").fill("0")
    page.get_by_label(HOSTILE).fill("U")
    page.get_by_label("Comment").fill("as agreed")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("alert")).to_contain_text("too short")
    expect(wrong(page, "/budget")).to_contain_text("less than the minimum of 1")
    expect(wrong(page, "/city")).to_contain_text("too short")
    axe_clean(page)
    assert site.engine.stage(stage).state == "waiting"
    page.get_by_label("Budget").fill("7")
    page.get_by_label(HOSTILE).fill("Ulm")
    page.get_by_label("Urgent").select_option(index=1)
    page.get_by_label("Your name").fill("bob")
    page.get_by_role("button", name="Approve").click()
    expect(flash(page)).to_have_text("publish is approved.")
    answer = site.engine.stage(stage).answer
    assert (answer["by"], answer["note"]) == ("user:bob", "as agreed")
    assert answer["input"] == {"budget": 7, "city": "Ulm", "urgent": True}
    page.get_by_role("link", name=f"Answer {queue}-1 publish").click()
    page.get_by_label("Comment").fill("not this week")
    page.get_by_role("button", name="Reject").click()
    expect(flash(page)).to_have_text("publish is rejected.")
    assert (site.engine.stage(other).state, site.engine.stage(other).answer["note"]) == ("failed", "not this week")


def test_a_question_is_answered_as_json_and_the_next_one_by_somebody_else(site: Site, page: Page, queue: str) -> None:
    expect_problem(page, "status of 400")
    first, second = (task_that_asks(site.engine, f"{queue}-{n}", FORM) for n in range(2))
    page.goto(f"{site.url}/ui/waiting/task/{first}")
    page.get_by_text("Write it as JSON instead").click()
    whole = page.get_by_label("JSON, in place of the fields above")
    whole.fill('{"budget": 3}')
    page.get_by_role("button", name="Send the answer").click()
    expect(wrong(page, "/city")).to_contain_text("is a required property")
    expect(whole).to_have_value('{"budget": 3}')
    whole.fill('{"budget": 3, "city": "Ulm"}')
    page.get_by_role("button", name="Send the answer").click()
    expect(flash(page)).to_have_text(f"{queue}-0 continues with your answer.")
    assert site.engine.task(first).input == {"budget": 3, "city": "Ulm"}
    page.goto(f"{site.url}/ui/waiting/task/{second}")
    page.get_by_label("Budget").fill("9")
    site.engine.resume(second, input={"budget": 1, "city": "Bonn"}, actor_name="eve")
    expect(page.get_by_role("status")).to_contain_text("It asks nothing any more")
    expect(page.get_by_label("Budget")).to_have_value("9")


def test_a_flow_is_submitted_by_its_form(site: Site, page: Page, queue: str) -> None:
    page.once("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    expect_problem(page, "status of 400")
    schema = {
        "type": "object", "required": ["width"],
        "properties": {
            "width": {"type": "integer", "minimum": 1}, "format": {"enum": ["png", "jpg"], "default": "png"},
            "caption": {"type": "string", "description": HOSTILE},
        },
    }  # fmt: skip
    site.engine.declare_flow(
        FlowDeclaration(name=queue, stages=[StageDeclaration(name="one", kind="resize")], config_schema=schema)
    )
    page.goto(f"{site.url}/ui/submit?q={queue}")
    page.get_by_role("link", name=queue).click()
    names = page.locator("form.answer [name^='v/']").evaluate_all("fields => fields.map(field => field.name)")
    assert names == ["v/width", "v/format", "v/caption"], "as declared"
    page.get_by_label("caption").fill(HOSTILE)
    page.get_by_role("button", name="Submit").click()
    expect(wrong(page, "/width")).to_have_text("fill this in")
    expect(page.get_by_label("caption")).to_have_value(HOSTILE)
    page.get_by_label("width").fill("640")
    page.get_by_label("format").select_option("jpg")
    page.get_by_role("button", name="Submit").click()
    expect(flash(page)).to_have_text("The job is submitted.")
    expect(page.locator('[data-live="values"]')).to_contain_text("<img src=x")
    (flow,) = [flow for flow in site.engine.flows(limit=10) if flow.name == queue]
    assert flow.data == {"width": 640, "format": "jpg", "caption": HOSTILE}


def test_a_task_is_submitted_with_a_hostile_payload_and_options(site: Site, page: Page, queue: str) -> None:
    page.once("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    expect_problem(page, "status of 400")
    site.engine.configure(queue, Policy())
    page.goto(f"{site.url}/ui/submit?kind={queue}")
    page.get_by_label("Payload").fill('{"a": ')
    page.get_by_role("button", name="Submit").click()
    expect(wrong(page, "")).to_contain_text("not JSON")
    page.get_by_label("Payload").fill('{"a": "</script><script>alert(1)</script>"}')
    page.get_by_label("Queue").fill(queue)
    page.get_by_label("Labels").fill("novalue")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#labels-about .wrong")).to_contain_text("name=value")
    page.get_by_label("Labels").fill(f"tenant={HOSTILE}")
    page.get_by_role("button", name="Submit").click()
    expect(flash(page)).to_have_text("The job is submitted.")
    (line,) = site.engine.jobs(queue=queue).jobs
    task = site.engine.task(line.id)
    assert (task.payload, task.labels) == ({"a": "</script><script>alert(1)</script>"}, {"tenant": HOSTILE})
    expect(page.get_by_role("list", name="Labels")).to_contain_text(HOSTILE)


def test_a_token_is_shown_once_and_revoked(guarded: Guarded, page: Page, queue: str) -> None:
    expect_problem(page, "status of 400")
    page.goto(f"{guarded.url}/ui/tokens")
    log_in(page, guarded.admin)
    page.get_by_label("Name").fill(f"{queue}{HOSTILE}")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("scopes")
    page.get_by_role("checkbox", name="read").check()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("region", name="New token")).to_contain_text("is created")
    secret = page.locator("#secret").inner_text()
    assert TOKEN.fullmatch(secret)
    queues, bearer = f"{guarded.url}/ui/queues", {"Authorization": f"Bearer {secret}"}
    assert page.request.get(queues, headers=bearer).status == 200
    page.goto(f"{guarded.url}/ui/tokens")
    assert not TOKEN.search(page.content())
    row = page.get_by_role("row").filter(has_text=queue)
    row.get_by_text("Revoke", exact=False).first.click()
    row.get_by_role("button", name="for good").click()
    expect(flash(page)).to_contain_text("is revoked")
    expect(row).to_contain_text("revoked")
    (token,) = [token for token in guarded.engine.tokens.list() if token.name.startswith(queue)]
    assert token.revoked_at is not None

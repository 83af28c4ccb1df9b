"""Every page of the dashboard: readable by everybody, on a phone, in the dark, without scripts, whatever names say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from onetray.dashboard.pages import PAGES, load_views
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from tests.browser.conftest import OpenPage, Site
from tests.support.browser import DARK, LIGHT, PHONE, axe_clean, no_sideways_scroll

HOSTILE = "\"'><img src=x onerror=alert(1)><script>alert(2)</script></template>{{7*7}}<!--"
LONG = "long" * 30
load_views()


class Filled(NamedTuple):
    """A site with jobs in it that somebody hostile has named."""

    site: Site
    samples: dict[str, str]
    """Ids for the paths of pages: of the thing that the page of this name shows, else of a job."""

    def urls(self) -> Iterator[tuple[str, str]]:
        for page in PAGES.values():
            id_ = self.samples.get(page.name, self.samples["job"])
            yield page.name, self.site.url + page.path.format(id=id_, part="input")
        yield "job of a flow", self.site.url + PAGES["job"].path.format(id=self.samples["flow"])


@pytest.fixture(scope="module")
def filled(site: Site) -> Filled:
    return Filled(site, fill(site.engine))


def fill(engine: Engine) -> dict[str, str]:
    """A job that has failed, one that runs, one that waits for an answer, a flow that waits for approval."""
    labels = {"customer": HOSTILE, "region": LONG}
    failed = engine.submit(HOSTILE, {HOSTILE: HOSTILE, "long": LONG}, queue=HOSTILE, labels=labels, max_attempts=1)
    (task,) = engine.claim(HOSTILE, worker=HOSTILE)
    engine.start(task)
    engine.log(task, HOSTILE, ("error", LONG, {HOSTILE: HOSTILE}))
    engine.say_progress(task, 1, 2, HOSTILE)
    engine.fail(task, f"{HOSTILE}\n{LONG}", error_class=HOSTILE, retryable=True)
    for _ in range(3):
        engine.submit(LONG, {"long": LONG}, queue=LONG, labels=labels)
    running, asks, done = engine.claim(LONG, worker=LONG, limit=3, lease_s=3600)
    engine.start(running)
    engine.say_progress(running, 1, 2, HOSTILE)
    engine.pause(asks, state="waiting_input", owner=HOSTILE, reason=HOSTILE)
    engine.succeed(done, {HOSTILE: LONG})
    engine.submit(HOSTILE, queue=LONG, delay_s=3600)
    stages = [
        StageSpec(HOSTILE, [TaskSpec(HOSTILE, queue=LONG, name=HOSTILE), TaskSpec(LONG, depends_on=(HOSTILE,))]),
        StageSpec(LONG, [TaskSpec(LONG)], approval=Approval(owner=HOSTILE, reason=HOSTILE)),
    ]
    flow = engine.submit_flow(HOSTILE, stages, labels=labels)
    form = {"type": "object", "title": HOSTILE, "properties": {HOSTILE: {"enum": [HOSTILE, LONG], "title": LONG}}}
    asking = StageSpec(LONG, [TaskSpec(LONG)], approval=Approval(reason=HOSTILE, form=form))
    asked = engine.submit_flow(LONG, [asking])
    engine.pause_queue(HOSTILE, reason=HOSTILE, by=HOSTILE)
    beat = WorkerBeat(name=HOSTILE, host=LONG, pid=1, version="0", queues=(HOSTILE, LONG), ttl_s=3600)
    engine.worker_beat(beat)
    bulk = engine.start_bulk("cancel", {"kind": HOSTILE}, reason=HOSTILE)
    (stage,) = engine.stages(asked.id)
    return {
        "job": failed.id, "flow": flow.id, "bulk_operation": bulk.id, "approval": stage.id, "question": asks.id,
    }  # fmt: skip


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
def test_axe_finds_nothing_serious_on_any_page(open_page: OpenPage, filled: Filled, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    for name, url in filled.urls():
        _look_at(page, name, url)
        axe_clean(page)


def test_no_page_is_wider_than_a_phone(open_page: OpenPage, filled: Filled) -> None:
    page = open_page(viewport=PHONE)
    for name, url in filled.urls():
        _look_at(page, name, url)
        no_sideways_scroll(page)


def test_what_users_have_named_is_text_on_every_page(page: Page, filled: Filled) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"{page.url} ran a script: {dialog.message}"))
    shown = set()
    for name, url in filled.urls():
        _look_at(page, name, url)
        assert page.locator("img[src=x], main script").count() == 0, name
        if HOSTILE in page.inner_text("main"):
            shown.add(name)
    assert "queues" in shown


def test_what_users_have_named_is_text_when_it_arrives_live(page: Page, site: Site, queue: str) -> None:
    name = f"{queue}{HOSTILE}"
    page.goto(f"{site.url}/ui/queues")
    site.engine.submit("count", queue=name)
    expect(page.get_by_text(name)).to_be_visible()
    assert page.locator("img[src=x], main script").count() == 0


def test_every_page_can_be_read_without_scripts(open_page: OpenPage, filled: Filled) -> None:
    page = open_page(java_script_enabled=False)
    for name, url in filled.urls():
        _look_at(page, name, url)


def test_a_button_works_without_scripts(open_page: OpenPage, site: Site, queue: str) -> None:
    site.engine.submit("count", queue=queue)
    page = open_page(java_script_enabled=False)
    page.goto(f"{site.url}/ui/queues")
    page.locator(f"tr[data-key='{queue}']").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text(f"The queue {queue} is paused")


def _look_at(page: Page, name: str, url: str) -> None:
    answer = page.goto(url)
    assert answer is not None
    assert answer.status == 200, f"{name}: {answer.status} for {url}"
    expect(page.get_by_role("heading", level=1)).to_have_count(1)

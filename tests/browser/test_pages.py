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
from tests.browser.conftest import DATABASES, Guarded, OpenPage, Site, Sites
from tests.support.browser import DARK, LIGHT, PHONE, WIDE, axe_clean, contrast_clean, no_sideways_scroll

HOSTILE = "\"'><img src=x onerror=alert(1)><script>alert(2)</script></template>{{7*7}}<!--"
LONG = "long" * 30
load_views()


class Filled(NamedTuple):
    """A server with jobs in its database that somebody hostile has named."""

    url: str
    samples: dict[str, str]
    """Ids for the paths of pages: of the thing that the page of this name shows, else of a job."""

    def urls(self) -> Iterator[tuple[str, str]]:
        for page in PAGES.values():
            id_ = self.samples.get(page.name, self.samples["job"])
            yield page.name, self.url + page.path.format(id=id_, part="input")
        job = self.url + PAGES["job"].path
        yield "job of a flow", job.format(id=self.samples["flow"])
        yield "job as it was", job.format(id=f"{self.samples['job']}?at={self.samples['event']}")
        yield "submit a kind", f"{self.url}{PAGES['submit'].path}?kind={LONG}"


_filled: dict[str, Filled] = {}


def filled(site: Site | Guarded) -> Filled:
    if site.url not in _filled:
        _filled[site.url] = Filled(site.url, fill(site.engine))
    return _filled[site.url]


def fill(engine: Engine) -> dict[str, str]:
    """A job that has failed, one that runs, one that waits for an answer, a flow that waits for approval."""
    labels = {"customer": HOSTILE, "region": LONG}
    failed = engine.submit(HOSTILE, {HOSTILE: HOSTILE, "long": LONG}, queue=HOSTILE, labels=labels, max_attempts=1)
    (task,) = engine.claim(HOSTILE, worker=HOSTILE)
    engine.start(task)
    engine.log(task, HOSTILE, ("error", LONG, {HOSTILE: HOSTILE}), ("warning", "x" * 300, {"ms": 900}))
    engine.say_progress(task, 1, 2, HOSTILE)
    trace = {"traceback": "Traceback:\n" + "  a long line" * 20}
    engine.fail(task, f"{HOSTILE}\n{LONG}", error_class=HOSTILE, retryable=True, detail=trace)
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
    bulk = engine.start_bulk("redrive", {"kind": HOSTILE}, canary=1, reason=HOSTILE)
    while engine.bulk(bulk.id).state == "running":
        engine.bulk_steps().step()
    return {
        "job": failed.id, "flow": flow.id, "bulk_operation": bulk.id, "approval": engine.stages(asked.id)[0].id,
        "question": asks.id, "event": str(engine.events(failed.id)[1].id),
    }  # fmt: skip


@pytest.mark.parametrize("database", DATABASES)
def test_every_page_can_be_used_by_everybody(page: Page, sites: Sites, database: str) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"{page.url} ran a script: {dialog.message}"))
    shown = set()
    for name, url in filled(sites.open(database)).urls():
        _look_at(page, name, url)
        assert page.locator("img[src=x], main script").count() == 0, name
        if HOSTILE in page.inner_text("main"):
            shown.add(name)
        if database == DATABASES[0]:  # The HTML of the others is the same.
            _is_usable(page)
    assert {"queues", "job", "approval", "question", "bulk_operation", "job of a flow", "job as it was"} <= shown


def _is_usable(page: Page) -> None:
    """In both themes, and on a phone."""
    axe_clean(page)
    page.emulate_media(color_scheme=DARK)
    contrast_clean(page)
    page.set_viewport_size(PHONE)
    no_sideways_scroll(page)
    page.emulate_media(color_scheme=LIGHT)
    page.set_viewport_size(WIDE)


def test_what_users_have_named_is_text_when_it_arrives_live(page: Page, any_site: Site, queue: str) -> None:
    name = f"{queue}{HOSTILE}"
    page.goto(f"{any_site.url}/ui/queues")
    any_site.engine.submit("count", queue=name)
    expect(page.get_by_text(name)).to_be_visible()
    assert page.locator("img[src=x], main script").count() == 0


def test_a_button_works_without_scripts(open_page: OpenPage, any_site: Site, queue: str) -> None:
    page = open_page(java_script_enabled=False)
    any_site.engine.submit("count", queue=queue)
    page.goto(f"{any_site.url}/ui/queues")
    page.locator(f"tr[data-key='{queue}']").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text(f"The queue {queue} is paused")


ACTS = "form[method=post] button, [popovertarget], a[href*='/ui/bulk/new']"
"""What changes something, or leads to it."""


def test_a_reader_without_scripts_can_read_every_page_and_sees_no_button(
    open_page: OpenPage, any_guarded: Guarded
) -> None:
    page = open_page(java_script_enabled=False, extra_http_headers={"Authorization": f"Bearer {any_guarded.reader}"})
    for name, url in filled(any_guarded).urls():
        if name != "tokens":
            _look_at(page, name, url)
            assert page.locator("main").locator(ACTS).count() == 0, name
    assert page.request.get(f"{any_guarded.url}/ui/tokens").status == 403


def test_namespaces_are_kept_apart(open_page: OpenPage, any_guarded: Guarded, queue: str) -> None:
    samples, engine = filled(any_guarded), any_guarded.engine
    token = engine.tokens.create("otto", ["read", "submit", "operate"], namespace="other").text
    engine.submit("ours", queue=queue, namespace="other")
    page = open_page(extra_http_headers={"Authorization": f"Bearer {token}"})
    for name, url in samples.urls():
        if "/{" in getattr(PAGES.get(name), "path", "/{") or name == "submit a kind":
            assert page.request.get(url).status == 404, name
        elif name != "tokens":
            answer = page.request.get(url)
            assert answer.status == 200, name
            # Not in its attributes either.
            assert LONG not in answer.text(), name
    page.goto(f"{any_guarded.url}/ui/jobs")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.request.get(f"{any_guarded.url}/ui/jobs?namespace=default").status == 403


def _look_at(page: Page, name: str, url: str) -> None:
    answer = page.goto(url)
    assert answer is not None
    assert answer.status == 200, f"{name}: {answer.status} for {url}"
    expect(page.get_by_role("heading", level=1)).to_have_count(1)

"""Pages that change by themselves, as a browser shows them."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from onetray.http.server import listen
from tests.browser.conftest import Site
from tests.support.browser import expect_problem
from tests.support.live import serving
from tests.support.waits import wait_until

HIDE = """isHidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def row_of(page: Page, queue: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_text(queue, exact=True))


def ready(page: Page, queue: str) -> Locator:
    return row_of(page, queue).locator("[data-label=Ready]")


def test_a_submit_is_shown_without_a_reload(page: Page, site: Site, queue: str) -> None:
    page.goto(site.url)
    expect(row_of(page, queue)).to_have_count(0)
    site.engine.submit("count", queue=queue)
    expect(ready(page, queue)).to_have_text("1")
    site.engine.claim(queue, worker="w")
    expect(ready(page, queue)).to_have_text("0")


def test_two_tabs_show_the_same_and_what_one_does_the_other_shows(page: Page, site: Site, queue: str) -> None:
    site.engine.submit("count", queue=queue)
    other = page.context.new_page()
    for tab in (page, other):
        tab.goto(f"{site.url}/ui/queues")
        expect(row_of(tab, queue)).to_be_visible()
    row_of(page, queue).get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text(f"The queue {queue} is paused")
    expect(row_of(other, queue)).to_contain_text("paused")
    row_of(other, queue).get_by_role("button", name="Resume").click()
    expect(row_of(page, queue)).not_to_contain_text("paused")


def test_a_hidden_tab_has_no_stream_and_catches_up_when_it_is_shown(page: Page, site: Site, queue: str) -> None:
    page.goto(site.url)
    wait_until(lambda: _streams(site) == 1)
    page.evaluate(HIDE, True)
    wait_until(lambda: _streams(site) == 0)
    site.engine.submit("count", queue=queue)
    page.evaluate(HIDE, False)
    expect(ready(page, queue)).to_have_text("1")
    page.goto("about:blank")
    wait_until(lambda: _streams(site) == 0)


def _streams(site: Site) -> int:
    return site.live.services.streams.open


def test_a_page_goes_on_after_its_server_was_started_again(page: Page, site: Site, queue: str) -> None:
    expect_problem(page, "net::ERR_")
    with serving(site.engine) as first:
        page.goto(first.url)
    with serving(site.engine, listening=listen("127.0.0.1", first.port)):
        site.engine.submit("count", queue=queue)
        expect(ready(page, queue)).to_have_text("1")
        page.goto("about:blank")


def test_nothing_jumps_when_a_number_grows(page: Page, any_site: Site, queue: str) -> None:
    first, second = f"{queue}-1", f"{queue}-2"
    for name in (first, second):
        any_site.engine.submit("count", queue=name)
    page.goto(any_site.url)
    boxes = [_box(row_of(page, second)), _box(page.get_by_role("heading", name="Overview")), _box(ready(page, first))]
    for _ in range(120):
        any_site.engine.submit("count", queue=first)
    expect(ready(page, first)).to_have_text("121")
    after = [_box(row_of(page, second)), _box(page.get_by_role("heading", name="Overview")), _box(ready(page, first))]
    assert after == boxes


def _box(element: Locator) -> object:
    element.wait_for()
    return element.bounding_box()


def test_focus_and_selection_stay_where_they_are(page: Page, any_site: Site, queue: str) -> None:
    any_site.engine.submit("count", queue=queue)
    page.goto(f"{any_site.url}/ui/queues")
    button = row_of(page, queue).get_by_role("button", name="Pause")
    button.focus()
    any_site.engine.submit("count", queue=queue)
    expect(ready(page, queue)).to_have_text("2")
    expect(button).to_be_focused()

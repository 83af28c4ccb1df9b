"""The dashboard by keyboard alone."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import Site


def selected(page: Page) -> list[str]:
    return page.locator("[aria-selected=true]").evaluate_all("rows => rows.map(row => row.dataset.key)")


def test_j_and_k_move_through_a_list_and_stop_at_its_ends(page: Page, any_site: Site, queue: str) -> None:
    names = [f"{queue}-{n}" for n in range(3)]
    for name in names:
        any_site.engine.submit("count", queue=name)
    page.goto(f"{any_site.url}/ui/queues")
    all_rows = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.key)")
    assert set(names) <= set(all_rows)
    page.keyboard.press("j")
    assert selected(page) == all_rows[:1]
    page.keyboard.press("j")
    assert selected(page) == all_rows[1:2]
    page.keyboard.press("k")
    page.keyboard.press("k")
    assert selected(page) == all_rows[:1]


def test_a_live_update_keeps_the_selected_row(page: Page, any_site: Site, queue: str) -> None:
    any_site.engine.submit("count", queue=queue)
    page.goto(f"{any_site.url}/ui/queues")
    page.keyboard.press("j")
    before = selected(page)
    any_site.engine.submit("count", queue=queue)
    expect(page.locator(f"tr[data-key='{queue}'] [data-label=Ready]")).to_have_text("2")
    assert selected(page) == before


def test_a_question_mark_shows_the_keys_and_escape_hides_them(page: Page, any_site: Site) -> None:
    page.goto(any_site.url)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()


def test_a_job_is_filtered_chosen_and_opened_without_a_mouse(page: Page, any_site: Site, queue: str) -> None:
    job = any_site.engine.submit("count", queue=queue)
    page.goto(f"{any_site.url}/ui/jobs")
    page.keyboard.press("/")
    page.keyboard.type(job.id)
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{job.id}")


def test_the_first_tab_stop_skips_to_the_content(page: Page, any_site: Site) -> None:
    page.goto(any_site.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()

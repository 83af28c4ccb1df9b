"""Who sees what: the login, its end, and a role that may only read."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import Guarded, Site
from tests.support.browser import axe_clean, expect_problem


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_a_wrong_token_is_refused_with_a_reason_and_the_login_stays(page: Page, any_guarded: Guarded) -> None:
    expect_problem(page, "status of 401")
    loaded = []
    page.on("load", lambda _: loaded.append(page.url))
    page.goto(any_guarded.url, wait_until="networkidle")
    assert loaded == [f"{any_guarded.url}/ui/login?next=%2F"]
    for wrong in ("ot_0123456789abcdef_nothing", '"><img src=x onerror=alert(1)>'):
        log_in(page, wrong)
        expect(page.get_by_role("alert")).to_contain_text("token")
        assert page.context.cookies() == []


def test_the_login_leads_to_the_page_that_was_asked_for_and_the_logout_ends_it(
    page: Page, any_guarded: Guarded
) -> None:
    page.goto(f"{any_guarded.url}/ui/queues")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    axe_clean(page)
    log_in(page, any_guarded.operator)
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert page.url == f"{any_guarded.url}/ui/queues"
    assert page.evaluate("document.cookie") == "", "scripts cannot read the session"
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("onetray_session", True, "Strict")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto(f"{any_guarded.url}/ui/queues")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_an_open_page_ends_with_its_token(page: Page, guarded: Guarded, queue: str) -> None:
    expect_problem(page, "status of 401")
    new = guarded.engine.tokens.create("guest", ["read"])
    guarded.engine.submit("count", queue=queue)
    page.goto(f"{guarded.url}/ui/queues")
    log_in(page, new.text)
    expect(page.get_by_text(queue)).to_be_visible()
    expect(page.get_by_title("Live", exact=True)).to_be_visible()
    guarded.engine.tokens.revoke(new.token.id)
    # Nobody touches the page.
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("Your session has ended")
    expect(page.get_by_text(queue)).to_have_count(0)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    log_in(page, guarded.reader)
    expect(page.get_by_text(queue)).to_be_visible()
    assert page.url == f"{guarded.url}/ui/queues"
    assert asked[0] == f"{guarded.url}/ui/login", "it did not try again by itself"


def test_an_open_page_of_a_session_that_is_over_asks_for_the_login(page: Page, any_guarded: Guarded) -> None:
    expect_problem(page, "status of 401")
    page.goto(f"{any_guarded.url}/ui/queues")
    log_in(page, any_guarded.operator)
    expect(page.get_by_title("Live", exact=True)).to_be_visible()
    page.context.clear_cookies()
    page.evaluate("disconnect(); connect()")
    expect(page.get_by_role("status")).to_contain_text("Your session has ended")
    page.goto(f"{any_guarded.url}/ui/queues")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_page_of_what_is_deleted_says_so(page: Page, site: Site, queue: str) -> None:
    expect_problem(page, "status of 404")
    job = site.engine.submit("count", queue=queue)
    page.goto(f"{site.url}/ui/jobs/{job.id}")
    expect(page.get_by_title("Live", exact=True)).to_be_visible()
    site.engine.cancel(job.id)
    site.engine.delete_job(job.id)
    expect(page.get_by_text("There is no job")).to_be_visible()

"""Who sees what: the login, its end, and a role that may only read."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Guarded
from tests.support.browser import axe_clean, expect_problem
from tests.support.waits import wait_until


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_the_login_page_stays_until_somebody_logs_in(page: Page, guarded: Guarded) -> None:
    loaded = []
    page.on("load", lambda _: loaded.append(page.url))
    page.goto(guarded.url, wait_until="networkidle")
    assert loaded == [f"{guarded.url}/ui/login?next=%2F"]


def test_the_login_leads_to_the_page_that_was_asked_for_and_the_logout_ends_it(page: Page, guarded: Guarded) -> None:
    page.goto(f"{guarded.url}/ui/queues")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    axe_clean(page)
    log_in(page, guarded.operator)
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert page.url == f"{guarded.url}/ui/queues"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto(f"{guarded.url}/ui/queues")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


@pytest.mark.parametrize("wrong", ["ot_0123456789abcdef_nothing", '"><img src=x onerror=alert(1)>'])
def test_a_wrong_token_is_refused_with_a_reason(page: Page, guarded: Guarded, wrong: str) -> None:
    expect_problem(page, "status of 401")
    page.goto(guarded.url)
    log_in(page, wrong)
    expect(page.get_by_role("alert")).to_contain_text("token")
    assert page.context.cookies() == []


def test_scripts_cannot_read_the_session(page: Page, guarded: Guarded) -> None:
    page.goto(guarded.url)
    log_in(page, guarded.operator)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("onetray_session", True, "Strict")


def test_a_reader_sees_no_buttons(page: Page, guarded: Guarded, queue: str) -> None:
    guarded.engine.submit("count", queue=queue)
    page.goto(f"{guarded.url}/ui/queues")
    log_in(page, guarded.reader)
    expect(page.get_by_text(queue)).to_be_visible()
    expect(page.locator("main button:visible")).to_have_count(0)


def test_a_session_ends_with_its_token(page: Page, guarded: Guarded, queue: str) -> None:
    expect_problem(page, "status of 401")
    new = guarded.engine.tokens.create("guest", ["read"])
    page.goto(guarded.url)
    log_in(page, new.text)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    guarded.engine.tokens.revoke(new.token.id)

    def is_logged_out() -> bool:
        page.reload()
        return page.get_by_role("heading", name="Log in").is_visible()

    # The server looks at the tokens every few seconds.
    wait_until(is_logged_out)

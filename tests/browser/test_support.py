"""What the tests in a browser rely on: a page with a fault fails its test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support import chromium
from tests.support.browser import (
    DARK,
    PHONE,
    axe_clean,
    contrast_clean,
    expect_problem,
    in_use,
    no_sideways_scroll,
    page_in,
    profile,
    screenshot,
)
from tests.support.chromium import CHOICE, NoBrowser, find_chromium

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src *"
BLANK = '<!doctype html><html lang="en"><title>Blank</title><link rel="icon" href="data:,"><h1>Blank</h1>'


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    """The URL of a folder with a blank page, under a strict policy."""
    (tmp_path / "blank.html").write_text(BLANK)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


FAULTS = {
    'console.error("broken on purpose")': "broken on purpose",
    'throw new Error("thrown on purpose")': "thrown on purpose",
    'fetch("http://elsewhere.example/").catch(() => 0)': "another host: http://elsewhere.example",
}


def test_a_page_with_a_fault_fails_its_test(browser: Browser, pages: str, tmp_path: Path) -> None:
    with in_use(browser), profile(browser) as own:
        for number, (script, words) in enumerate(FAULTS.items()):
            (tmp_path / f"{number}.js").write_text(script)
            (tmp_path / f"{number}.html").write_text(f'{BLANK}<script src="{number}.js"></script>')
            with pytest.raises(AssertionError, match=words):
                _look_at(own, f"{pages}/{number}.html")
        _look_at(own, f"{pages}/blank.html")


def _look_at(profile: BrowserContext, url: str) -> None:
    with page_in(profile) as page:
        page.goto(url, wait_until="networkidle")


def test_a_fault_that_a_test_is_about_is_no_fault(page: Page, pages: str) -> None:
    expect_problem(page, "status of 404")
    page.goto(f"{pages}/missing.html")


def test_axe_finds_what_a_reader_cannot_use_under_a_strict_policy(page: Page, pages: str, tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("@media (prefers-color-scheme: dark) { h1 { color: #eee; background: #fff } }")
    (tmp_path / "input.html").write_text(f'{BLANK}<link rel="stylesheet" href="style.css"><input>')
    page.goto(f"{pages}/blank.html")
    axe_clean(page)
    page.goto(f"{pages}/input.html")
    with pytest.raises(AssertionError, match="must have labels"):
        axe_clean(page)
    contrast_clean(page)
    page.emulate_media(color_scheme=DARK)
    with pytest.raises(AssertionError, match="color-contrast"):
        contrast_clean(page)


def test_a_page_wider_than_a_phone_is_found(page: Page, pages: str, tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("div { width: 600px }")
    head = '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="style.css">'
    (tmp_path / "broad.html").write_text(f"{BLANK}{head}<div>x</div>")
    page.set_viewport_size(PHONE)
    page.goto(f"{pages}/broad.html")
    with pytest.raises(AssertionError, match="wider than its window:\\n<div>"):
        no_sideways_scroll(page)


def test_a_picture_is_of_the_kind_that_its_name_says(page: Page, pages: str, tmp_path: Path) -> None:
    page.goto(f"{pages}/blank.html")
    expect(page.get_by_role("heading")).to_be_visible()
    for name, begins in (("a.png", b"\x89PNG"), ("a.webp", b"RIFF")):
        screenshot(page, tmp_path / name)
        assert (tmp_path / name).read_bytes()[:4] == begins


def test_other_tests_may_run_loops_of_their_own_beside_the_browser(browser: Browser) -> None:
    async def answer() -> int:
        return 42

    assert asyncio.run(answer()) == 42


def test_a_chosen_browser_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "/nowhere/chromium")
    with pytest.raises(NoBrowser, match=f"{CHOICE}=/nowhere/chromium is not a Chromium that runs. Name its program"):
        find_chromium()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs, on a machine of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, value in (("PATH", f"{programs}"), ("PLAYWRIGHT_BROWSERS_PATH", f"{tmp_path}")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setattr(chromium, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(chromium, "USUAL", ())
    monkeypatch.setattr(chromium, "PLAYWRIGHT", (f"{tmp_path}", f"{tmp_path}"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return programs


def _write_program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def test_a_shell_without_windows_is_preferred(path: Path) -> None:
    for name in ("chromium", "google-chrome", "chromium-headless-shell"):
        _write_program(path / name, "echo Chromium")
    assert find_chromium() == f"{path}/chromium-headless-shell"


def test_a_shell_is_installed_beside_a_whole_browser(path: Path) -> None:
    _write_program(path / "chromium", "echo Chromium")
    _write_program(path / "prepared", "echo Chromium")
    shell = path / "chromium-headless-shell"
    _write_program(path / "apt-get", f'[ "$1" = update ] || /bin/mv {path}/prepared {shell}')
    assert find_chromium() == f"{shell}"


def test_where_there_is_no_shell_a_whole_browser_is_used_and_nobody_asks_again(path: Path) -> None:
    _write_program(path / "chromium", "echo Chromium")
    _write_program(path / "apt-get", f"echo $@ >>{path}/asked; exit 1")
    assert [find_chromium() for _ in range(2)] == [f"{path}/chromium"] * 2
    assert (path / "asked").read_text().splitlines()[0] == "update -qq"
    assert (path / "asked").read_text().count("update") == 1

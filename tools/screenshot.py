"""Take pictures of a page in a real browser: wide and light, wide and dark, and on a phone.

    ./go python tools/screenshot.py URL NAME [--token TOKEN] [--folder FOLDER]

They are NAME-light.png, NAME-dark.png and NAME-phone.png in the folder, by default the current one. Faults of the page
(errors on its console, requests to other hosts, what axe finds, a page that is wider than a phone) are printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser

from tests.support.browser import (
    DARK,
    LIGHT,
    PHONE,
    WIDE,
    axe_clean,
    browser,
    in_use,
    no_sideways_scroll,
    page_alone,
    screenshot,
)  # fmt: skip

LOOKS = {"light": (WIDE, LIGHT), "dark": (WIDE, DARK), "phone": (PHONE, LIGHT)}


def main() -> None:
    asked = _arguments()
    with browser() as started, in_use(started):
        faults = [fault for look in LOOKS for fault in _take(started, look, asked)]
    print("\n".join(faults) or "no fault found")


def _take(started: Browser, look: str, asked: argparse.Namespace) -> list[str]:
    viewport, scheme = LOOKS[look]
    headers = {"Authorization": f"Bearer {asked.token}"} if asked.token else {}
    faults = []
    try:
        with page_alone(started, viewport=viewport, color_scheme=scheme, extra_http_headers=headers) as page:
            page.goto(asked.url)
            screenshot(page, asked.folder / f"{asked.name}-{look}.png")
            print(asked.folder / f"{asked.name}-{look}.png")
            for check in (axe_clean, no_sideways_scroll):
                try:
                    check(page)
                except AssertionError as e:
                    faults.append(f"{look}: {e}")
    except AssertionError as e:
        faults.append(f"{look}: {e}")
    return faults


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take pictures of a page: light, dark and on a phone.")
    parser.add_argument("url")
    parser.add_argument("name")
    parser.add_argument("--token", help="sent as a bearer token with every request")
    parser.add_argument("--folder", type=Path, default=Path())
    return parser.parse_args()


if __name__ == "__main__":
    main()

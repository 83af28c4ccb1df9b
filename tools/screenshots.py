"""Take the pictures of the dashboard for the documentation: each page in light, in dark and on a phone.

    ./go screenshots [FOLDER]

They show the jobs of a small shop (demo_shop.py), and go to docs/images. Owns which pages are shown, and their names.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser

from onetray.dashboard.pages import PAGES, load_views
from onetray.engine import Engine
from onetray.engine.statistics import StatisticsCounter
from onetray.store import open_store
from tests.support.browser import DARK, LIGHT, PHONE, browser, in_use, page_alone, screenshot
from tests.support.live import serving
from tools.demo_shop import TOKENS, Shop

ROOT = Path(__file__).parents[1]
WINDOW = {"width": 1280, "height": 860}
LOOKS = {"light": (WINDOW, LIGHT, 1.5), "dark": (WINDOW, DARK, 1.5), "phone": (PHONE, LIGHT, 2)}
SUFFIX = ".webp"
DAY_S = 86_400


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images"
    with _site() as (url, engine), browser() as started, in_use(started):
        tokens = [
            engine.tokens.create(
                name, scopes, expires_s=90 * DAY_S, groups=["finance"] if name == "ada" else (), by="ada"
            )
            for name, scopes in TOKENS.items()
        ]
        for name, path in _pages(engine):
            for look in LOOKS:
                _take(started, url + path, folder / f"dashboard-{name}-{look}{SUFFIX}", look, tokens[0].text)


@contextmanager
def _site() -> Iterator[tuple[str, Engine]]:
    with tempfile.TemporaryDirectory(prefix="onetray-shop-") as folder:
        url = f"sqlite:///{folder}/shop.db"
        Shop(url).run()
        engine = Engine(open_store(url))
        try:
            StatisticsCounter(engine.store).step()
            with serving(engine) as live:
                yield live.url, engine
        finally:
            engine.close()


def _pages(engine: Engine) -> Iterator[tuple[str, str]]:
    load_views()
    for page in PAGES.values():
        if page.nav is not None:
            yield page.name, page.path
    for name, id_ in _jobs(engine).items():
        yield name, PAGES["job"].path.format(id=id_)
    asks = next(entry for entry in engine.waiting(limit=100).entries if entry.entity == "task")
    yield "answer", PAGES["question"].path.format(id=asks.id)
    yield "submit-form", f"{PAGES['submit'].path}?flow=campaign"


def _jobs(engine: Engine) -> dict[str, str]:
    """Jobs whose pages are worth a picture."""
    flows = engine.flows(limit=100)
    dead = engine.jobs(states=["dead_lettered"], limit=1).jobs[0]
    encode = engine.jobs(kind="videos.encode", limit=1).jobs[0]
    waiting = next(flow for flow in flows if flow.state == "waiting")
    done = next(flow for flow in flows if flow.state == "succeeded")
    return {"flow": done.id, "approval": waiting.id, "failed-job": dead.id, "running-job": encode.id}


def _take(started: Browser, url: str, path: Path, look: str, token: str) -> None:
    viewport, scheme, scale = LOOKS[look]
    options = {"viewport": viewport, "color_scheme": scheme, "device_scale_factor": scale}
    with page_alone(started, **options, extra_http_headers={"Authorization": f"Bearer {token}"}) as page:
        page.goto(url)
        page.evaluate("document.fonts.ready")
        screenshot(page, path, whole=False)
    print(f"{path}  {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()

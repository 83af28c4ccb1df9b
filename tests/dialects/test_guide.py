"""The dialect of docs/dialects.md, installed as a package of its own, on a real server."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.http.dialects import load_dialect
from onetray.http.services import HttpConfig
from tests.support.engines import engine_on
from tests.support.live import Live, serving
from tests.support.tasks import UNKNOWN_ID, running

PAGE = (Path(__file__).parents[2] / "docs/dialects.md").read_text()
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    [program] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [declared] = re.findall(r'entry-points."onetray.dialects"\]\n(.*?)\n```', PAGE)
    info = tmp_path / "todo_dialect-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: todo-dialect\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[onetray.dialects]\n{declared.replace(chr(34), '')}\n")
    (tmp_path / "todo_dialect.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    monkeypatch.delitem(sys.modules, "todo_dialect", raising=False)


def call(live: Live, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(live.url + path, data, {"content-type": "application/json"})
    try:
        with OPEN.open(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_the_dialect_of_the_guide_works_as_a_package_of_its_own(installed: None) -> None:
    assert [fault for table in load_dialect("todo").states for fault in table.faults()] == []
    with (
        engine_on("sqlite://:memory:", VirtualClock()) as engine,
        serving(engine, HttpConfig(dialects=("so1", "todo"))) as live,
    ):
        status, new = call(live, "/todo", {"what": "water the plants"})
        assert (status, new["state"]) == (201, "open")
        engine.succeed(running(engine), "watered")
        assert call(live, f"/todo/{new['item']}") == (200, {"item": new["item"], "state": "done"})
        assert call(live, f"/todo/{UNKNOWN_ID}") == (404, {"sorry": f"there is no job {UNKNOWN_ID}"})
        assert call(live, "/todo/nowhere/at/all")[1].keys() == {"sorry"}
        assert call(live, "/todo/x?y=1") == (400, {"sorry": "there is no parameter 'y': this path has none"})
        assert call(live, "/todo", {"what": "x", "when": "now"})[0] == 400
        status, described = call(live, "/api/v1/openapi/todo.json")
        assert (status, set(described["paths"])) == (200, {"/todo", "/todo/{id}"})
        not_found = described["components"]["responses"]["404"]["content"]["application/json"]
        assert not_found["schema"]["required"] == ["sorry"]

"""Apps of several modules: `app.include`, and `--app` with a package."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from onetray import Onetray
from onetray.domain.errors import InvalidInput
from onetray.worker import Worker
from onetray.worker.app_loader import load_app
from tests.support.cases import each_case

WAIT_S = 60.0
Write = Callable[..., None]
APP = """
    from onetray import Onetray
    app = Onetray("sqlite:///jobs.db")
    app.include("{package}.tasks")
"""
MAIL = """
    from {package}.app import app
    from {package}.tasks.text import clean

    @app.task
    def send(to: str) -> str:
        return clean(to)

    @app.task(isolation="process")
    def send_alone(to: str) -> str:
        return clean(to)
"""
TEXT = """
    from {package}.app import app

    @app.task
    def clean(text: str) -> str:
        return text.strip()
"""


@pytest.fixture
def package(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test: modules stay imported."""
    return f"shop_{abs(hash(request.node.nodeid))}"


@pytest.fixture
def write(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**modules: str) -> None:
        for name, source in modules.items():
            path = tmp_path / package / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source.replace("{package}", package)))

    return write


@pytest.fixture
def shop(write: Write) -> None:
    """An app and its tasks, which import each other."""
    write(
        __init__="", app=APP, tasks__in____init__="", tasks__in__mail=MAIL, tasks__in__text=TEXT,
        tasks__in____main__="raise SystemExit('this is a program')",
    )  # fmt: skip


def test_a_worker_runs_the_tasks_of_included_modules(shop: None, package: str, tmp_path: Path) -> None:
    app = load_app(f"{package}.app:app")
    assert sorted(app.tasks) == ["clean", "send", "send_alone"]
    with app:
        jobs = [app.submit(kind, {"to": " ann "}) for kind in ("send", "send_alone")]
        with Worker(app, path=package):
            assert [job.result(WAIT_S) for job in jobs] == ["ann"] * 2


@pytest.mark.parametrize("first", ["app", "tasks", "tasks.mail", "tasks.text"])
def test_the_modules_may_be_imported_in_any_order(shop: None, package: str, tmp_path: Path, first: str) -> None:
    program = (
        f"import {package}.{first}\nfrom {package}.app import app\napp.load_included()\napp.load_included()\n"
        "print(*sorted(app.tasks))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "clean send send_alone\n", done.stderr


def test_nothing_is_imported_before_it_is_needed(shop: None, package: str) -> None:
    __import__(f"{package}.app")
    app: Onetray = sys.modules[f"{package}.app"].app
    assert app.tasks == {}
    with app:
        assert app.submit("send", {"to": "ann"}).state == "queued"
    assert "send" in app.tasks


def test_a_package_is_searched_for_its_only_app(shop: None, package: str) -> None:
    app = load_app(package)
    assert app is sys.modules[f"{package}.app"].app
    assert "send" in app.tasks


def test_several_apps_are_listed(write: Write, package: str) -> None:
    one = "from onetray import Onetray\n{name} = Onetray()"
    write(
        __init__="",
        admin=one.replace("{name}", "boss"),
        shop=one.replace("{name}", "app"),
        other="from .shop import app",
    )
    with pytest.raises(InvalidInput, match=rf"has 2 apps: write one of {package}.admin:boss, {package}.other:app"):
        load_app(package)


def test_a_package_without_an_app_and_a_wrong_name_say_what_to_do(write: Write, package: str) -> None:
    write(__init__="", app="from onetray import Onetray\nshop = Onetray()", tasks="x = 1")
    with pytest.raises(InvalidInput, match=r"has no app: create one"):
        load_app(f"{package}.tasks")
    with pytest.raises(InvalidInput, match=r"has no Onetray named 'app': it has shop"):
        load_app(f"{package}.app:app")
    with pytest.raises(InvalidInput, match=r"no Onetray named 'x': write module:app"):
        load_app(f"{package}.tasks:x")


@each_case("name", ["", ".tasks", "shop/tasks", "shop.tasks:app", "shop..tasks", "1", None, 5])
def test_a_wrong_name_of_a_module_is_rejected_at_once(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not the full name of a module"):
        Onetray().include(name)


def test_a_missing_module_is_named_each_time(app: Onetray) -> None:
    app.include("no_such_module.tasks")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"there is no module 'no_such_module.tasks' to include"):
            app.load_included()


def test_an_error_in_an_included_module_is_raised_as_it_is(write: Write, package: str, app: Onetray) -> None:
    write(__init__="", tasks="import no_such_library")
    app.include(f"{package}.tasks")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        app.load_included()


def test_an_app_whose_module_runs_as_the_program_says_that_it_is_there_twice(
    write: Write, package: str, tmp_path: Path
) -> None:
    write(__init__="", app=APP + "    if __name__ == '__main__':\n        app.worker().run()\n", tasks=TEXT)
    done = subprocess.run(
        [sys.executable, "-m", f"{package}.app"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"{package}.tasks declares its tasks on another app, {package}.tasks:app" in done.stderr
    assert "create the app in a module of its own" in done.stderr


def test_an_app_without_tasks_names_include(app: Onetray) -> None:
    with pytest.raises(InvalidInput, match=r"app.include"):
        app.worker().start()


@pytest.mark.parametrize(
    ("code", "told", "frames"),
    [
        ("from onetray import Onetray\napp = Onetray()\n\napp.task(retires=3)\n",
         "InvalidInput: unknown setting 'retires': did you mean 'retries'", ["line 4, in <module>"]),
        ("import no_such_package\n", "ModuleNotFoundError: .* Install no_such_package", ["line 1, in <module>"]),
        ("def f(:\n", "SyntaxError", ["line 1", "def f(:"]),
        ("def f():\n    raise KeyError('x')\n\nf()\n", "KeyError: 'x'", ["line 4, in <module>", "line 2, in f"]),
    ],
    ids=["a wrong setting", "a missing package", "syntax", "two frames"],
)  # fmt: skip
def test_code_that_cannot_be_imported_is_told_by_its_own_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str, frames: list[str]
) -> None:
    name = f"broken_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=f"^the app {name} cannot be imported: {told}") as raised:
        load_app(name)
    trace = raised.value.facts["traceback"]
    assert [line for line in frames if line not in trace] == []
    assert trace.count("File ") == sum("line " in line for line in frames)
    assert "importlib" not in trace

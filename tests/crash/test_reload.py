"""`onetray worker --reload`: a change of the app's source restarts the worker; broken code does not end it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import onetray
from onetray import Onetray
from onetray.worker import reloader
from tests.support.fleet import wait_until
from tests.support.workers import READY

WAIT_S = 60.0
APP = "from onetray import Onetray\napp = Onetray()\napp.include('shop.tasks')\n"
TASKS = """from shop.app import app

@app.task
def word() -> str:
    return {word!r}

@app.task(isolation="process")
def word_alone() -> str:
    return {word!r}
"""


class Shop:
    """The source of an app, and a worker that watches it."""

    def __init__(self, folder: Path, url: str) -> None:
        self._tasks, self._log = folder / "shop/tasks/words.py", folder / "log"
        self._tasks.parent.mkdir(parents=True)
        for path in (folder / "shop", folder / "shop/tasks"):
            (path / "__init__.py").touch()
        (folder / "shop/app.py").write_text(APP)
        self.write(TASKS.format(word="one"))
        path = str(Path(onetray.__file__).parents[1])
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onetray", "worker", "--app", "shop", "--database", url, "--reload"],
                cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.app = Onetray(url)

    def write(self, source: str) -> None:
        """Replace the source at once, as editors do."""
        new = self._tasks.with_suffix(".new")
        new.write_text(source)
        new.replace(self._tasks)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until_logged(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(words) >= times or self.process.poll() is not None)
        assert self.log.count(words) >= times, self.log

    def words(self) -> list[str]:
        """The results of both tasks."""
        ids = [str(self.app.engine.submit(kind, {}).id) for kind in ("word", "word_alone")]
        return [self.app.job(id_).result(WAIT_S) for id_ in ids]


@contextmanager
def shop_in(folder: Path, url: str) -> Iterator[Shop]:
    shop = Shop(folder, url)
    try:
        yield shop
    finally:
        shop.process.kill()
        shop.process.wait(60)
        shop.app.close()


def test_a_change_restarts_the_worker_and_broken_code_is_waited_out(database_url: str, tmp_path: Path) -> None:
    with shop_in(tmp_path / "project", database_url) as shop:
        shop.until_logged(READY)
        assert "--reload is for development" in shop.log
        assert shop.words() == ["one"] * 2
        shop.write(TASKS.format(word="two"))
        shop.until_logged(READY, 2)
        assert "changed: shop/tasks/words.py; the worker restarts" in shop.log
        assert shop.words() == ["two"] * 2
        shop.write("def broken(:\n")
        shop.until_logged("words.py cannot be compiled")
        assert shop.words() == ["two"] * 2, "it goes on with the code that it has"
        shop.write("raise RuntimeError('not today')\n")
        shop.until_logged("RuntimeError: not today. Correct it")
        assert "the worker starts when a file has changed" in shop.log
        assert "importlib" not in shop.log
        shop.write(TASKS.format(word="three"))
        shop.until_logged(READY, 3)
        assert shop.words() == ["three"] * 2
        shop.process.send_signal(signal.SIGTERM)
        assert shop.process.wait(60) == 0
        assert len({w.name for w in shop.app.engine.workers()}) == 0


def test_a_wrong_app_and_several_processes_are_errors(tmp_path: Path) -> None:
    for words, message in (
        (["--app", "no_such_shop"], "there is no module 'no_such_shop'"),
        (["--app", "no_such_shop", "--processes", "2"], "--reload works with one process, not 2"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "onetray", "worker", "--reload", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert message in done.stderr


def test_a_file_that_is_missing_or_still_being_written_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop.py"
    path.write_text("x = 1")
    watched = reloader.Reloader(more=[path])
    assert path not in watched.changed()
    path.unlink()
    assert path not in watched.changed()
    path.write_text("x = 22")
    stamps = itertools.count()
    with monkeypatch.context() as growing:
        growing.setattr(reloader, "_stamp", lambda _: (next(stamps), 0))
        assert watched.changed() == []
    assert path in watched.changed()


def test_a_change_of_the_same_size_in_the_same_second_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes bytecode for current that was compiled from a source of this second and size."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    path = tmp_path / "shop.py"
    prints = [sys.executable, "-c", "import shop; print(shop.word)"]
    path.write_text("word = 'one'")
    os.utime(path, ns=(0, 10**18))
    watched = reloader.Reloader(more=[path])
    assert subprocess.run(prints, capture_output=True, text=True, check=True).stdout == "one\n"
    path.write_text("word = 'two'")
    os.utime(path, ns=(0, 10**18 + 1))
    monkeypatch.setattr(reloader, "POLL_S", 0.0)
    watched.watch()
    assert subprocess.run(prints, capture_output=True, text=True, check=True).stdout == "two\n"


def test_only_source_below_the_working_directory_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["shop/app.py", ".venv/lib/x.py", "lib/site-packages/y.py", "shop/data.txt"]
    found = reloader._ours([*(str(tmp_path / name) for name in names), "/usr/lib/z.py", None])
    assert found == {tmp_path / "shop/app.py"}

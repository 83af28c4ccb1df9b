"""Which database and namespace are used: one rule for programs, workers, servers and commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from onetray import Onetray
from onetray.config import EngineConfig, hide_password
from onetray.domain.errors import InvalidInput
from onetray.engine import Engine
from tests.cli.run import SCRIPT, called, every_command, one_line, onetray, script, told
from tests.support.engines import engine_on, migrated_sqlite, open_migrated
from tests.support.fleet import wait_until
from tests.support.prepared import PreparedProcess
from tests.support.tasks import UNKNOWN_ID, submit

SHOP = """
from onetray import Onetray
print("a line of the app")
app = Onetray("sqlite:///shop.db", namespace="eu")

@app.task
def mail(to: str) -> None: ...
"""
OPENS_NONE = ("completion", "config", "demo", "lifecycle")
"""Commands without a database of the user's."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own with an app, and no settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("ONETRAY_DATABASE", "ONETRAY_NAMESPACE", "ONETRAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def make(here: Path, name: str, namespace: str = "default", kind: str = "mail") -> str:
    """A database with one job; returns the job's id."""
    engine = open_migrated(f"sqlite:///{here / name}")
    id_ = submit(engine, kind, namespace=namespace)
    engine.close()
    return id_


def listed(*words: str, here: Path, **environment: str) -> list[str]:
    done = onetray("jobs", "list", *words, cwd=here, **environment)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^[\da-f-]{36}", done.stdout, re.MULTILINE)


def test_a_program_reads_the_environment_then_the_file_then_takes_the_default(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (Onetray().database, Onetray().namespace) == ("sqlite:///onetray.db", "default")
    (here / "onetray.toml").write_text('database = "sqlite:///file.db"\nnamespace = "file"\n[engine]\nchunk = 7')
    assert (Onetray().database, Onetray().namespace) == ("sqlite:///file.db", "file")
    monkeypatch.setenv("ONETRAY_DATABASE", "sqlite:///env.db")
    monkeypatch.setenv("ONETRAY_NAMESPACE", "env")
    assert (Onetray().database, Onetray().namespace) == ("sqlite:///env.db", "env")
    own = Onetray("sqlite:///own.db", namespace="own")
    assert (own.database, own.namespace) == ("sqlite:///own.db", "own")
    with own:
        assert own.engine.config.chunk == 7
    with Onetray("sqlite:///own.db", config=EngineConfig(chunk=8)) as app:
        assert app.engine.config.chunk == 8


def test_a_program_refuses_a_file_that_is_wrong(here: Path) -> None:
    (here / "onetray.toml").write_text('databse = "sqlite:///file.db"')
    with pytest.raises(InvalidInput, match="did you mean 'database'"):
        Onetray()


def test_a_command_asks_the_option_the_environment_the_file_the_app(here: Path) -> None:
    ids = {name: make(here, f"{name}.db") for name in ("option", "env", "file")} | {"app": make(here, "shop.db", "eu")}
    assert listed("--app", "shop:app", here=here) == [ids["app"]]
    (here / "onetray.toml").write_text('app = "shop"')
    assert listed(here=here) == [ids["app"]], "the setting app counts as --app does"
    (here / "onetray.toml").write_text('database = "sqlite:///file.db"\nnamespace = "default"')
    assert listed("--app", "shop", here=here) == [ids["file"]]
    env = {"ONETRAY_DATABASE": "sqlite:///env.db"}
    assert listed("--app", "shop", here=here, **env) == [ids["env"]]
    assert listed("--app", "shop", "--database", "sqlite:///option.db", here=here, **env) == [ids["option"]]


def test_the_namespace_is_found_likewise(here: Path) -> None:
    engine = open_migrated(f"sqlite:///{here / 'shop.db'}")
    ids = {name: submit(engine, namespace=name) for name in ("default", "eu", "env", "file", "option")}
    engine.close()
    at = ("--database", "sqlite:///shop.db")
    assert listed(*at, here=here) == [ids["default"]]
    assert listed(*at, "--app", "shop", here=here) == [ids["eu"]]
    (here / "onetray.toml").write_text('namespace = "file"')
    assert listed(*at, "--app", "shop", here=here) == [ids["file"]]
    assert listed(*at, "--app", "shop", here=here, ONETRAY_NAMESPACE="env") == [ids["env"]]
    assert listed(*at, "--namespace", "option", here=here, ONETRAY_NAMESPACE="env") == [ids["option"]]


def test_what_an_app_prints_does_not_stand_in_the_output(here: Path) -> None:
    make(here, "shop.db", "eu")
    done = onetray("jobs", "list", "--app", "shop", "--json", cwd=here)
    assert done.stdout.startswith("{")


def test_an_app_that_cannot_be_imported_is_told_by_its_own_frames_and_what_to_do(here: Path) -> None:
    (here / "shop.py").write_text("1 / 0")
    text = f'  File "{here}/shop.py", line 1, in <module>\n    1 / 0\n'
    for words, remedy in (
        (["jobs", "list", "--app", "shop"], "--app module:app; to do without: --database"),
        (["worker", "--app", "shop"], "Correct it, or name another app: --app module:app"),
    ):
        done = onetray(*words, cwd=here)
        frames, _, last = done.stderr.partition("onetray: ")
        # Since Python 3.13 the line below marks the place.
        assert "".join(line for line in frames.splitlines(True) if set(line) - set(" ~^\n")) == text
        assert last.startswith("the app shop cannot be imported: ZeroDivisionError: division by zero. ")
        assert (done.returncode, last.endswith(f"{remedy}\n")) == (2, True), last
    make(here, "a.db")
    assert len(listed("--app", "shop", "--database", "sqlite:///a.db", "--namespace", "default", here=here)) == 1


def test_every_command_that_opens_a_database_has_the_same_options() -> None:
    for words in every_command():
        if words[0] in OPENS_NONE or (len(words) == 1 and "COMMAND" in called(*words, "--help").stdout):
            continue
        help_ = called(*words, "--help").stdout
        assert all(option in help_ for option in ("--database URL", "--app MODULE:APP", "--verbose")), words


def test_the_database_is_named_on_stderr_if_asked(here: Path) -> None:
    make(here, "shop.db", "eu")
    done = onetray("jobs", "list", "--app", "shop", "-v", "--json", cwd=here)
    assert f"database sqlite:///{here}/shop.db, from the app shop\n" in done.stderr
    assert "shop.db" not in done.stdout
    quiet = onetray("jobs", "list", "--database", "sqlite:///shop.db", cwd=here)
    assert "shop.db" not in quiet.stderr


def test_what_is_not_there_names_where_it_was_searched(here: Path) -> None:
    make(here, "a.db")
    done = onetray("jobs", "show", UNKNOWN_ID, cwd=here, ONETRAY_DATABASE="sqlite:///a.db")
    assert done.returncode == 4
    assert f"(database sqlite:///{here}/a.db, from ONETRAY_DATABASE)" in done.stderr


def test_a_worker_whose_code_names_another_database_says_so(here: Path) -> None:
    (here / "shop.py").write_text(SHOP + "\n@app.lifespan\ndef stop():\n    raise SystemExit(0)\n    yield\n")
    done = onetray("worker", "--app", "shop", cwd=here, ONETRAY_DATABASE="sqlite:///env.db")
    assert "names the database sqlite:///shop.db, but ONETRAY_DATABASE says sqlite:///env.db" in done.stderr
    assert (here / "env.db").exists()
    assert not (here / "shop.db").exists()
    silent = onetray("worker", "--app", "shop", "--database", "sqlite:///mine.db", cwd=here)
    assert "names the database" not in silent.stderr
    assert (here / "mine.db").exists()
    onetray("worker", "--app", "shop", cwd=here)
    assert (here / "shop.db").exists()


PARENT = """
from onetray import Onetray
app = Onetray("sqlite:///nowhere/not.db")

@app.task
def child() -> None: ...

@app.task(isolation="process")
def parent() -> None:
    child.submit()
"""


def test_a_handler_in_a_process_uses_the_database_and_the_namespace_of_its_worker(here: Path) -> None:
    (here / "family.py").write_text(PARENT)
    url = migrated_sqlite(here)
    words = ("worker", "--app", "family", "--database", url, "--namespace", "eu")
    with engine_on(url) as engine:
        parent = submit(engine, "parent", namespace="eu")
        worker = PreparedProcess(*SCRIPT, *words, cwd=here, stderr=Path(os.devnull))
        try:
            wait_until(lambda: engine.task(parent, namespace="eu").state == "succeeded", 60)
            assert [job.kind for job in engine.jobs(kind="child", namespace="eu").jobs] == ["child"]
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)


def test_on_a_terminal_the_database_is_named(here: Path) -> None:
    make(here, "a.db")
    ours, theirs = os.openpty()
    command = script("jobs", "list", "--database", "sqlite:///a.db", "--json")
    done = subprocess.run(command, cwd=here, stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=60)
    os.close(theirs)
    assert f"database sqlite:///{here}/a.db, from --database".encode() in os.read(ours, 10_000)
    os.close(ours)
    assert done.stdout.startswith(b"{")


def test_submit_creates_no_database(here: Path) -> None:
    done = onetray("submit", "mail", "to=ann", cwd=here)
    assert (done.returncode, one_line(done.stderr)) == (3, True)
    assert f"onetray migrate --database sqlite:///{here}/onetray.db" in done.stderr
    assert [path.name for path in here.glob("*.db*")] == []


def test_submit_refuses_a_kind_that_nobody_knows(database_url: str) -> None:
    at = ("--database", database_url)
    empty = called("submit", "mail", *at)
    assert (empty.exit_code, "no kind is known yet" in empty.stderr) == (2, True)
    with Onetray(database_url) as app:
        app.task(kind="send_mail")(lambda: None)
        app.engine.declare(app.policies)
    typo = called("submit", "send_mial", *at)
    assert (typo.exit_code, one_line(typo.stderr)) == (2, True)
    assert "did you mean 'send_mail'?" in typo.stderr
    assert "--unknown-kind" in typo.stderr
    assert told("jobs", "list", *at)["jobs"] == []
    assert called("submit", "send_mail", *at).exit_code == 0
    assert called("submit", "other", *at, "--unknown-kind").exit_code == 0
    assert called("submit", "send_mail", *at, "--namespace", "elsewhere").exit_code == 2


def test_submit_asks_the_app_whether_it_knows_the_kind(here: Path) -> None:
    url = migrated_sqlite(here)
    words = ("--app", "shop", "--database", url, "--namespace", "default")
    done = onetray("submit", "mial", *words, cwd=here)
    assert (done.returncode, "did you mean 'mail'?" in done.stderr) == (2, True)
    assert onetray("submit", "mial", *words, "--unknown-kind", cwd=here).returncode == 0
    assert onetray("submit", "mail", "to=ann", *words, cwd=here).returncode == 0
    with Engine.open(url) as engine:
        assert sorted(job.kind for job in engine.jobs().jobs) == ["mail", "mial"]


@pytest.mark.parametrize(
    ("url", "shown", "bare"),
    [
        ("postgresql://ann:s3@h/jobs", "postgresql://ann:***@h/jobs", "postgresql://ann@h/jobs"),
        ("postgresql://ann:a@b:c@h:5/jobs", "postgresql://ann:***@h:5/jobs", "postgresql://ann@h:5/jobs"),
        ("postgresql://a:b/c@h/jobs", "postgresql://a:***@h/jobs", "postgresql://a@h/jobs"),
        ("postgresql://h/j?password=x", "postgresql://h/j?password=***", "postgresql://h/j"),
        ("postgresql://h/j?a=1&password=x&b=2", "postgresql://h/j?a=1&password=***&b=2", "postgresql://h/j?a=1&b=2"),
        ("postgresql://h:5432/jobs", "postgresql://h:5432/jobs", "postgresql://h:5432/jobs"),
        ("http://u:p@h:8321", "http://u:***@h:8321", "http://u@h:8321"),
        ("sqlite:////a:b@c.db", "sqlite:////a:b@c.db", "sqlite:////a:b@c.db"),
    ],
)
def test_a_password_is_hidden(url: str, shown: str, bare: str) -> None:
    assert (hide_password(url), hide_password(url, mark="")) == (shown, bare)

"""`onetray completion`: what a shell needs to complete commands."""

import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.cli.run import called, onetray
from tests.support.tasks import submit


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    done = called("completion", shell)
    assert done.exit_code == 0
    assert "_ONETRAY_COMPLETE" in done.stdout


def test_what_the_script_asks_for_is_answered() -> None:
    done = onetray(_ONETRAY_COMPLETE="bash_complete", COMP_WORDS="onetray jobs can", COMP_CWORD="2")
    assert done.stdout.split() == ["plain,cancel"]


def test_the_bash_script_is_sound() -> None:
    script = called("completion", "bash").stdout
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def completed(*words: str, cwd: Path | None = None, **environment: str) -> list[str]:
    """What bash is offered for the last word."""
    done = onetray(
        _ONETRAY_COMPLETE="bash_complete", COMP_WORDS=" ".join(["onetray", *words]), COMP_CWORD=str(len(words)),
        cwd=cwd, **{"_ONETRAY_COMPLETE_S": "60", **environment},
    )  # fmt: skip
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def test_ids_queues_and_kinds_come_from_the_database(place: Place) -> None:
    task, flow = submit(place.engine, "mail", queue="fast"), place.flow()
    dead = place.dead("sync")
    at = {"ONETRAY_DATABASE": place.url}
    assert set(completed("jobs", "cancel", task[:8], **at)) >= {task, flow}
    assert completed("jobs", "show", task, **at) == [task]
    assert completed("tasks", "list", flow, **at) == [flow]
    assert completed("dead", "show", dead[:6], **at) == [dead]
    assert completed("queues", "pause", "f", **at) == ["fast"]
    assert completed("jobs", "list", "--queue", "f", **at) == ["fast"]
    assert completed("submit", "ma", **at) == ["mail"]
    assert completed("jobs", "cancel", "--all", "--kind", "sy", **at) == ["sync"]
    assert completed("jobs", "list", "--state", "dead", **at) == ["dead_lettered"]
    assert completed("submit", "--database", place.url, "ma") == ["mail"]
    assert completed("submit", "--namespace", "other", "ma", **at) == []


def test_the_app_names_the_database_and_may_print(place: Place, tmp_path: Path) -> None:
    submit(place.engine, "mail")
    (tmp_path / "shop.py").write_text(f"from onetray import Onetray\nprint('hello')\napp = Onetray({place.url!r})")
    assert completed("submit", "--app", "shop", "ma", cwd=tmp_path) == ["mail"]


def test_a_database_that_is_away_completes_nothing_and_says_nothing(tmp_path: Path) -> None:
    assert completed("jobs", "show", "01", cwd=tmp_path) == []
    assert completed("jobs", "show", "01", ONETRAY_DATABASE="postgresql://127.0.0.1:1/jobs") == []
    assert completed("jobs", "show", "01", ONETRAY_DATABASE="nonsense") == []
    assert completed("submit", "--app", "no.such.app", "01", cwd=tmp_path) == []
    (tmp_path / "onetray.toml").write_text("not toml")
    assert completed("jobs", "show", "01", cwd=tmp_path) == []
    assert list(tmp_path.glob("*.db")) == []


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/jobs"
        assert completed("jobs", "show", "01", ONETRAY_DATABASE=url, _ONETRAY_COMPLETE_S="1") == []
        assert time.monotonic() - began < 10, "without the limit it would wait for 15 s"

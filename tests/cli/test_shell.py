"""`onetray shell`: Python with the app and its engine."""

import subprocess
from pathlib import Path

from tests.cli.conftest import Place
from tests.cli.run import script
from tests.support.tasks import submit

SHOP = "from onetray import Onetray\napp = Onetray()\n\n@app.task\ndef mail(to: str) -> None: ...\n"


def shell(here: Path, statements: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        script("shell", *words), input=statements, cwd=here, capture_output=True, text=True, check=False, timeout=120
    )


def test_app_engine_and_helpers_are_there(place: Place, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    id_ = submit(place.engine)
    statements = (
        f"print(job('{id_[-8:]}').state, [j.id for j in jobs(kind='mail')])\n"
        "print(sorted(app.tasks), engine.queues(namespace=namespace)[0].ready)\n"
        "new = mail.submit(to='ann')\n"
        "print(app)\n"
        f"print([r.code for r in explain('{id_}')])\n"
    )
    done = shell(tmp_path, statements, "--app", "shop", *place.at)
    assert done.returncode == 0, done.stderr
    assert f"queued ['{id_}']" in done.stdout
    assert "['mail'] 1" in done.stdout
    assert done.stderr.count(f"database {place.url}, from --database") == 1
    assert "mail           its tasks, as in mail.submit(…)" in done.stderr
    assert f"<app {place.url}; namespace default; tasks: mail>" in done.stdout
    assert len(place.engine.jobs().jobs) == 2


def test_without_an_app_there_is_one_without_tasks(place: Place, tmp_path: Path) -> None:
    id_ = submit(place.engine)
    done = shell(tmp_path, f"print(app.tasks, app.job('{id_}').id)\n", *place.at)
    assert f"{{}} {id_}" in done.stdout


def test_a_database_that_is_missing_is_not_created(tmp_path: Path) -> None:
    done = shell(tmp_path, "", "--database", "sqlite:///none.db")
    assert done.returncode == 3
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_shell_is_only_that_error(place: Place, tmp_path: Path) -> None:
    done = shell(tmp_path, "1 / 0\n", *place.at)
    assert "ZeroDivisionError" in done.stderr
    assert "IPython" not in done.stderr
    assert "During handling" not in done.stderr

"""What the commands print of jobs whose kinds redact."""

from __future__ import annotations

import pytest

from onetray.cli.wait import wait_for_end
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.redaction import job_secrets
from tests.cli.conftest import Place
from tests.cli.run import called
from tests.support.tasks import take

SECRET = "correct-horse"
REDACT = Policy(max_attempts=1, redact=("password",))


def failed(place: Place) -> str:
    place.engine.configure("login", REDACT)
    id_ = str(place.engine.submit("login", {"user": "ann", "password": SECRET}).id)
    job = take(place.engine, kinds=("login",))
    place.engine.log(job, ("info", f"with {SECRET}", {"tried": SECRET}))
    place.engine.fail(job, f"{SECRET} was refused")
    return id_


def test_no_command_prints_a_secret_of_a_task(place: Place) -> None:
    id_ = failed(place)
    for words in (
        ("jobs", "show", id_), ("jobs", "events", id_), ("jobs", "logs", id_), ("jobs", "explain", id_),
        ("jobs", "list"), ("tasks", "show", id_), ("dead", "show", id_), ("dead", "list"), ("dead", "list", "--each"),
    ):  # fmt: skip
        for as_json in ((), ("--json",)):
            done = called(*words, *place.at, *as_json)
            assert done.exit_code == 0, done.stderr
            assert SECRET not in done.output, (words, as_json)
    assert '"password": "***"' in called("jobs", "show", id_, *place.at).stdout
    assert "with ***" in called("jobs", "logs", id_, *place.at).stdout


def test_nor_of_a_flow(place: Place) -> None:
    task = TaskSpec("login", {"password": SECRET}, policy=REDACT)
    flow = place.engine.submit_flow("in", [StageSpec("login", [task], data=SECRET)], data={"told": SECRET}).id
    place.engine.fail(take(place.engine, kinds=("login",)), f"{SECRET} was refused")
    for words in (
        ("jobs", "show", flow), ("jobs", "events", flow), ("jobs", "tree", flow), ("stages", "list", flow),
        ("tasks", "list", flow),
    ):  # fmt: skip
        for as_json in ((), ("--json",)):
            done = called(*words, *place.at, *as_json)
            assert done.exit_code == 0, done.stderr
            assert SECRET not in done.output, (words, as_json)


def test_nor_when_there_are_too_many_to_look_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_secrets, "MAX_TASKS", 1)
    tasks = [TaskSpec("login", {"password": SECRET}, policy=REDACT) for _ in range(2)]
    flow = place.engine.submit_flow("in", [StageSpec("login", tasks)], data={"told": SECRET}).id
    id_ = take(place.engine, kinds=("login",))
    place.engine.fail(id_, f"{SECRET} was refused")
    for words in (("tasks", "list", flow), ("jobs", "show", flow), ("jobs", "tree", flow), ("tasks", "show", id_.id)):
        done = called(*words, *place.at)
        assert done.exit_code == 0, done.output
        assert "***" in done.output or words[1] == "tree"
        assert SECRET not in done.output


@pytest.mark.parametrize("as_json", [False, True])
def test_nor_when_it_is_followed(place: Place, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    assert not wait_for_end(place.engine.redacted, failed(place), "task", "default", 5.0, as_json)
    printed = capsys.readouterr().out
    assert "***" in printed
    assert SECRET not in printed

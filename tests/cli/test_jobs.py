"""`onetray jobs`: what is listed, shown and explained, and what may be done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from onetray.cli.options import confirm
from onetray.domain.commands import Submit
from onetray.domain.errors import NotFound
from onetray.domain.verbs import SubmitMany
from onetray.engine.flow_api import FlowApi
from onetray.engine.flows import advance
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, onetray, told
from tests.support.listening import register
from tests.support.tasks import UNKNOWN_ID, in_state, running, submit, take


def test_a_piped_list_has_one_line_for_each_job_and_no_colour(place: Place) -> None:
    task, flow = submit(place.engine), place.flow()
    done = onetray("jobs", "list", *place.at)
    assert done.returncode == 0, done.stderr
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["id", "job", "state", "queue", "progress", "submitted"]
    assert first.startswith(f"{flow}  report  pending")
    assert second.startswith(f"{task}  mail    queued")
    assert re.search(r"attempt 0/3 +\d+ s ago, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", second)
    assert "\x1b" not in done.stdout


def test_a_list_says_how_far_each_job_is(place: Place) -> None:
    engine, waiting, flow = place.engine, submit(place.engine), place.flow()
    halfway, done = submit(engine, queue="own"), submit(engine, queue="done")
    held = running(engine, queue="own")
    engine.say_progress(held, 1, 2)
    engine.succeed(take(engine, queue="done"))
    engine.succeed(take(engine, kinds=("fetch",)))
    shown = {line.split()[0]: line for line in called("jobs", "list", *place.at).stdout.splitlines()}
    progress = {
        waiting: "  attempt 0/3",
        flow: "25 %, stage 0/2",
        halfway: "50 %, attempt 1/3",
        done: "100 %, attempt 1/3",
    }
    assert all(text in shown[id_] for id_, text in progress.items())
    listed = {job["id"]: job["percentage"] for job in told("jobs", "list", *place.at)["jobs"]}
    assert listed == {waiting: None, flow: 25, halfway: 50, done: 100}


def test_a_list_of_an_older_server_has_no_percentages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise NotFound("there is nothing at /api/v1/reads/percentages")

    submit(place.engine)
    monkeypatch.setattr(FlowApi.percentages, "function", absent)
    assert "attempt 0/3" in called("jobs", "list", *place.at).stdout


def test_a_task_is_shown_with_what_it_reported(place: Place) -> None:
    task = submit(place.engine)
    assert "progress" not in called("jobs", "show", task, *place.at).stdout
    held = running(place.engine)
    place.engine.say_progress(held, 2, 8, "page 2")
    for command in ("jobs", "tasks"):
        assert re.search("progress +25 %, 2 of 8: page 2", called(command, "show", task, *place.at).stdout)
        progress = told(command, "show", task, *place.at)["progress"]
        assert (progress["percentage"], progress["reported"]["message"]) == (25, "page 2")


def test_a_failed_flow_shows_what_was_done(place: Place) -> None:
    flow = place.flow()
    place.engine.succeed(take(place.engine))
    place.engine.fail(take(place.engine), "no", retryable=False)
    text = called("jobs", "show", flow, *place.at).stdout
    assert re.search("progress +25 %", text)
    assert re.search("1 +fetch +failed +1 of 2", text)
    assert re.search("2 +check +skipped +0 of 1", text)


def test_a_narrow_terminal_shortens_everything_but_ids(place: Place) -> None:
    task = submit(place.engine, "a-kind-with-a-name-that-goes-on-and-on")
    done = called("jobs", "list", *place.at, COLUMNS="80")
    head, line = done.stdout.splitlines()
    assert line.startswith(task)
    assert "…" in line
    assert max(len(head), len(line)) <= 80
    assert task in called("jobs", "list", *place.at, COLUMNS="20").stdout


def test_a_name_cannot_break_its_line_or_talk_to_the_terminal(place: Place) -> None:
    submit(place.engine, "two\nlines\x1b[31m")
    lines = called("jobs", "list", *place.at).stdout.splitlines()
    assert len(lines) == 2
    assert "two lines [31m" in lines[1]


def test_filters_leave_what_fits(place: Place) -> None:
    first = submit(place.engine, correlation_id="order-7")
    done = in_state(place.engine, "succeeded", queue="fast").id

    def ids(*words: str) -> list[str]:
        return [job["id"] for job in told("jobs", "list", *place.at, *words)["jobs"]]

    assert ids("--state", "succeeded") == [done]
    assert ids("--state", "succeeded", "--state", "queued") == [done, first]
    assert ids("--queue", "fast") == [done]
    assert ids("--kind", "nothing") == []
    assert ids("--correlation", "order-7") == [first]
    assert ids("--since", "2h") == [done, first]
    assert ids("--since", "2h", "--until", "1h") == []
    assert ids("--entity", "task", "--since", "2h", "--priority", "0") == [done, first]
    assert ids("--namespace", "other") == []


def test_jobs_are_found_by_their_labels(place: Place) -> None:
    task = submit(place.engine, labels={"team": "a=b", "tier": "1"})
    submit(place.engine)
    found = told("jobs", "list", *place.at, "--label", "team=a=b", "--label", "tier=1")
    assert [job["id"] for job in found["jobs"]] == [task]
    assert "write NAME=VALUE" in called("jobs", "list", *place.at, "--label", "team").stderr


def test_pages_go_on_after_the_last_job_of_the_page_before(place: Place) -> None:
    made = [submit(place.engine) for _ in range(3)]
    page = told("jobs", "list", *place.at, "--limit", "2")
    assert [job["id"] for job in page["jobs"]] == [made[2], made[1]]
    assert page["before"] == made[1]
    last = told("jobs", "list", *place.at, "--before", page["before"])
    assert ([job["id"] for job in last["jobs"]], last["before"]) == ([made[0]], None)
    assert f"--before {made[1]}" in called("jobs", "list", *place.at, "--limit", "2").stderr
    numbered = told("jobs", "list", *place.at, "--limit", "2", "--page", "2", "--total")
    assert (numbered["jobs"], numbered["total"]) == (last["jobs"], 3)
    assert "3 jobs in total" in called("jobs", "list", *place.at, "--total").stderr
    assert called("jobs", "list", *place.at, "--page", "0").exit_code == 2


def test_times_are_utc_for_programs_and_payloads_stay_as_they_are(place: Place) -> None:
    task = submit(place.engine, payload={"created_at": 5})
    shown = told("jobs", "show", task, *place.at)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", shown["created_at"])
    assert (shown["payload"], shown["state"], shown["actions"]) == ({"created_at": 5}, "queued", ["cancel"])


def test_a_task_and_a_flow_are_shown_by_the_end_of_their_ids(place: Place) -> None:
    task, flow = submit(place.engine, payload={"to": "ann"}), place.flow()
    text = called("jobs", "show", task[-8:], *place.at).stdout
    assert f"task       {task}" in text
    assert '{"to": "ann"}' in text
    text = called("jobs", "show", flow[-8:], *place.at).stdout
    assert "allowed    pause, cancel" in text
    assert "ann: looks at it" in text
    assert told("jobs", "show", flow, *place.at)["progress"]["counts"]["total"] == 3


def test_a_flow_is_shown_with_its_errors(place: Place) -> None:
    flow = place.flow()
    failed = running(place.engine)
    place.engine.fail(failed, "no such shop", retryable=False)
    errors = told("jobs", "show", flow, *place.at)["errors"]
    assert (errors["total"], errors["errors"][0]["message"]) == (1, "no such shop")
    assert re.search(f"fetch +{failed.id} +no such shop", called("jobs", "show", flow, *place.at).stdout)


def test_an_id_that_fits_several_names_them_all(place: Place) -> None:
    made = [submit(place.engine) for _ in range(2)]
    done = called("jobs", "show", made[0][:6], *place.at)
    assert done.exit_code == 2
    assert all(id_ in done.stderr for id_ in made)


def test_what_is_not_there_is_exit_code_4(place: Place) -> None:
    for words in (["jobs", "show", UNKNOWN_ID], ["jobs", "cancel", "abcdef01"]):
        done = called(*words, *place.at)
        assert (done.exit_code, done.stdout) == (4, "")
        assert one_line(done.stderr)


def test_a_tree_cuts_large_stages(place: Place) -> None:
    flow = place.flow(tasks=30)
    text = called("jobs", "tree", flow, *place.at, "--tasks", "5").stdout
    assert text.splitlines()[0] == f"report  pending  {flow}"
    assert len(re.findall("fetch  queued", text)) == 5
    assert "│  └─ and 25 more" in text
    assert "└─ 2. check  waiting" in text
    assert [len(s["tasks"]) for s in told("jobs", "tree", flow, *place.at)["stages"]] == [20, 1]
    member = told("jobs", "tree", flow, *place.at)["stages"][0]["tasks"][0]["id"]
    assert called("jobs", "tree", member, *place.at, "--tasks", "5").stdout == text
    assert "has no tree" in called("jobs", "tree", submit(place.engine), *place.at).stderr


def test_an_explanation_says_who_holds_it_and_until_when(place: Place) -> None:
    ready, later = submit(place.engine), submit(place.engine, delay_s=7200)
    assert (
        "no_worker: no worker is alive: start one, `onetray worker"
        in called("jobs", "explain", ready, *place.at).stdout
    )
    assert told("jobs", "explain", ready, *place.at)["before_it"] == 0
    register(place.engine)
    assert "nothing blocks it" in called("jobs", "explain", ready, *place.at).stdout
    assert re.search(
        r"delayed: .* it may run at \d{4}-.* UTC, in 119 min\n", called("jobs", "explain", later, *place.at).stdout
    )
    take(place.engine, worker="w7")
    reasons = told("jobs", "explain", ready, *place.at)["reasons"]
    assert [(r["code"], r["held_by"]) for r in reasons] == [("assigned", "w7")]
    stage = place.engine.stages(place.flow())[1].id
    assert "stage_not_open" in called("jobs", "explain", stage, *place.at).stdout


def test_an_explanation_says_that_there_are_more_before_it_than_were_counted(place: Place) -> None:
    register(place.engine)
    place.engine.call(SubmitMany(like=Submit(kind="sync"), payloads=[None] * 1000))
    last, later = submit(place.engine), submit(place.engine)
    said = {id_: called("jobs", "explain", id_, *place.at).stdout for id_ in (last, later)}
    assert "; 1,000 tasks would be claimed before it" in said[last]
    assert "; more than 1,000 tasks would be claimed before it" in said[later]
    for id_, more in ((last, False), (later, True)):
        found = told("jobs", "explain", id_, *place.at)
        assert (found["before_it"], found["more_before_it"]) == (1000, more)


def test_actions_are_what_the_lifecycle_allows(place: Place) -> None:
    flow = place.flow()
    assert called("jobs", "actions", flow, *place.at).stdout.split() == ["pause", "cancel"]
    over = in_state(place.engine, "succeeded", queue="other").id
    assert told("jobs", "actions", over, *place.at)["actions"] == ["retry", "redrive"]


def test_who_cancels_and_why_stands_in_the_log(place: Place) -> None:
    task = submit(place.engine)
    done = called("jobs", "cancel", task, *place.at, "--reason", "not needed", LOGNAME="ann")
    assert (done.exit_code, done.stdout) == (0, f"task {task} is cancelled; allowed now: retry, redrive\n")
    event = place.engine.events(task)[-1]
    assert (event.actor, event.cause) == ("user:ann", "not needed")


def test_the_priority_and_the_metadata_of_a_job_are_changed(place: Place) -> None:
    task, flow = place.engine.submit("x").id or "", place.flow()
    for id_ in (task, flow):
        assert told("jobs", "priority", id_[-8:], "7", *place.at)["state"] in ("queued", "pending")
        assert told("jobs", "metadata", id_[-8:], '{"a": 1}', *place.at)["state"] in ("queued", "pending")
    seen = place.engine.task(task), place.engine.flow(flow)
    assert [(s.priority, s.metadata) for s in seen] == [(7, {"a": 1})] * 2
    done = called("jobs", "metadata", task, "{", *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    new = told("submit", "x", "--metadata", '"m"', *place.at)["id"]
    assert place.engine.task(new).metadata == "m"


def test_a_hard_cancel_revokes_the_lease(place: Place) -> None:
    task = in_state(place.engine, "running").id
    assert told("jobs", "cancel", task, *place.at)["state"] == "running"
    assert told("jobs", "cancel", task, *place.at, "--hard")["state"] == "cancelled"


def test_a_flow_is_cancelled_only_after_a_yes(place: Place) -> None:
    flow = place.flow()
    done = called("jobs", "cancel", flow, *place.at)
    assert done.exit_code == 2
    assert "3 open tasks" in done.stderr
    assert "--yes" in done.stderr
    assert place.engine.flow(flow).state == "pending"
    assert told("jobs", "cancel", flow, *place.at, "--yes")["state"] == "cancelled"


def test_a_flow_that_ends_in_steps_says_how_it_will_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advance, "STEP", 1)
    flow = place.flow()
    done = called("jobs", "cancel", flow, *place.at, "--yes")
    assert done.stdout.startswith(f"flow {flow} is pending, ending as cancelled")
    for words in (("list",), ("show", flow), ("tree", flow)):
        assert "pending, ending as cancelled" in called("jobs", *words, *place.at).stdout
    assert "being_ended" in called("jobs", "explain", flow, *place.at).stdout


def test_an_ended_job_is_deleted_only_after_a_yes(place: Place) -> None:
    task = in_state(place.engine, "succeeded").id
    done = called("jobs", "delete", task, *place.at)
    assert (done.exit_code, "--yes" in done.stderr) == (2, True)
    assert told("jobs", "delete", task[-8:], *place.at, "--yes") == {"entity": "task", "id": task, "deleted": True}
    assert called("jobs", "delete", task, *place.at, "--yes").exit_code == 4
    flow = place.flow()
    refused = called("jobs", "delete", flow, *place.at, "--yes")
    assert (refused.exit_code, "cancel it" in refused.stderr) == (5, True)


def test_a_flow_is_paused_and_resumed(place: Place) -> None:
    flow = place.flow()
    assert called("jobs", "pause", flow, *place.at).stdout == f"flow {flow} is paused; allowed now: resume, cancel\n"
    assert told("jobs", "resume", flow, *place.at)["state"] == "pending"
    assert "takes none" in called("jobs", "resume", flow, *place.at, "--input", "1").stderr


def test_a_single_task_cannot_be_paused_and_it_is_said_what_can_be_done(place: Place) -> None:
    done = called("jobs", "pause", submit(place.engine, queue="fast"), *place.at)
    assert done.exit_code == 5
    assert "onetray queues pause fast" in done.stderr


def test_a_task_that_waits_is_given_its_input(place: Place) -> None:
    task = in_state(place.engine, "waiting_input").id
    done = called("jobs", "resume", task, *place.at, "--input", "{")
    assert done.exit_code == 2
    assert "not valid JSON" in done.stderr
    assert told("jobs", "resume", task, *place.at, "--input", '{"size": 4}')["state"] == "queued"
    assert place.engine.task(task).input == {"size": 4}


def test_what_the_lifecycle_does_not_allow_is_exit_code_5_and_names_what_it_does(place: Place) -> None:
    done = called("jobs", "resume", submit(place.engine), *place.at)
    assert (done.exit_code, done.stdout) == (5, "")
    assert one_line(done.stderr)
    assert "cancel" in done.stderr


def test_a_retry_is_a_new_job(place: Place) -> None:
    task = in_state(place.engine, "failed").id
    new = told("jobs", "retry", task, *place.at)["id"]
    assert place.engine.task(new).retry_of == task
    flow = place.flow()
    assert called("jobs", "retry", flow, *place.at).exit_code == 5
    place.engine.cancel_flow(flow)
    again = told("jobs", "retry", flow, *place.at, "--from-stage", "fetch")["id"]
    assert place.engine.flow(again).retry_of == flow
    assert called("jobs", "retry", flow, *place.at, "--from-stage", "nope").exit_code == 4
    assert called("jobs", "retry", task, *place.at, "--from-stage", "x").exit_code == 2


@pytest.mark.parametrize("words", [["--since", "soon"], ["--limit", "0"], ["--state", "done"], ["--limit", "99999"]])
def test_a_bad_filter_is_one_line(place: Place, words: list[str]) -> None:
    done = called("jobs", "list", *place.at, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert one_line(done.stderr)


def test_no_database_is_one_line_and_makes_none(tmp_path: Path) -> None:
    done = onetray("jobs", "list", cwd=tmp_path)
    assert done.returncode == 3
    assert one_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_events_and_logs_come_in_order_one_to_a_line(place: Place) -> None:
    task = submit(place.engine)
    job = take(place.engine)
    place.engine.log(job, "first", ("info", "second\nline", {"rows": 3}))
    place.engine.succeed(job)
    lines = called("jobs", "events", task, *place.at).stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["task.submitted", "task.claimed", "task.started", "task.succeeded"]
    logged = called("jobs", "logs", task, *place.at).stdout.splitlines()
    assert [line.split("info")[1].strip() for line in logged] == ["first", 'second line  {"rows": 3}']
    as_json = [json.loads(x) for x in called("jobs", "events", task, *place.at, "--json").stdout.splitlines()]
    assert [e["version"] for e in as_json] == [1, 2, 3, 4]
    flow = place.flow()
    assert "stage.added" in called("jobs", "events", flow, *place.at).stdout
    refused = called("jobs", "logs", flow, *place.at)
    assert (refused.exit_code, "onetray tasks list" in refused.stderr) == (5, True)


def test_a_job_is_submitted_with_an_alias_and_shown_by_it(place: Place) -> None:
    id_ = told("submit", "mail", "to=ann", "--alias", "order/17", "--unknown-kind", *place.at)["id"]
    assert told("jobs", "show", "--alias", "order/17", *place.at)["id"] == id_
    assert re.search(r"alias +order/17", called("jobs", "show", id_, *place.at).stdout)
    taken = onetray("submit", "mail", "--alias", "order/17", *place.at)
    assert taken.returncode != 0
    assert id_ in taken.stderr
    assert onetray("jobs", "show", "--alias", "none", *place.at).returncode != 0
    assert "pass the ID of a job, or its --alias" in onetray("jobs", "show", *place.at).stderr
    assert onetray("jobs", "show", id_, "--alias", "order/17", *place.at).returncode != 0


TRACE = 'Traceback (most recent call last):\n  File "shop.py", line 3, in sync\n\x1b[31mHTTP 503: closed\n'


def test_a_traceback_is_printed_as_lines(place: Place) -> None:
    id_ = place.dead(detail={"traceback": TRACE, "shop": 7})
    for words in (("jobs", "show", id_), ("dead", "show", id_)):
        text = called(*words, *place.at).stdout
        assert '\n    Traceback (most recent call last):\n      File "shop.py", line 3, in sync\n     [31mHTTP' in text
        assert "\\n" not in text
        assert "\x1b" not in text
        (error,) = [line for line in text.splitlines() if line.startswith("error ")]
        assert json.loads(error.removeprefix("error").strip())["detail"] == {"shop": 7}
    assert told("jobs", "show", id_, *place.at)["error"]["detail"]["traceback"] == TRACE


def test_an_error_without_a_traceback_is_one_line(place: Place) -> None:
    text = called("jobs", "show", place.dead(), *place.at).stdout
    assert "traceback" not in text
    assert re.search(r'error +\{"class": "HTTP 503", "message": "shop is closed"', text)


def test_a_task_that_waits_for_input_is_not_resumed_without_it(place: Place) -> None:
    id_ = submit(place.engine)
    place.engine.pause(take(place.engine), state="waiting_input", owner="ann", reason="which limit?")
    done = called("jobs", "resume", id_, *place.at)
    assert (done.exit_code, "waits for input of ann (which limit?): pass --input JSON" in done.stderr) == (2, True)
    assert called("jobs", "resume", id_, "--input", "5", *place.at).exit_code == 0


def test_a_job_submitted_without_its_app_names_its_user_and_warns_of_another_queue(place: Place) -> None:
    submit(place.engine, "mail", queue="post")
    done = called("submit", "mail", *place.at, LOGNAME="ann")
    assert "this job is in the queue default, the last one of mail was in post" in done.stderr
    [job] = place.engine.jobs(queue="default").jobs
    assert [e.actor for e in place.engine.events(job.id)] == ["user:ann"]
    assert called("submit", "mail", "--queue", "post", *place.at).stderr == ""


def test_a_no_at_a_question_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    with pytest.raises(click.ClickException, match="nothing was changed"):
        confirm("Cancel 1 job?", yes=False)

"""`onetray jobs show --at`, `tasks show --at` and `jobs timeline`."""

from __future__ import annotations

from tests.cli.conftest import Place
from tests.cli.run import called, told
from tests.support.tasks import submit, take


def test_a_task_is_shown_as_it_was(place: Place) -> None:
    engine, id_ = place.engine, submit(place.engine, payload={"to": "ann"})
    engine.succeed(take(engine, worker="wes"), {"sent": 1})
    claimed = str(next(e.id for e in engine.events(id_) if e.type == "task.claimed"))
    for group in ("jobs", "tasks"):
        done = called(group, "show", id_, "--at", claimed, *place.at)
        lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip())
        assert (lines["state"], lines["worker"], lines["type"]) == ("assigned", "wes", "task.claimed")
        assert "result" not in lines
        assert f"The log does not tell of {id_}: lease, lease_expires_at" in done.stderr
        shown = told(group, "show", id_, "--at", claimed, *place.at)
        assert (shown["event"], shown["task"]["state"], shown["task"]["actions"]) == (int(claimed), "assigned", [])
        assert shown["unknown"] == {id_: ["lease", "lease_expires_at"]}


def test_a_flow_is_shown_with_its_stages_and_tasks_as_they_were(place: Place) -> None:
    engine, id_ = place.engine, place.flow()
    for task in engine.claim(worker="w", limit=2):
        engine.succeed(task)
    event = str(next(e.id for e in engine.flow_events(id_) if e.type == "flow.started"))
    done = called("jobs", "show", id_, "--at", event, *place.at)
    assert "running" in done.stdout
    assert "1 of 2" in done.stdout, "the tasks of the stage that had ended"
    assert len([line for line in done.stdout.splitlines() if line.endswith("0 of 3")]) == 1
    shown = told("jobs", "show", id_, "--at", event, *place.at)
    assert [stage["state"] for stage in shown["stages"]] == ["running", "waiting"]
    assert [task["state"] for task in shown["tasks"]] == ["succeeded", "assigned", "queued"]


def test_the_events_of_a_job_are_listed_with_their_ids(place: Place) -> None:
    id_ = submit(place.engine)
    (event,) = place.engine.events(id_)
    (line,) = called("jobs", "events", id_, *place.at).stdout.splitlines()
    assert line.split()[0] == str(event.id)


def test_an_event_of_another_job_is_refused_with_what_to_do(place: Place) -> None:
    id_, other = submit(place.engine), submit(place.engine)
    (event,) = place.engine.events(other)
    done = called("jobs", "show", id_, "--at", str(event.id), *place.at)
    assert done.exit_code == 4
    assert f"`onetray jobs events {id_}`" in done.stderr
    for bad in ("0", "x"):
        refused = called("jobs", "show", id_, "--at", bad, *place.at)
        assert (refused.exit_code, "--at" in refused.stderr) == (2, True)


def test_a_timeline_has_a_line_for_each_state(place: Place) -> None:
    engine, id_ = place.engine, submit(place.engine)
    engine.succeed(take(engine, worker="wes"))
    head, *lines = called("jobs", "timeline", id_, *place.at).stdout.splitlines()
    assert head.split() == ["what", "state", "from", "for", "then", "attempt", "worker", "event"]
    assert lines[0].startswith("task mail  queued")
    assert any("wes" in line for line in lines)
    shown = told("jobs", "timeline", id_, *place.at)
    assert shown["intervals"][0]["state"] == "queued"
    few = called("jobs", "timeline", place.flow(), "--tasks", "1", *place.at)
    assert "There are more tasks" in few.stderr

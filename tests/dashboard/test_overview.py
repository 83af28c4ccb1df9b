"""The start page, the queues and the lifecycle: what they show, on both databases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from onetray.dashboard.state_diagram import USUAL, lifecycle_svg
from onetray.dashboard.views.overview import RANGES, seconds_text
from onetray.domain.clock import VirtualClock
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import MACHINES, TASK
from onetray.domain.limits import Concurrency
from onetray.domain.machine import Machine
from onetray.domain.policy import Policy
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from tests.http.callers import served
from tests.support.cases import each_case
from tests.support.tasks import submit, take

MARKUP = "<b>x</b>"


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    with served(engine) as found:
        yield found


def words(html: str) -> str:
    """What a reader sees."""
    return " ".join(re.sub(r"<[^>]*>", " ", html.partition("<main")[2]).split())


def test_an_empty_database_says_what_to_do(client: TestClient) -> None:
    page = words(client.get("/").text)
    assert "Nothing needs a person now." in page
    assert "onetray worker --app" in page
    assert "onetray submit KIND" in page
    assert "No queue yet" in words(client.get("/ui/queues").text)


def test_the_charts_count_what_happened(client: TestClient, engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(max_attempts=1))
    for _ in range(3):
        submit(engine, kind="mail")
    jobs = [take(engine) for _ in range(3)]
    for job in jobs:
        engine.start(job)
    clock.advance(2)
    engine.succeed(jobs[0])
    engine.succeed(jobs[1])
    engine.fail(jobs[2], "no")
    for range_ in RANGES:
        html = client.get(f"/?range={range_}").text
        page = words(html)
        assert "2 succeeded 3 submitted" in page
        assert "1 failed 33.3% of those ended" in page
        assert re.search(r"Run time max \S+ s .{,5}2 s median", page)
        # On hover.
        assert re.search(r"<title>[^<]*: 2 succeeded</title>", html)
        assert re.search(r"<title>[^<]*: p50 \S+ s, p95 \S+ s</title>", html)


def test_a_range_that_there_is_not_is_refused(client: TestClient) -> None:
    answer = client.get("/?range=1y<b>", headers={"accept": "text/html"})
    assert answer.status_code == 400
    assert "use 15m, 1h, 6h, 24h, 7d" in answer.text


def test_what_needs_a_person_is_shown_first(client: TestClient, engine: Engine) -> None:
    engine.submit_flow("news", [StageSpec("check", [TaskSpec("mail")], approval=Approval(owner="ann"))])
    engine.configure("mail", Policy(max_attempts=1))
    submit(engine, kind="mail")
    engine.dead_letter(take(engine).id, "timeout", "no")
    submit(engine, kind="fax", queue="faxes")
    page = words(client.get("/").text)
    assert "1 to approve" in page
    assert "1 dead letters" in page
    assert "Nobody claims fax from the queue faxes" in page
    assert "Nothing needs a person" not in page


def test_a_paused_queue_without_a_worker_is_listed_once(client: TestClient, engine: Engine) -> None:
    submit(engine, queue="mail")
    submit(engine, queue="post")
    engine.pause_queue("mail")
    page = words(client.get("/").text)
    assert "1 queue paused" in page
    assert "from the queue post" in page
    assert "from the queue mail" not in page
    engine.pause_queue("post")
    page = words(client.get("/").text)
    assert "2 queues paused" in page
    assert "Nobody claims" not in page


def test_a_worker_is_shown_with_what_it_runs(client: TestClient, engine: Engine, clock: VirtualClock) -> None:
    submit(engine, kind="mail")
    beat = WorkerBeat(name="w1", host=MARKUP, pid=7, version="1", concurrency=4, running=1, claimed=1)
    engine.worker_beat(beat)
    job = take(engine, worker="w1")
    engine.start(job)
    html = client.get("/").text
    assert "w1" in html
    assert "pid 7" in html
    assert "1 / 4" in html
    assert job.id in html
    assert MARKUP not in html


def test_a_queue_is_paused_with_a_reason_and_resumed(client: TestClient, engine: Engine) -> None:
    submit(engine, queue=f"news/{MARKUP}")
    page = client.get("/ui/queues").text
    [csrf] = set(re.findall(r'name="csrf" value="([^"]+)"', page))
    [action] = re.findall(r'action="(/ui/queues/[^"]+/pause)"', page)
    client.post(action, data={"csrf": csrf, "reason": MARKUP})
    shown = client.get("/ui/queues").text
    assert "paused" in words(shown)
    assert "by local: &lt;b&gt;x&lt;/b&gt;" in shown
    assert [q.paused_by for q in engine.queues()] == ["local"]
    client.post(action.removesuffix("pause") + "resume", data={"csrf": csrf})
    assert [q.paused_at for q in engine.queues()] == [None]


def test_a_reason_that_is_too_long_changes_nothing(client: TestClient, engine: Engine) -> None:
    submit(engine, queue="news")
    [csrf] = set(re.findall(r'name="csrf" value="([^"]+)"', client.get("/ui/queues").text))
    answer = client.post(
        "/ui/queues/news/pause", data={"csrf": csrf, "reason": "x" * 10_000, "came_from": "/ui/queues"}
    )
    assert 'class="flash error"' in answer.text
    assert "reason" in words(answer.text)
    assert [q.paused_at for q in engine.queues()] == [None]


@each_case("seconds", [(None, "no data"), (0.0123, "12.3 ms"), (1.94, "1.94 s"), (600, "10 min"), (9_000, "2.5 h")])
def test_times_have_few_digits(seconds: tuple[float | None, str]) -> None:
    assert seconds_text(seconds[0]) == seconds[1]


# Diagrams.


@each_case("machine", [*MACHINES.values()])
def test_a_diagram_has_every_state_and_every_transition_with_its_actors(machine: Machine) -> None:
    svg = lifecycle_svg(machine)
    for state in machine.states:
        assert f'class="state s-{state}"' in svg
    titles = "\n".join(re.findall(r"<title>([^<]*)</title>", svg))
    for transition in machine.transitions:
        assert f"{transition.name}: by " in titles
        for source in transition.sources:
            assert f"{source} → {transition.target}" in titles


@each_case("machine", [*MACHINES.values()])
def test_the_usual_way_is_one(machine: Machine) -> None:
    usual = USUAL[machine.entity]
    assert all(pair in machine.pairs for pair in zip((None, *usual), usual, strict=False))
    assert usual[-1] in machine.terminal


@each_case("machine", [*MACHINES.values()])
def test_no_two_states_of_a_diagram_share_a_place(machine: Machine) -> None:
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"', lifecycle_svg(machine))
    assert len(set(boxes)) == len(boxes) == len(machine.states)


def test_a_diagram_highlights_the_states_that_a_job_has_passed() -> None:
    svg = lifecycle_svg(TASK, path=["queued", "assigned", "running", "queued", "assigned"])
    assert 'class="state s-queued passed"' in svg
    assert 'class="state s-assigned passed current"' in svg
    assert 'class="state s-failed"' in svg
    assert "queued (2)" in svg
    taken = re.findall(r'<g class="edge[^"]* taken"><title>([^<\n]*)', svg)
    assert {"queued → assigned", "assigned → running", "running → queued"} <= set(taken)
    assert not any("failed" in title for title in taken)


def test_the_lifecycle_page_lists_all_transitions(client: TestClient) -> None:
    page = client.get("/ui/lifecycle").text
    for machine in MACHINES.values():
        assert f'id="{machine.entity}"' in page
        assert all(t.event in page for t in machine.transitions)


def test_schedules_are_listed_and_can_be_paused_triggered_and_resumed(
    client: TestClient, engine: Engine, clock: VirtualClock
) -> None:
    assert "Schedules" not in words(client.get("/").text)
    engine.put_schedule(MARKUP, kind="mail", every_s=3_600)
    page = client.get("/").text
    assert MARKUP not in page
    assert "active every 60 min" in words(page)
    for verb, told in (("trigger", "is submitted"), ("pause", "is paused"), ("resume", "fires again")):
        token = re.findall(r'name="csrf" value="([^"]+)"', client.get("/").text)[0]
        path = f"/ui/schedules/{quote(MARKUP, safe='')}/{verb}"
        answer = client.post(path, data={"csrf": token}, headers={"origin": "http://127.0.0.1:8321"})
        assert told in words(answer.text), answer.text
    assert [e.type for e in engine.audit().events] == [
        "schedule.resumed", "schedule.paused", "schedule.triggered", "schedule.created",
    ]  # fmt: skip
    clock.advance(3_600)
    engine.fire_schedules()
    assert "queued" in words(client.get("/").text)


def test_limits_are_shown_with_what_they_hold_back(client: TestClient, engine: Engine) -> None:
    assert "Limits" not in words(client.get("/").text)
    engine.configure("mail", Policy(concurrency=(Concurrency(5),)))
    engine.set_limit(kind="mail", concurrency=1, by=MARKUP)
    engine.set_limit(queue="slow", rate="7/5m", smooth=True)
    for _ in range(3):
        submit(engine, kind="mail")
    take(engine)
    html = client.get("/").text
    page = words(html)
    assert "concurrency of kind mail 1 at once 1 / 1 2 " in page
    assert "code: 5 at once" in page
    assert "rate of queue slow 7/5m smooth &ndash; 0" in page
    assert MARKUP not in html
    assert "default 2 2 0 1 0" in words(client.get("/ui/queues").text)

"""A job's page: what it shows of a task and of a flow in each state, what it offers, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from onetray.config import EngineConfig
from onetray.dashboard.gantt import MAX_LANES, axis_length, gantt_of, tick
from onetray.dashboard.log_pages import LINES
from onetray.dashboard.payloads import clean_line, pretty, prose
from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import NotFound
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import MACHINES
from onetray.domain.policy import Policy
from onetray.domain.task import RawJson
from onetray.engine import Engine
from tests.http.callers import bearer, served
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.situations import FLOWS, TASKS, Maker
from tests.support.tasks import STATES, UNKNOWN_ID, in_state, running, submit, take

HTML = {"accept": "text/html"}
EVIL = "<b>evil&\"'</b>"
STAGE_VERBS = {"approve", "reject", "skip", "cancel"}
SECTIONS = {"timeline", "events", "lifecycle"}
ONCE = Policy(max_attempts=1, lease_s=3600)
OF_FLOW = "flow: "
SITUATIONS = {**TASKS, **{f"{OF_FLOW}{name}": make for name, make in FLOWS.items()}}
DRAWING = re.compile(r"<svg.*?</svg>", re.DOTALL)


class Found(HTMLParser):
    """A page as a browser understands it: its forms with their hidden fields, its ids, its links, its fragments.

    Drawings have none of these, and half of the page's elements.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.ids, self.links, self.fragments = html, set[str](), list[str](), set[str]()
        self.forms: dict[str, dict[str, str]] = {}
        self.pages: dict[str, str] = {}
        """The links to other pages of lists, by their direction and their list."""
        self._form: dict[str, str] | None = None
        self.feed(DRAWING.sub("", html))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if "data-live" in given:
            self.fragments.add(given["data-live"])
        if tag == "a":
            self.links.append(given.get("href", ""))
            self.pages[f"{given.get('rel', '')} {given.get('href', '').partition('#')[2]}"] = given.get("href", "")
        if tag == "form":
            self._form = self.forms.setdefault(given["action"], {}) if given.get("method") == "post" else None
        if tag == "input" and given.get("type") == "hidden" and self._form is not None:
            self._form[given["name"]] = given["value"]

    @property
    def offers(self) -> set[str]:
        """The last parts of the paths of its forms, without the logout."""
        return {action.rpartition("/")[2] for action in self.forms if action != "/ui/logout"}

    @property
    def words(self) -> str:
        return " ".join(re.sub(r"<[^>]*>", " ", self.html.partition("<main")[2]).split())

    def link(self, text: str) -> str:
        """The target of a link by what it contains."""
        return next(link for link in self.links if text in link)


def all_pages(client: TestClient, first: Found, direction: str) -> Iterator[Found]:
    """A page, and those that follow it in a direction."""
    page = first
    for _ in range(20):
        yield page
        if direction not in page.pages:
            return
        page = Found(client.get(page.pages[direction], headers=HTML).text)
    raise AssertionError("the pages do not end")


def show(client: TestClient, id_: str, query: str = "", **headers: str) -> Found:
    answer = client.get(f"/ui/jobs/{id_}{query}", headers={**HTML, **headers})
    assert answer.status_code == 200, answer.text
    return Found(answer.text)


def send(client: TestClient, page: Found, action: str, **fields: str) -> Found:
    """Post a form of a page, and the page that it leads to."""
    answer = client.post(action, data={**page.forms[action], **fields}, headers=HTML, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    return Found(answer.text)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    with served(engine) as found:
        yield found


class Gallery(NamedTuple):
    """A job in each situation, on a server with tokens, for tests that only look at them."""

    engine: Engine
    client: TestClient
    """An administrator."""
    reader: dict[str, str]
    """The headers of somebody who may only read."""
    ids: dict[str, str]
    pages: dict[str, Found]

    def page(self, situation: str) -> Found:
        """What the administrator sees: always the same, because nobody changes these jobs."""
        if situation not in self.pages:
            self.pages[situation] = show(self.client, self.ids[situation])
        return self.pages[situation]


@pytest.fixture(scope="module")
def gallery(shared_engine: Engine) -> Iterator[Gallery]:
    """Made once: each situation has a queue of its own, so that none disturbs another."""
    ids = {situation: make(Maker(shared_engine)).id for situation, make in SITUATIONS.items()}
    reader, admin = (bearer(shared_engine.tokens.create(scope, [scope]).text) for scope in ("read", "admin"))
    with served(shared_engine) as client:
        client.headers.update(admin)
        yield Gallery(shared_engine, client, reader, ids, {})


def read(engine: Engine, id_: str) -> Any:
    try:
        return engine.task(id_)
    except NotFound:
        return engine.flow(id_)


def expected(job: Any, is_flow: bool) -> set[str]:
    """The forms that the page of a job must have."""
    offers = set(job.actions) - {"redrive"}
    if job.state not in MACHINES["flow" if is_flow else "task"].terminal and not (is_flow and job.ending):
        offers.add("priority")
    return offers


@each_case("situation", TASKS)
def test_the_page_of_a_task_offers_exactly_what_is_allowed(gallery: Gallery, situation: str) -> None:
    engine, id_ = gallery.engine, gallery.ids[situation]
    task, page = engine.task(id_), gallery.page(situation)
    wanted = expected(task, is_flow=False)
    assert page.offers - {"run-now"} == wanted
    assert ("run-now" in page.offers) == (task.state == "queued" and task.run_at > engine.now())
    assert page.ids >= SECTIONS | {"log"}
    assert page.fragments >= {"head", "why", "timeline", "attempts", "values", "log", "events", "path", "links"}
    assert f'class="badge s-{task.state}"' in page.html
    assert task.id in page.words
    for reason in engine.redacted.explain(id_):
        assert prose(reason.message).striptags()[:60] in page.words.replace("&#39;", "'").replace("&#34;", '"')


@each_case("situation", FLOWS)
def test_the_page_of_a_flow_offers_exactly_what_is_allowed(gallery: Gallery, situation: str) -> None:
    engine, id_ = gallery.engine, gallery.ids[f"{OF_FLOW}{situation}"]
    flow, page = engine.flow(id_), gallery.page(f"{OF_FLOW}{situation}")
    of_flow = {a.rpartition("/")[2] for a in page.forms if a.startswith(f"/ui/jobs/{id_}/") and "/stages/" not in a}
    assert of_flow == expected(flow, is_flow=True)
    assert page.ids >= SECTIONS | {"stages", "tasks", "log"}
    for stage in engine.stages(id_):
        path = f"/ui/jobs/{id_}/stages/{stage.id}/"
        assert {a.removeprefix(path) for a in page.forms if a.startswith(path)} == STAGE_VERBS & set(stage.actions)
        assert f"stage-{stage.id}" in page.ids


def test_every_button_does_what_it_says(gallery: Gallery) -> None:
    """In each state once. What the engine accepts in every situation: tests/contract/test_actions.py."""
    engine, client, pressed = gallery.engine, gallery.client, set()
    for situation, make in SITUATIONS.items():
        is_flow, state = situation.startswith(OF_FLOW), read(engine, gallery.ids[situation]).state
        for verb in sorted(gallery.page(situation).offers):
            if (is_flow, state, verb) in pressed:
                continue
            pressed.add((is_flow, state, verb))
            # Another job in this situation: those of the gallery stay as they are.
            page = show(client, make(Maker(engine)).id)
            action = next(action for action in page.forms if action.endswith(f"/{verb}"))
            fields = {"priority": "7"} if verb == "priority" else {"hard": "1"} if verb == "cancel" else {}
            after = send(client, page, action, **fields, reason="because")
            assert 'class="flash" role="status"' in after.html, (situation, verb, after.words[:300])
    assert {(False, "queued", "cancel"), (False, "dead_lettered", "retry"), (True, "failed", "retry")} <= pressed


@each_case("situation", SITUATIONS)
def test_a_job_can_be_looked_at_as_it_was_after_an_event(gallery: Gallery, situation: str) -> None:
    engine, id_ = gallery.engine, gallery.ids[situation]
    events = (engine.flow_events if situation.startswith(OF_FLOW) else engine.events)(id_)
    # Every event is folded by tests/property/test_past.py: here two of each situation are drawn.
    for event in (events[len(events) // 2], events[-1]):
        page = show(gallery.client, id_, f"?at={event.id}")
        assert f"As of event {event.id}" in page.words
        assert f"/ui/jobs/{id_}" in page.links
        assert not page.offers
        assert not page.fragments
        past = engine.at(id_, event.id)
        assert f'class="badge s-{past.job.state}"' in page.html


def test_an_event_that_is_not_its_own_is_an_error_that_says_what_to_do(client: TestClient, engine: Engine) -> None:
    mine, other = submit(engine), submit(engine)
    event = engine.events(other)[0].id
    answer = client.get(f"/ui/jobs/{mine}?at={event}", headers=HTML)
    assert (answer.status_code, "list its events" in answer.text) == (404, True)
    assert client.get(f"/ui/jobs/{mine}?at=x", headers=HTML).status_code == 400


def test_readers_see_no_buttons_and_cannot_press_them(gallery: Gallery) -> None:
    engine, client, reader = gallery.engine, gallery.client, gallery.reader
    refused = set[str]()
    for situation, id_ in gallery.ids.items():
        page = show(client, id_, **reader)
        assert not page.offers
        assert "popovertarget" not in page.html
        if expected(read(engine, id_), is_flow=situation.startswith(OF_FLOW)) <= refused:
            continue
        seen = gallery.page(situation)
        for action in seen.forms:
            if action != "/ui/logout":
                assert client.post(action, data={}, headers={**HTML, **reader}).status_code == 403
        refused |= seen.offers


def test_a_form_without_its_token_changes_nothing(client: TestClient, engine: Engine) -> None:
    id_ = submit(engine)
    client.post(f"/ui/jobs/{id_}/cancel", data={"came_from": f"/ui/jobs/{id_}"}, headers=HTML)
    assert engine.task(id_).state == "queued"


@pytest.mark.parametrize("what", ["unknown", "nonsense", "deleted", "of another namespace", "a stage"])
def test_a_job_that_is_not_there_is_a_page_that_says_what_to_do(client: TestClient, engine: Engine, what: str) -> None:
    ids = {
        "unknown": UNKNOWN_ID,
        "nonsense": "<b>x",
        "deleted": in_state(engine, "cancelled").id,
        "of another namespace": engine.submit("mail", namespace="other").id or "",
        "a stage": engine.submit_flow("flow", [StageSpec("a", [TaskSpec("work")])]).stages[0],
    }
    engine.delete_job(ids["deleted"])
    for path in (ids[what], f"{ids[what]}/json/input"):
        answer = client.get(f"/ui/jobs/{path}", headers=HTML)
        assert answer.status_code == 404
        assert "It may have been deleted" in answer.text
        assert "onetray jobs list" in answer.text
        assert "<b>x" not in answer.text


def test_the_namespace_of_the_url_finds_its_jobs(client: TestClient, engine: Engine) -> None:
    id_ = engine.submit("mail", namespace="other").id or ""
    page = show(client, id_, "?namespace=other")
    assert all("namespace=other" in action for action in page.forms)
    send(client, page, f"/ui/jobs/{id_}/cancel?namespace=other")
    assert engine.task(id_, namespace="other").state == "cancelled"


def test_markup_of_users_is_shown_and_never_carried_out(
    client: TestClient, engine: Engine, clock: VirtualClock
) -> None:
    fields = {"labels": {EVIL: EVIL}, "correlation_id": EVIL, "cause": EVIL, "metadata": {EVIL: EVIL}}
    task = submit(
        engine, kind=EVIL, payload={EVIL: EVIL}, queue=EVIL, alias=EVIL, max_attempts=2, actor_name=EVIL, **fields
    )
    flow = engine.submit_flow(
        EVIL,
        [
            StageSpec(EVIL, [TaskSpec(EVIL, {EVIL: EVIL}, queue=EVIL, name=EVIL)]),
            StageSpec("b", [TaskSpec("work")], start_as_waiting=True, approval=Approval(owner=EVIL, reason=EVIL)),
        ],
        data={EVIL: EVIL}, actor_name=EVIL, **{**fields, "alias": f"{EVIL}2"},
    ).id  # fmt: skip
    for _ in range(2):
        held = running(engine, worker=EVIL, queue=EVIL)
        engine.log(held, (EVIL[:19], EVIL, {EVIL: EVIL}))
        engine.say_progress(held, 1, 2, EVIL)
        assert EVIL not in show(client, held.id).html
        engine.fail(
            held, EVIL, error_class=EVIL, retryable=False, detail={"traceback": f"{EVIL}\n{EVIL}", EVIL: EVIL},
        )  # fmt: skip
    paused = submit(engine, queue="p")
    engine.pause(take(engine, queue="p"), owner=EVIL, reason=EVIL)
    member = engine.members(flow)[0].id
    for id_ in (task, flow, member, paused):
        events = (engine.flow_events if id_ == flow else engine.events)(id_)
        for query in ("", "?q=%3Cb%3Eevil", "?order=oldest", *(f"?at={event.id}" for event in events)):
            page = show(client, id_, query)
            assert "<b>" not in page.html, (id_, query)
            assert "at=" in query or "&lt;b&gt;evil&amp;" in page.html
    for part in ("input", "metadata", "error"):
        answer = client.get(f"/ui/jobs/{task}/json/{part}", headers=HTML)
        assert answer.status_code == 200
        assert "<b>" not in answer.text


def test_a_large_payload_is_folded_and_shown_whole_on_demand(database_url: str, clock: VirtualClock) -> None:
    limits = replace(EngineConfig().limits, payload_bytes=6_000_000, result_bytes=6_000_000)
    large = {"text": "x" * 5_000_000, "last": "the end of it"}
    with engine_on(database_url, clock, config=EngineConfig(limits=limits)) as engine, served(engine) as client:
        id_ = submit(engine, payload=large)
        held = running(engine)
        engine.succeed(held, large)
        page = show(client, id_)
        assert len(page.html) < 200_000
        assert "5.0 MB" in page.words
        assert "the end of it" not in page.html
        for part in ("input", "result"):
            whole = client.get(page.link(f"/ui/jobs/{id_}/json/{part}"), headers=HTML)
            assert "the end of it" in whole.text
            assert len(whole.text) > 5_000_000


@pytest.mark.parametrize("part", ["nonsense", "payload", "key", "result:nonsense", "__class__", "policy"])
def test_only_what_the_page_links_to_is_shown_whole(client: TestClient, engine: Engine, part: str) -> None:
    id_ = submit(engine, payload={"secret": 1})
    answer = client.get(f"/ui/jobs/{id_}/json/{part}", headers=HTML)
    assert answer.status_code in (200, 404)
    assert "secret" not in answer.text


def test_what_a_kind_redacts_is_neither_shown_nor_found(client: TestClient, engine: Engine) -> None:
    policy = Policy(max_attempts=1, redact=("password",))
    id_ = submit(engine, payload={"password": "hunter2-is-it", "to": "ann"}, policy=policy)
    held = running(engine)
    engine.log(held, "logged in with hunter2-is-it", "second line")
    engine.fail(held, "hunter2-is-it was refused", detail={"traceback": "hunter2-is-it"})
    page = show(client, id_)
    assert "ann" in page.words
    pages = [page, *(show(client, id_, f"?at={event.id}") for event in engine.events(id_))]
    found = show(client, id_, "?q=hunter2-is-it")
    assert "0 of 2 lines contain" in found.words
    assert "hunter2-is-it" not in found.html.replace(' value="hunter2-is-it"', "").replace(
        "“hunter2-is-it”", ""
    ).replace("q=hunter2-is-it", "")
    whole = client.get(f"/ui/jobs/{id_}/json/input", headers=HTML).text
    assert not any("hunter2-is-it" in html for html in (whole, *(each.html for each in pages)))


def lines_of(page: Found) -> list[str]:
    return re.findall(r'<span class="text">(.*?)</span>', page.html)


def test_a_log_is_read_from_its_end_and_searched_to_its_beginning(client: TestClient, engine: Engine) -> None:
    id_ = submit(engine, policy=ONCE)
    held = running(engine)
    for start in range(0, 10_000, 500):
        engine.log(held, *(f"line {i}" for i in range(start, start + 500)))
    page = show(client, id_)
    assert lines_of(page) == [f"line {i}" for i in range(10_000 - LINES, 10_000)]
    assert lines_of(show(client, id_, "?" + page.link("log_before").partition("?")[2])) == [
        f"line {i}" for i in range(10_000 - 2 * LINES, 10_000 - LINES)
    ]
    assert lines_of(show(client, id_, "?q=LINE+77")) == [f"line {i}" for i in range(10_000) if str(i).startswith("77")]
    first = show(client, id_, "?q=line+0")
    assert lines_of(first) == ["line 0"]
    assert "1 of 10,000 lines" in first.words
    assert "No line contains it" in show(client, id_, "?q=nothing").words
    last = show(client, id_, f"?log_before={LINES // 2}")
    assert len(lines_of(last)) == LINES // 2 - 1


def test_a_search_that_finds_too_much_goes_on_where_it_stopped(client: TestClient, engine: Engine) -> None:
    id_ = submit(engine, policy=ONCE)
    engine.log(running(engine), *(f"line {i}" for i in range(450)))
    pages = list(all_pages(client, show(client, id_, "?q=line"), "prev log"))
    found = [line for page in reversed(pages) for line in lines_of(page)]
    assert found == [f"line {i}" for i in range(450)]


def test_a_flow_shows_what_its_tasks_log(client: TestClient, engine: Engine) -> None:
    flow = engine.submit_flow("flow", [StageSpec("a", [TaskSpec("work", name="first")])]).id
    held = running(engine)
    engine.log(held, ("warning", "\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b\\", {"n": 1}))
    engine.say_progress(held, 1, 4, "a quarter")
    page = show(client, flow)
    assert lines_of(page) == ["red link", "1 of 4: a quarter"]
    assert f'class="from" href="/ui/jobs/{held.id}">first</a>' in page.html


@pytest.mark.parametrize("order", ["", "&order=oldest"])
def test_pages_of_events_are_all_of_them(client: TestClient, engine: Engine, order: str) -> None:
    flow = engine.submit_flow("flow", [StageSpec("a", [TaskSpec("work", policy=ONCE) for _ in range(30)])]).id
    engine.run([c.Succeed(**c.ticket(held)) for held in engine.claim(worker="w", limit=30)])
    pages = all_pages(client, show(client, flow, f"?{order[1:]}"), "prev events" if order else "next events")
    seen = [int(id_) for page in pages for id_ in re.findall(r'data-key="e(\d+)"', page.html)]
    ids = [event.id for event in engine.flow_events(flow)]
    assert seen == (ids if order else ids[::-1])


def test_attempts_are_listed_with_their_errors(client: TestClient, engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(max_attempts=3, jitter=False))
    for i in range(3):
        held = running(engine, worker=f"worker-{i}")
        clock.advance(5)
        engine.fail(held, f"failure {i}", error_class="Oops", detail={"traceback": f"trace {i}\n  line"})
        clock.advance(100)
        engine.sweep()
    page = show(client, id_)
    for i in range(3):
        assert f"Attempt {i + 1}" in page.words
        assert f"by worker-{i}" in page.words
        assert f"Oops: failure {i}" in page.words
        assert f"trace {i}" in page.words
    assert page.words.count("ran for 5.0 s") == 3
    assert "Redrive" in page.words
    assert page.html.index("Attempt 3</strong>") < page.html.index("Attempt 1</strong>")


def test_a_redriven_job_links_to_its_successor_and_back(client: TestClient, engine: Engine) -> None:
    old = in_state(engine, "dead_lettered").id
    page = show(client, old)
    new = send(client, page, f"/ui/jobs/{old}/retry")
    successor = next(job.id for job in engine.jobs().jobs if job.id != old)
    assert "This is the new task." in new.words
    assert f"/ui/jobs/{old}" in new.links
    assert f"/ui/jobs/{successor}" in show(client, old).links
    flow = FLOWS["failed"](Maker(engine)).id
    send(client, show(client, flow), f"/ui/jobs/{flow}/retry", from_stage="a")
    again = next(job.id for job in engine.jobs(entity="flow").jobs if job.id != flow)
    assert f"/ui/jobs/{again}" in show(client, flow).links
    assert [stage.state for stage in engine.stages(again)] == ["pending", "created"]


def test_jobs_of_one_correlation_id_and_of_one_flow_are_linked(client: TestClient, engine: Engine) -> None:
    one, two = (submit(engine, correlation_id="order-1") for _ in range(2))
    assert f"/ui/jobs/{two}" in show(client, one).links
    specs = [TaskSpec("work", name="a"), TaskSpec("work", name="b", depends_on=("a",))]
    flow = engine.submit_flow("flow", [StageSpec("s", specs)])
    page = show(client, flow.tasks[1])
    assert {f"/ui/jobs/{flow.id}", f"/ui/jobs/{flow.tasks[0]}"} <= set(page.links)


def test_a_running_worker_is_asked_to_stop_or_revoked(client: TestClient, engine: Engine) -> None:
    id_ = in_state(engine, "running").id
    page = send(client, show(client, id_), f"/ui/jobs/{id_}/cancel", reason="too slow")
    assert "is asked to stop" in page.words
    assert "cancel requested" in page.words
    assert engine.task(id_).state == "running"
    assert "Cancel it" not in page.words
    page = send(client, page, f"/ui/jobs/{id_}/cancel", hard="1")
    assert "The task is cancelled." in page.words
    assert engine.task(id_).state == "cancelled"


@pytest.mark.parametrize(
    ("verb", "fields", "message"),
    [
        ("priority", {"priority": "high"}, "priority must be a whole number"),
        ("priority", {"priority": "99999999999"}, "priority"),
        ("resume", {"input": "{nonsense"}, "input must be JSON"),
        ("cancel", {"reason": "x" * 3_000}, "reason"),
    ],
)
def test_a_bad_field_changes_nothing_and_says_what_to_do(
    client: TestClient, engine: Engine, verb: str, fields: dict[str, str], message: str
) -> None:
    id_ = in_state(engine, "waiting_input").id
    before = engine.task(id_)
    after = send(client, show(client, id_), f"/ui/jobs/{id_}/{verb}", **fields)
    assert 'class="flash error"' in after.html
    assert message in after.words
    assert engine.task(id_) == before


def test_a_waiting_task_is_resumed_with_its_input(client: TestClient, engine: Engine) -> None:
    id_ = in_state(engine, "waiting_input").id
    send(client, show(client, id_), f"/ui/jobs/{id_}/resume", input='{"ok": true}')
    assert engine.task(id_).input == {"ok": True}


def test_a_button_that_comes_too_late_says_so(client: TestClient, engine: Engine) -> None:
    id_ = submit(engine)
    page = show(client, id_)
    engine.cancel(id_)
    after = send(client, page, f"/ui/jobs/{id_}/cancel")
    assert 'class="flash error"' in after.html
    assert "It was cancelled" in after.words


def test_a_stage_of_another_flow_cannot_be_answered_here(client: TestClient, engine: Engine) -> None:
    mine, other = (FLOWS["waiting"](Maker(engine)).id for _ in range(2))
    stage, page = engine.stages(other)[0].id, show(client, mine)
    for path in (f"/ui/jobs/{mine}/stages/{stage}/approve", f"/ui/jobs/{mine}/stages/{stage}/explode"):
        client.post(path, data=next(iter(page.forms.values())), headers=HTML)
    assert engine.stages(other)[0].state == "waiting"


def reads_of(engine: Engine, client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, str]:
    """How many statements and rows a page reads."""
    seen: list[int] = []
    read = engine.store.read

    def counted(name: str, **params: Any) -> Any:
        rows = read(name, **params)
        seen.append(len(rows))
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(engine.store, "read", counted)
        answer = client.get(path, headers=HTML)
    assert answer.status_code == 200
    return len(seen), sum(seen), answer.text


def test_a_page_of_a_large_flow_is_not_larger(
    client: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = []
    for size in (300, 1000):
        specs = [TaskSpec("work", {"i": i}, queue=f"q{size}", policy=ONCE) for i in range(size)]
        flows.append(engine.submit_flow("large", [StageSpec("a", specs), StageSpec("b", [TaskSpec("work")])]).id)
        for _ in range(size // 100):
            claimed = engine.claim(f"q{size}", worker="w", limit=100)
            clock.advance(1)
            engine.run([c.Start(**c.ticket(held)) for held in claimed])
            clock.advance(3)
            engine.run([c.Succeed(**c.ticket(held)) for held in claimed[1:]])
    small, large = (reads_of(engine, client, f"/ui/jobs/{flow}", monkeypatch) for flow in flows)
    assert max(small[0], large[0]) < 60
    assert large[1] < 2_500
    assert len(large[2]) < 300_000
    assert "more</a>" in large[2]
    page = Found(large[2])
    assert "All 1,001" in page.words
    assert len(tasks_on(page)) == 25


def tasks_on(page: Found) -> list[str]:
    """The tasks in the list of a flow's page."""
    section = page.html.partition('id="tasks"')[2].partition('id="log"')[0]
    return re.findall(r'data-key="([\da-f-]{36})"', section)


def test_the_tasks_of_a_flow_are_listed_by_state_and_stage_page_by_page(client: TestClient, engine: Engine) -> None:
    specs = [TaskSpec("work", name=f"task-{i}", policy=ONCE) for i in range(60)]
    flow = engine.submit_flow("flow", [StageSpec("a", specs), StageSpec("b", [TaskSpec("later")])], roll_up="drain")
    for held in engine.claim(worker="w", limit=3):
        engine.fail(held, "no", retryable=False)
    seen = [id_ for page in all_pages(client, show(client, flow.id), "next tasks") for id_ in tasks_on(page)]
    assert seen == [task.id for task in engine.members(flow.id)]
    assert len(tasks_on(show(client, flow.id, "?state=failed"))) == 3
    assert len(tasks_on(show(client, flow.id, f"?stage={flow.stages[1]}"))) == 1
    assert client.get(f"/ui/jobs/{flow.id}?stage={UNKNOWN_ID}", headers=HTML).status_code == 404


def test_a_timeline_shows_failed_tasks_first_and_folds_the_rest(engine: Engine, clock: VirtualClock) -> None:
    specs = [TaskSpec("work", name=f"task-{i}", policy=ONCE) for i in range(150)]
    flow = engine.submit_flow("flow", [StageSpec("a", specs)], roll_up="drain")
    claimed = engine.claim(worker="w", limit=150)
    clock.advance(1)
    engine.run([c.Start(**c.ticket(held)) for held in claimed])
    clock.advance(1)
    engine.run([c.Succeed(**c.ticket(held)) for held in claimed[:140]])
    clock.advance(10)
    engine.fail(claimed[145], "no", retryable=False)
    (group,) = gantt_of(engine.timeline(flow.id, tasks=200), engine.stages(flow.id)).groups
    assert [lane.state for lane in group.tasks][:10] == ["failed", *["running"] * 9]
    assert group.tasks[0].id == claimed[145].id
    assert len(group.tasks) == MAX_LANES
    assert group.more == 150 - MAX_LANES
    assert group.is_open


def test_a_timeline_ends_at_the_event_that_is_looked_at(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    clock.advance(10)
    held = running(engine)
    clock.advance(10)
    engine.succeed(held)
    timeline = engine.timeline(id_)
    whole, half = gantt_of(timeline, ()), gantt_of(timeline, (), upto=timeline.from_at + 15 * SECOND)
    assert (whole.job.took_us, half.job.took_us) == (20 * SECOND, 15 * SECOND)
    assert (whole.job.state, half.job.state) == ("succeeded", "running")
    assert half.job.busy_us == 5 * SECOND


@pytest.mark.parametrize(
    ("elapsed_s", "ticks"),
    [(0, "1 ms"), (0.9, "250 ms"), (3, "1 s"), (100, "30 s"), (150, "1 min"), (86_400 * 3, "1 d"),
     (86_400 * 9_000, "2250 d")],
)  # fmt: skip
def test_the_axis_has_round_numbers(elapsed_s: float, ticks: str) -> None:
    length = axis_length(int(elapsed_s * SECOND))
    assert length >= elapsed_s * SECOND
    assert tick(length // 4) == ticks


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"), ("a\x1b]0;title\x07b", "ab"), ("a\x00\x07\x7fb\tc", "ab\tc"),
        ("\x1b[2K\x1b[1Gdone", "done"), ("\u202eabc", "abc"), ("ünï", "ünï"), ("\x1b", ""), ("\x1b]8;;never ends", ""),
    ],
)  # fmt: skip
def test_a_log_line_has_no_escape_sequences(line: str, clean: str) -> None:
    assert clean_line(line) == clean


def test_json_is_pretty_and_its_beginning_if_it_is_large() -> None:
    assert pretty(None) is None
    small = pretty(RawJson(b'{"a":[1]}'))
    assert small is not None
    assert (small.text, small.size, small.is_cut) == ('{\n  "a": [\n    1\n  ]\n}', 9, False)
    for n in (5_000, 100_000):
        large = pretty({"x": "é" * n})
        assert large is not None
        assert large.is_cut
        assert len(large.text) <= 4_096
    assert str(prose("run `a <b>` now")) == "Run <code>a &lt;b&gt;</code> now"
    assert str(prose("one ` only")) == "One ` only"


def test_every_state_has_a_page() -> None:
    assert set(STATES) <= TASKS.keys()

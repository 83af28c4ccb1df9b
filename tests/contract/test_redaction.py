"""What others are shown of jobs whose kinds redact: nothing of the secrets, wherever they have got to."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
import pytest

from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.redactor import HIDDEN
from onetray.engine import Engine
from onetray.engine.api import EngineApi
from onetray.http.json_answers import to_json
from onetray.redaction import job_secrets
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.tasks import take

SECRET, CARD, PIN = "hunter2-ünd-mehr", "4111 1111", 987659876598765
REDACT = Policy(max_attempts=1, redact=("password", "card.number", "pins.*"))
PAYLOAD = {"user": "ann", "password": SECRET, "card": {"number": CARD, "bank": "b"}, "pins": [PIN, 12]}
SAID = f"login of ann with {SECRET}, {CARD}, {PIN} and {PAYLOAD!r} {orjson.dumps(PAYLOAD).decode()}"


def hides(shown: Any) -> bool:
    """Whether nothing of the secrets is in what would be sent."""
    text = orjson.dumps(to_json(shown)).decode()
    return not any(secret in text for secret in (SECRET, CARD, str(PIN), "hunter2", "\\u00fcnd"))


def one_that_said_all(engine: Engine) -> str:
    """A task that has put its secrets everywhere, and failed."""
    engine.configure("login", REDACT)
    id_ = engine.submit("login", PAYLOAD, labels={"who": SECRET}).id
    job = take(engine, kinds=("login",))
    assert job.payload == PAYLOAD, "who does the work gets the real values"
    engine.log(job, ("info", SAID, {"payload": PAYLOAD, SECRET: PIN}))
    engine.say_progress(job, 1, 2, f"with {SECRET}")
    engine.fail(job, SAID, error_class="LoginError")
    return str(id_)


def test_a_task_is_shown_without_its_secrets(engine: Engine) -> None:
    id_ = one_that_said_all(engine)
    real, shown = engine.task(id_), engine.redacted.task(id_)
    assert real.payload == PAYLOAD, "the program that embeds the engine sees what is there"
    assert shown.payload == {
        "user": "ann", "password": "***", "card": {"number": "***", "bank": "b"}, "pins": ["***", "***"],
    }  # fmt: skip
    assert "login of ann with ***" in str(shown.error)
    assert hides(shown)
    assert not hides(real)


def test_so_are_its_events_its_log_its_progress_and_its_dead_letter(engine: Engine) -> None:
    id_ = one_that_said_all(engine)
    for real, of in (
        (engine.events(id_), None),
        (engine.feed.read(0).events, None),
        (engine.logs(id_), id_),
        ([engine.progress_of(id_)], id_),
        (engine.dead_letters(id_), None),
        (engine.dead_lines(), None),
        (engine.dead_groups(), None),
        (engine.explain(id_), id_),
    ):
        assert hides(engine.redaction.redacted(real, of)), real
    assert not hides(engine.logs(id_))
    assert hides(engine.redaction.redacted_json([SAID], id_)[0])
    assert engine.redacted.dead_letters(id_)[0].payload_hash == "***"
    assert [g.message for g in engine.redacted.dead_groups()] == ["***"]


def test_a_success_is_shown_without_what_it_was_given_or_gave(engine: Engine) -> None:
    engine.configure("login", REDACT)
    id_ = engine.submit("login", PAYLOAD).id
    engine.succeed(
        take(engine, kinds=("login",)), {"password": "another-one", "echo": [SAID], "n": PIN, "k": {CARD: 1}}
    )
    shown = engine.redaction.redacted(engine.task(str(id_)))
    assert hides(shown)
    assert (shown.result["password"], shown.result["n"], shown.result["k"]) == ("***", "***", {"***": 1})
    assert "another-one" not in str(shown)


def test_a_result_that_is_told_elsewhere_is_hidden_by_its_paths_too(engine: Engine) -> None:
    """Also what is too short to be looked for."""
    tasks = [TaskSpec("login", {}, policy=REDACT) for _ in range(2)]
    flow = engine.submit_flow("shop", [StageSpec("in", tasks)]).id
    for pin in (1, 2):
        engine.succeed(take(engine, kinds=("login",)), {"password": pin})
    [stage] = engine.stages(flow)
    assert engine.redaction.redacted(stage).result == [{"password": "***"}] * 2
    results = engine.stage_results(stage.id)
    assert engine.redaction.redacted_json([row[4] for row in results], stage.id) == [{"password": "***"}] * 2
    assert engine.redaction.redacted_json([results[0][4]], results[0][1])[0] == {"password": "***"}


def test_what_somebody_answered_is_redacted_too(engine: Engine) -> None:
    engine.configure("login", REDACT)
    id_ = str(engine.submit("login", {"user": "ann"}).id)
    engine.pause(take(engine, kinds=("login",)), owner="ann", reason="needs the password")
    engine.resume(id_, input={"password": SECRET, "note": f"is {SECRET}"})
    assert engine.redacted.task(id_).input == {"password": "***", "note": "is ***"}


def test_a_flow_hides_the_secrets_of_all_its_tasks_in_all_its_parts(engine: Engine) -> None:
    flow = engine.submit_flow(
        "shop",
        [
            StageSpec("in", [TaskSpec("login", PAYLOAD, policy=REDACT)], data={"note": SAID}),
            StageSpec("out", [TaskSpec("mail", {"text": SAID})], approval=Approval(owner="ann", reason=SAID)),
        ],
        data={"said": SAID},
        roll_up="mixed",
    ).id
    engine.succeed(take(engine, kinds=("login",)), SAID, errors=[SAID], metrics={"said": SAID}, context={"said": SAID})
    stage = engine.stages(flow)[1].id
    engine.approve_stage(stage, note=SAID, actor_name="ann")
    mail = take(engine, kinds=("mail",))
    engine.log(mail, SAID)
    engine.fail(mail, SAID, retryable=False)
    shown = [
        engine.redacted.flow(flow), engine.redacted.progress(flow), engine.redacted.stages(flow),
        engine.redacted.flow_events(flow), engine.redacted.members(flow),
        engine.redacted.task(mail.id), engine.redacted.logs(mail.id),
        engine.redacted.explain(stage), engine.redaction.redacted(engine.jobs().jobs),
    ]  # fmt: skip
    for value in shown:
        assert hides(value), value
    assert not hides(engine.stages(flow))


FLOW = {"password": SECRET, "pins": [PIN]}


def a_flow_of_its_own(engine: Engine, **fields: Any) -> str:
    """A flow that redacts, with tasks that do not. It waits for an approval."""
    stages = [
        StageSpec("in", [TaskSpec("mail", {"text": SAID})], data={"password": "of-the-stage"}),
        StageSpec("out", [TaskSpec("mail")], approval=Approval(owner="ann"), compensate=TaskSpec("undo", {"s": SAID})),
    ]
    flow = engine.submit_flow("shop", stages, data={**FLOW, "card": {"number": CARD}}, context=FLOW, **fields).id
    mail = take(engine, kinds=("mail",))
    assert engine.flow(mail_flow := engine.task(mail.id).job_id).data["password"] == SECRET
    assert mail_flow == flow
    engine.log(mail, ("info", SAID, {"password": 12}))
    engine.succeed(mail, {"password": "s", "said": "of-the-stage and of-the-answer"})
    return flow


def seen_of_flow(engine: Engine, flow: str) -> list[Any]:
    tasks = [engine.task(member.id) for member in engine.members(flow)]
    return [
        engine.redacted.flow(flow), engine.redacted.stages(flow), engine.redacted.flow_events(flow),
        engine.redacted.contexts(flow), engine.redacted.progress(flow), engine.redaction.redacted(tasks),
        [engine.redacted.logs(task.id) for task in tasks],
        [engine.redacted.inputs(task.id) for task in tasks],
    ]  # fmt: skip


def test_a_flow_hides_its_config_its_contexts_and_what_was_given_with_an_approval(engine: Engine) -> None:
    flow = a_flow_of_its_own(engine, redact=REDACT.redact)
    stage = engine.stages(flow)[1].id
    engine.approve_stage(
        stage, input={"password": "of-the-answer", "pins": [1, 2]}, note=f"not {SECRET}", actor_name="ann"
    )
    mail = take(engine, kinds=("mail",))
    engine.fail(mail, f"{SAID} of-the-answer", retryable=False)
    for seen in seen_of_flow(engine, flow):
        assert hides(seen), seen
        assert "of-the-answer" not in str(seen)
        assert "of-the-stage" not in str(seen)
    shown = engine.redacted.flow(flow)
    assert shown.data == {"password": "***", "pins": ["***"], "card": {"number": "***"}}
    answer = engine.redacted.stage(stage).answer
    assert (answer["verdict"], answer["input"]) == ("approved", {"password": "***", "pins": ["***", "***"]})
    approved = [e for e in engine.redacted.flow_events(flow) if e.type == "stage.approved"]
    assert [e.payload["input"]["pins"] for e in approved] == [["***", "***"]]
    first = engine.members(flow)[0].id
    assert engine.redacted.task(first).result["password"] == "***"
    assert engine.redacted.logs(first)[0].data == {"password": "***"}


def test_so_does_what_runs_it_again_and_one_that_came_before_its_kind_said_so(engine: Engine) -> None:
    flow = a_flow_of_its_own(engine, redact=REDACT.redact)
    engine.cancel_flow(flow)
    again = engine.retry_flow(flow).id
    assert engine.redacted.flow(again).data["password"] == "***"
    engine.cancel_flow(again)
    open_ = a_flow_of_its_own(engine)
    assert not hides(engine.redacted.flow(open_))
    engine.configure("shop", REDACT)
    assert hides(seen_of_flow(engine, open_))


def a_flow_that_failed(engine: Engine) -> str:
    """Its first task redacts and gives its secrets on; its second has said them, and failed."""
    engine.configure("login", REDACT)
    stages = [
        StageSpec("in", [TaskSpec("login", PAYLOAD)], compensate=TaskSpec("undo", {"s": 1})),
        StageSpec("out", [TaskSpec("mail", policy=Policy(max_attempts=1))]),
    ]
    flow = str(engine.submit_flow("shop", stages).id)
    engine.succeed(take(engine, kinds=("login",)), {"password": "q7Z", "said": SAID})
    engine.fail(take(engine, kinds=("mail",)), SAID)
    return flow


@each_case("how", ["retried", "retried twice", "redriven", "undone", "undone again"])
def test_what_runs_a_flow_again_or_undoes_it_hides_the_secrets_of_its_tasks(engine: Engine, how: str) -> None:
    flow = a_flow_that_failed(engine)
    undoes = engine.flow(flow).compensation
    if how.startswith("undone"):
        new, kind = undoes, "undo"
    elif how == "redriven":
        new, kind = engine.task(engine.redrive(engine.members(flow)[1].id).id).job_id, "mail"
        engine.succeed(take(engine, kinds=("login",)), {"password": "q7Z"})  # It was undone, so it runs again.
    else:
        new, kind = engine.retry_flow(flow, from_stage="out").id, "mail"
    task = take(engine, kinds=(kind,))
    engine.log(task, SAID)
    engine.fail(task, SAID, retryable=False)
    if how in ("retried twice", "undone again"):
        new = engine.retry_flow(new, from_stage="out" if kind == "mail" else "in").id
        task = take(engine, kinds=(kind,))
        engine.log(task, SAID)
        engine.fail(task, SAID, retryable=False)
    for value in seen_of_flow(engine, new):
        assert hides(value), value
        assert "q7Z" not in str(value), value
    assert hides(engine.redacted.dead_letters(task.id))
    assert not hides([engine.task(task.id), engine.logs(task.id)])


def test_when_what_it_runs_again_is_pruned_nothing_is_shown_that_could_hold_a_secret(engine: Engine) -> None:
    flow = a_flow_that_failed(engine)
    engine.succeed(take(engine, kinds=("undo",)), None)
    again = engine.retry_flow(flow, from_stage="out").id
    engine.prune(0)
    with pytest.raises(NotFound):
        engine.flow(flow)
    assert not hides(engine.stages(again))
    assert hides(seen_of_flow(engine, again))
    assert engine.redacted.stages(again)[0].result == "***"


def test_a_path_that_makes_no_sense_is_refused_of_a_flow_too(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="redact"):
        engine.submit_flow("shop", [], redact=["a..b"])


def test_a_task_that_came_before_its_kind_said_so_is_redacted_by_the_kind(engine: Engine) -> None:
    id_ = str(engine.submit("login", PAYLOAD).id)
    assert not hides(engine.redacted.task(id_))
    engine.configure("login", REDACT)
    assert hides(engine.redacted.task(id_))
    engine.configure("login", Policy())
    late = str(engine.submit("login", PAYLOAD, policy=REDACT).id)
    assert hides(engine.redacted.task(late))


@pytest.mark.parametrize(("limit", "most"), [("MAX_TASKS", 2), ("MAX_BYTES", 90)])
def test_of_a_job_with_too_many_secrets_nothing_is_shown_that_could_hold_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(job_secrets, limit, most)
    one = str(engine.submit("login", {"password": SECRET, "open": "seen"}, policy=REDACT).id)
    tasks = [TaskSpec("login", {"password": f"{SECRET}{i}"}, policy=REDACT) for i in range(3)]
    flow = engine.submit_flow("many", [StageSpec("all", tasks, data={"open": "seen"})], data={"a": 1}).id
    shown_one, shown_flow = engine.redacted.task(one), engine.redacted.flow(flow)
    assert shown_one.payload == {"password": "***", "open": "seen"}
    assert shown_flow.data == "***"
    assert engine.redacted.stages(flow)[0].data == "***"
    assert [m.error for m in engine.redacted.members(flow)] == [None] * 3
    # Many at once are looked at in parts: none of them is passed over.
    others = [str(engine.submit("login", {"password": f"{SECRET}{i}"}, policy=REDACT).id) for i in range(5)]
    assert [engine.redaction.redacted(t).payload for t in map(engine.task, others)] == [{"password": "***"}] * 5
    assert [t.payload for t in engine.redaction.redacted(list(map(engine.task, others)))] == [{"password": "***"}] * 5
    both = engine.redaction.redacted(engine.feed.read(0).events)
    assert hides(both)


def test_where_nothing_is_redacted_nothing_is_changed(engine: Engine) -> None:
    id_ = str(engine.submit("login", PAYLOAD).id)
    task = engine.task(id_)
    assert engine.redaction.redacted(task) is task
    assert engine.redaction.redacted_json([SAID], id_)[0] == SAID


def test_a_value_that_nobody_has_thought_of_is_not_shown(engine: Engine) -> None:
    with pytest.raises(TypeError, match="may hold a secret"):
        engine.redaction.redacted(object())
    engine.configure("login", REDACT)
    line = engine.logs(one_that_said_all(engine))[0]
    with pytest.raises(TypeError, match="of="):
        engine.redaction.redacted(line)


def test_of_many_large_jobs_in_one_answer_only_so_much_is_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is small enough by itself. Those past the limit are hidden whole, not shown as they are."""
    engine.configure("mail", Policy(redact=("key",)))
    ids = [str(engine.submit("mail", {"key": f"secret-{i}", "fill": "x" * 1_000}).id) for i in range(6)]
    monkeypatch.setattr(job_secrets, "ANSWER_BYTES", 2_500)
    shown = engine.redaction.redacted([engine.task(id_) for id_ in ids])
    assert [engine.redacted.task(id_).payload["key"] for id_ in ids] == ["***"] * 6
    assert sorted(isinstance(task.payload, dict) for task in shown) == [False] * 4 + [True] * 2
    assert "secret-" not in str(shown)


class Statements:
    """What an engine reads from its database."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen, self._read = list[str](), engine.store.read
        monkeypatch.setattr(engine.store, "read", self._counted)

    def _counted(self, name: str, /, **params: Any) -> Any:
        self._seen.append(name)
        return self._read(name, **params)

    def of(self, engine: EngineApi, name: str, **given: Any) -> list[str]:
        self._seen.clear()
        getattr(engine, name)(**given)
        return list(self._seen)


PLAIN_READS: dict[str, dict[str, Any]] = {
    "jobs": {}, "queues": {}, "workers": {}, "breakers": {}, "now": {}, "held": {"keys": [1]}, "locate": {},
    "job_status": {}, "position": {}, "policy_of": {"kind": "k"},
}  # fmt: skip


def test_where_nothing_is_redacted_only_the_policies_are_looked_at(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, statements = str(engine.submit("k", {"password": SECRET}).id), Statements(engine, monkeypatch)
    asked = {"locate": {"part": id_}, "job_status": {"job": id_}, "position": {"task": id_}}
    for name, given in (PLAIN_READS | asked).items():
        assert statements.of(engine.redacted, name, **given) == statements.of(engine, name, **given), name
    # An answer that is empty costs nothing either.
    assert statements.of(engine.redacted, "logs", task=id_) == statements.of(engine, "logs", task=id_)
    # A single task says whether its kind redacts.
    assert statements.of(engine.redacted, "task", task=id_) == statements.of(engine, "task", task=id_)
    for name in ("events", "explain"):
        real = statements.of(engine, name, task=id_)
        more = ["redacting_policies"] if getattr(engine, name)(id_) else []
        assert statements.of(engine.redacted, name, task=id_) == [*real, *more], name


def test_for_a_job_that_redacts_nothing_no_secret_is_read_though_others_redact(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_that_said_all(engine)
    id_, statements = str(engine.submit("k", {"password": SECRET}).id), Statements(engine, monkeypatch)
    assert statements.of(engine.redacted, "task", task=id_) == statements.of(engine, "task", task=id_)
    assert engine.redacted.task(id_).payload == {"password": SECRET}


@each_case("how", ["its own policy", "its kind, before", "its kind, later", "its flow"])
def test_a_task_says_that_something_is_to_be_hidden_whoever_says_so(
    engine: Engine, database_url: str, how: str
) -> None:
    hides, kind = Policy(redact=("password",)), f"of {how}"
    if how == "its kind, before":
        engine.configure(kind, hides)
    if how == "its flow":
        spec = StageSpec("a", [TaskSpec(kind, {"password": SECRET}), TaskSpec("other", policy=hides)])
        id_ = engine.submit_flow("f", [spec]).tasks[0]
    else:
        id_ = str(engine.submit(kind, {"password": SECRET}, policy=hides if how == "its own policy" else None).id)
    if how == "its kind, later":
        with engine_on(database_url) as other:
            other.configure(kind, hides)
    assert engine.task(id_).redacts
    if how != "its flow":
        assert engine.redacted.task(id_).payload == {"password": HIDDEN}
        assert [task.payload for task in engine.redacted.tasks(limit=1)] == [{"password": HIDDEN}]


def test_every_field_that_may_hold_anything_is_hidden() -> None:
    """A field that is added to a value is content from users if its type says nothing about it."""
    for kind, hidden in job_secrets.USER_FIELDS.items():
        if not dataclasses.is_dataclass(kind):
            continue
        open_fields = {f.name for f in dataclasses.fields(kind) if "Any" in str(f.type) or f.name == "labels"}
        assert open_fields <= set(hidden), kind


def test_the_metadata_of_a_task_is_redacted_as_its_payload_is(engine: Engine) -> None:
    engine.configure("mail", Policy(redact=("password",)))
    task = engine.submit("mail", {"password": "hunter22"}, metadata={"note": "is hunter22", "password": "x"}).id or ""
    expected = {"note": "is ***", "password": "***"}
    assert engine.redacted.task(task).metadata == expected
    assert [t.metadata for t in engine.redacted.find_tasks().tasks] == [expected]
    assert engine.task(task).metadata == {"note": "is hunter22", "password": "x"}

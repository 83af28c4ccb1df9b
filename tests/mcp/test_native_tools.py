"""The native tools, each by a real client, over each transport, on each database."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.mcp.agents import Agent, text_of
from tests.mcp.conftest import Place
from tests.support.waits import wait_until

NATIVE = {
    "submit_job", "run_job", "find_jobs", "inspect_job", "claim_work", "report_progress", "finish_work", "hand_over",
    "ask_human", "answer_human", "cancel_job", "redrive_job",
}  # fmt: skip
FORM = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}


def test_every_tool_is_listed_with_a_description_and_schemas(ann: Agent) -> None:
    tools = ann.tools()
    assert tools.keys() >= NATIVE
    for tool in (tools[name] for name in NATIVE):
        assert tool.description is not None
        assert len(tool.description) > 60
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (tool.name in ("find_jobs", "inspect_job"))
        assert tool.annotations.destructive_hint is (tool.name == "cancel_job")
        for name, field in tool.input_schema["properties"].items():
            assert "description" in field or name in ("limit", "outcome"), (tool.name, name)


def test_the_text_of_an_answer_is_its_structured_content(ann: Agent, queue: str) -> None:
    found = ann.result("submit_job", kind="review", queue=queue)
    assert json.loads(text_of(found)) == found.structured_content


def test_a_job_is_submitted_claimed_and_finished(ann: Agent, queue: str) -> None:
    job = ann.call("submit_job", kind="review", queue=queue, payload={"page": 7}, labels={"of": "ann"})
    assert job["state"] == "queued"
    assert job["next"] == ["inspect_job", "cancel_job"]
    answer = ann.call("claim_work", worker="ann", queue=queue)
    (task,) = answer["tasks"]
    assert (task["id"], task["kind"], task["untrusted"]) == (job["id"], "review", {"payload": {"page": 7}})
    assert answer["next"] == ["report_progress", "finish_work", "hand_over", "ask_human"]
    held = {"id": task["id"], "fence": task["fence"], "worker": "ann"}
    assert ann.call("finish_work", **held, outcome="succeeded", result={"ok": True})["state"] == "succeeded"
    seen = ann.call("inspect_job", id=job["id"])
    assert (seen["state"], seen["untrusted"]["result"], seen["next"]) == ("succeeded", {"ok": True}, ["redrive_job"])


def test_an_empty_queue_is_no_error(ann: Agent, queue: str) -> None:
    assert ann.call("claim_work", worker="ann", queue=queue)["tasks"] == []


def test_a_claim_waits_for_work(ann: Agent, web: Agent, queue: str) -> None:
    submit = threading.Timer(0.2, lambda: web.submit(queue))
    submit.start()
    assert len(ann.call("claim_work", worker="ann", queue=queue, wait_s=30)["tasks"]) == 1
    submit.join()


def test_a_submit_with_the_same_key_is_the_same_job(ann: Agent, queue: str) -> None:
    first = ann.call("submit_job", kind="review", queue=queue, idempotency_key=queue)
    again = ann.call("submit_job", kind="review", queue=queue, idempotency_key=queue)
    assert (again["id"], again["repeated"]) == (first["id"], True)
    refused = ann.refusal("submit_job", kind="review", queue=queue, idempotency_key=queue, payload="another")
    assert refused.startswith("KeyReused: ")


def test_progress_renews_the_lease_and_is_shown(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue, lease_s=30)
    first = ann.call("report_progress", **held, done=1, total=4, message="reading", log=["opened"], lease_s=60)
    later = ann.call("report_progress", **held, message="still reading", lease_s=600)
    assert later["lease_expires_at"] > first["lease_expires_at"]
    seen = ann.call("inspect_job", id=held["id"], show=["log", "explain"])
    assert seen["progress"] == {"done": 1.0, "total": 4.0, "message": "reading"}
    assert [line["untrusted"] for line in seen["log"]] == ["opened", "still reading"]
    assert seen["explain"][0]["code"] == "running"


def test_a_worker_is_told_to_stop(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue)
    ann.call("cancel_job", id=held["id"], confirm=True)
    assert "cancelled" in ann.call("report_progress", **held)["stop"]
    assert ann.call("hand_over", **held)["state"] == "cancelled"


def test_a_failed_attempt_is_retried_and_a_final_failure_is_not(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue)
    told = ann.call("finish_work", **held, outcome="failed", error="no luck", retry=True, retry_after_s=0)
    assert told["state"] == "queued"
    again = ann.claim(queue)
    assert again["fence"] == held["fence"] + 1
    assert ann.call("finish_work", **again, outcome="failed", error="never", retry=False)["state"] == "failed"
    assert ann.call("inspect_job", id=held["id"])["untrusted"]["error"]["message"] == "never"


def test_the_same_report_again_is_accepted_and_another_is_refused(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue)
    ann.call("finish_work", **held, outcome="succeeded")
    assert ann.call("finish_work", **held, outcome="succeeded")["repeated"] is True
    assert "IllegalTransition" in ann.refusal("finish_work", **held, outcome="failed", error="after all")


def test_a_late_report_changes_nothing(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    late = ann.claim(queue)
    ann.call("hand_over", **late)
    now = ann.claim(queue, "bob")
    for tool, fields in {
        "finish_work": {"outcome": "succeeded"},
        "report_progress": {},
        "ask_human": {"question": "mine?"},
    }.items():
        assert ann.refusal(tool, **late, **fields).startswith("LeaseLost: "), tool
    # The same report again is accepted, as a repetition.
    assert ann.call("hand_over", **late)["repeated"] is True
    assert ann.refusal("hand_over", **{**now, "worker": "cid"}).startswith("LeaseLost: ")
    ann.call("finish_work", **now, outcome="succeeded")


def test_what_is_handed_over_comes_with_notes_and_costs_no_attempt(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue)
    ann.call("report_progress", **held, notes={"seen": 3})
    told = ann.call("hand_over", **held, notes={"seen": 5}, reason="somebody else knows better")
    assert told["state"] == "queued"
    (task,) = ann.call("claim_work", worker="bob", queue=queue)["tasks"]
    assert task["untrusted"]["notes"] == {"seen": 5}
    assert task["attempt"] == "1 of 3"


def test_a_lease_that_expires_leaves_the_notes_to_the_next(ann: Agent, queue: str) -> None:
    ann.submit(queue, max_attempts=2)
    held = ann.claim(queue, lease_s=0.2)
    ann.call("report_progress", **held, notes="half of it", lease_s=0.2)
    (task,) = ann.call("claim_work", worker="bob", queue=queue, wait_s=30)["tasks"]
    assert (task["untrusted"]["notes"], task["attempt"]) == ("half of it", "2 of 2")


def test_a_person_is_asked_and_answers(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue)
    told = ann.call("ask_human", **held, question="Which colour?", to="bea", form=FORM, notes="asked")
    assert told["state"] == "waiting_input"
    listed = ann.call("find_jobs", states=["waiting_input"], queue=queue)["jobs"]
    assert [job["id"] for job in listed] == [held["id"]]
    seen = ann.call("inspect_job", id=held["id"])
    assert seen["question"] == {"to": "bea", "untrusted": "Which colour?", "form": FORM}
    assert seen["next"][0] == "answer_human"
    assert "colour" in ann.refusal("answer_human", id=held["id"], answer={"colour": "green"})
    assert ann.call("answer_human", id=held["id"], answer={"colour": "red"})["state"] == "queued"
    (task,) = ann.call("claim_work", worker="ann", queue=queue)["tasks"]
    assert task["untrusted"] == {"payload": None, "answer": {"colour": "red"}, "notes": "asked"}
    assert ann.refusal("answer_human", id=held["id"], answer=1).startswith("IllegalTransition: ")


def test_a_form_must_be_a_schema(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    refused = ann.refusal("ask_human", **ann.claim(queue), question="?", form={"type": "colour"})
    assert refused.startswith("InvalidInput: form is not a JSON Schema")


def test_jobs_are_found_in_pages(ann: Agent, queue: str) -> None:
    ids = [ann.submit(queue, labels={"batch": queue}, correlation_id=queue) for _ in range(5)]
    for filters in ({"queue": queue}, {"labels": {"batch": queue}}, {"correlation_id": queue}):
        found: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            page = ann.call("find_jobs", **filters, limit=2, **cursor)
            found += [job["id"] for job in page["jobs"]]
            if "next_cursor" not in page:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert found == ids[::-1]
    assert ann.call("find_jobs", queue=queue, states=["failed"])["jobs"] == []
    assert "not a cursor" in ann.refusal("find_jobs", cursor="am9iczotMQ")


def test_history_and_log_are_shown_in_pages(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue)
    ann.call("report_progress", **held, log=["one", "two", "three"])
    seen = ann.call("inspect_job", id=held["id"], show=["events", "log"], limit=2)
    assert [event["type"] for event in seen["events"]] == ["task.submitted", "task.claimed"]
    assert [line["untrusted"] for line in seen["log"]] == ["one", "two"]
    cursors = {"events_cursor": seen["next_events_cursor"], "log_cursor": seen["next_log_cursor"]}
    rest = ann.call("inspect_job", id=held["id"], show=["events", "log"], limit=2, **cursors)
    assert [event["type"] for event in rest["events"]] == ["task.started"]
    assert [line["untrusted"] for line in rest["log"]] == ["three"]
    assert "next_log_cursor" not in rest


def test_a_large_payload_is_cut_unless_the_whole_is_wanted(ann: Agent, queue: str) -> None:
    id_ = ann.submit(queue, payload="x" * 50_000)
    assert "50,002 bytes" in ann.call("inspect_job", id=id_)["untrusted"]["payload"]["cut"]
    assert ann.call("inspect_job", id=id_, whole=True)["untrusted"]["payload"] == "x" * 50_000
    (task,) = ann.call("claim_work", worker="ann", queue=queue)["tasks"]
    assert task["untrusted"]["payload"] == "x" * 50_000


def test_a_cancel_without_confirmation_says_what_it_would_do(ann: Agent, queue: str) -> None:
    id_ = ann.submit(queue)
    told = ann.call("cancel_job", id=id_)
    assert told["done"] is False
    assert id_ in told["would"]
    assert ann.call("inspect_job", id=id_)["state"] == "queued"
    done = ann.call("cancel_job", id=id_, confirm=True, reason="a mistake")
    assert (done["done"], done["state"]) == (True, "cancelled")
    assert "has ended already" in ann.refusal("cancel_job", id=id_, confirm=True)
    assert "has ended already" in ann.refusal("cancel_job", id=id_)


def test_an_ended_job_is_run_again_once_confirmed(ann: Agent, queue: str) -> None:
    ann.submit(queue, payload=[1])
    held = ann.claim(queue)
    assert "has not ended" in ann.refusal("redrive_job", id=held["id"])
    ann.call("finish_work", **held, outcome="failed", error="no", retry=False)
    assert ann.call("redrive_job", id=held["id"])["done"] is False
    again = ann.call("redrive_job", id=held["id"], confirm=True)
    assert (again["retry_of"], again["state"]) == (held["id"], "queued")
    (task,) = ann.call("claim_work", worker="ann", queue=queue)["tasks"]
    assert (task["id"], task["untrusted"]) == (again["id"], {"payload": [1]})


def test_a_job_is_run_and_its_result_awaited(ann: Agent, web: Agent, queue: str) -> None:
    def work() -> None:
        held = web.claim(queue, "bob", wait_s=30)
        web.call("finish_work", **held, outcome="succeeded", result={"sum": 3})

    worker = threading.Thread(target=work)
    worker.start()
    done = ann.call("run_job", kind="add", queue=queue, wait_s=30)
    worker.join()
    assert (done["state"], done["untrusted"]) == ("succeeded", {"result": {"sum": 3}})


def test_a_job_that_takes_longer_goes_on(ann: Agent, queue: str) -> None:
    told = ann.call("run_job", kind="add", queue=queue, wait_s=0.1, idempotency_key=queue)
    assert told["state"] == "queued"
    again = ann.call("run_job", kind="add", queue=queue, wait_s=0, idempotency_key=queue)
    assert again["id"] == told["id"]


def test_progress_reaches_a_caller_who_waits(ann: Agent, web: Agent, queue: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    def work() -> None:
        held = web.claim(queue, "bob", wait_s=30)
        web.call("report_progress", **held, done=2, total=3, message="almost")
        wait_until(lambda: bool(heard), 30)
        web.call("finish_work", **held, outcome="succeeded")

    worker = threading.Thread(target=work)
    worker.start()
    arguments = {"kind": "add", "queue": queue, "wait_s": 30}
    done = ann.portal.call(lambda: ann.client.call_tool("run_job", arguments, progress_callback=hear))
    worker.join()
    assert done.structured_content["state"] == "succeeded"
    assert heard == [(2.0, 3.0, "almost")]


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("submit_job", {}, "kind: it is required"),
        ("submit_job", {"kind": 7}, "kind: Input should be a valid string"),
        ("submit_job", {"kind": ""}, "kind must have 1 to 200 characters"),
        ("submit_job", {"kind": "a", "delay_s": -1}, "delay_s: Input should be greater than or equal to 0"),
        ("submit_job", {"kind": "a", "colour": 1}, "there is no argument 'colour': use kind, payload"),
        ("find_jobs", {"states": ["asleep"]}, "states must be one of"),
        ("find_jobs", {"limit": 1000}, "limit: Input should be less than or equal to 100"),
        ("inspect_job", {"id": "7"}, "as submit returned it"),
        ("inspect_job", {"id": "01a1e967-f05b-7444-85ec-633669325409"}, "there is no job 01a1e967"),
        ("claim_work", {"worker": "a", "lease_s": 0}, "lease_s: Input should be greater"),
        ("finish_work", {"id": "x", "fence": 1, "worker": "a", "outcome": "maybe"}, "outcome: Input should be"),
        ("finish_work", {"id": "x", "fence": 1, "worker": "a", "outcome": "failed"}, "say what went wrong"),
        ("finish_work", {"id": "x", "fence": "1", "worker": "a", "outcome": "succeeded"}, "fence: Input should be"),
    ],
)
def test_a_wrong_argument_is_named(web: Agent, tool: str, arguments: dict[str, Any], words: str) -> None:
    assert words in web.refusal(tool, **arguments)


def test_a_flow_is_shown_with_its_stages(ann: Agent, place: Place, queue: str) -> None:
    from onetray.domain.flow import StageSpec, TaskSpec

    stages = [StageSpec("one", [TaskSpec("review", queue=queue)]), StageSpec("two", [TaskSpec("review", queue=queue)])]
    flow = place.engine.submit_flow("paper", stages)
    ann.call("finish_work", **ann.claim(queue), outcome="succeeded", result=1)
    seen = ann.call("inspect_job", id=flow.id, show=["events", "log"])
    assert (seen["entity"], seen["kind"]) == ("flow", "paper")
    assert [(stage["name"], stage["state"]) for stage in seen["stages"]] == [("one", "succeeded"), ("two", "pending")]
    assert seen["events"][0]["type"] == "flow.submitted"
    assert ann.call("cancel_job", id=flow.id, confirm=True)["state"] == "cancelled"
    again = ann.call("redrive_job", id=flow.id, confirm=True)
    assert ann.call("inspect_job", id=again["id"])["retry_of"] == flow.id
    ann.call("cancel_job", id=again["id"], confirm=True)

"""ctx: what a handler knows, keeps and asks for."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from onetray import (
    Engine,
    InvalidInput,
    Onetray,
    OnetrayError,
    PermanentError,
    Policy,
    StageSpec,
    TaskContext,
    TaskError,
    TaskSpec,
    TransientError,
    Unavailable,
    ctx,
)
from onetray.testing import Harness


def test_outside_of_a_task_ctx_says_so() -> None:
    with pytest.raises(OnetrayError, match=r"ctx\.attempt is available only while a task runs") as raised:
        _ = ctx.attempt
    assert raised.value.code == "no_task"
    assert repr(ctx) == "<ctx: no task runs here>"
    with pytest.raises(AttributeError, match="cannot be changed"):
        ctx.attempt = 2  # type: ignore[misc]


class NoFlow:
    """Services that cannot read the flow of the task."""

    def __init__(self) -> None:
        self.asked = 0

    def config(self) -> None:
        self.asked += 1
        raise Unavailable("away")

    def log(self, *line: object) -> None: ...


def test_what_cannot_be_hidden_for_want_of_an_answer_is_asked_for_once_and_not_for_each_line(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onetray.task")
    engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail", {"pin": "hidden-1"}, policy=Policy(redact=("pin",)))])])
    services = NoFlow()
    context = TaskContext(engine.claim(worker="w")[0], services)  # type: ignore[arg-type]
    for _ in range(3):
        context.log("the pin is hidden-1")
    assert services.asked == 1
    assert "hidden-1" not in caplog.text
    assert caplog.text.count("***") == 3


def test_a_handler_knows_its_task(app: Onetray, anywhere: Harness) -> None:
    seen = {}

    @app.task(queue="mail", timeout_s=60)
    def look(n: int) -> None:
        names = "id kind queue worker attempt fence idempotency_key correlation_id trace input payload cancelled"
        seen.update({name: getattr(ctx, name) for name in names.split()})
        seen["deadline"], seen["repr"] = ctx.deadline, repr(ctx)

    job = look.submit(n=3)
    anywhere.drain()
    left = seen.pop("deadline") - datetime.now(UTC)
    assert timedelta(seconds=0) < left <= timedelta(seconds=60)
    assert seen == {
        "id": job.id, "kind": "look", "queue": "mail", "worker": "harness", "attempt": 1, "fence": 1,
        "idempotency_key": job.id, "correlation_id": job.id, "trace": None, "input": None, "payload": {"n": 3},
        "cancelled": False, "repr": f"<ctx of look {job.id}>",
    }  # fmt: skip


def test_the_idempotency_key_stays_and_the_fence_rises(app: Onetray, harness: Harness) -> None:
    seen = []

    @app.task(retries=2, backoff_base_s=0)
    def look() -> None:
        seen.append((ctx.idempotency_key, ctx.attempt, ctx.fence))
        if ctx.attempt < 3:
            raise TransientError("again")

    job = look.submit()
    harness.drain()
    assert seen == [(job.id, 1, 1), (job.id, 2, 2), (job.id, 3, 3)]


def test_a_redriven_task_has_the_key_and_the_checkpoint_of_the_first(app: Onetray, anywhere: Harness) -> None:
    seen = []

    @app.task
    def pay() -> None:
        seen.append((ctx.idempotency_key, ctx.last_checkpoint))
        ctx.checkpoint(len(seen))
        if len(seen) < 3:
            raise PermanentError("refused")

    job = pay.submit()
    anywhere.drain()
    again = job.retry()
    anywhere.drain()
    again.retry()
    anywhere.drain()
    assert seen == [(job.id, None), (job.id, 1), (job.id, 2)]
    pay.options(idempotency_key="order-7").submit()
    anywhere.drain()
    assert seen[-1] == ("order-7", None)


@pytest.mark.parametrize("error", [TransientError, PermanentError])
def test_a_handler_names_the_reason_of_its_dead_letter(app: Onetray, anywhere: Harness, error: type[TaskError]) -> None:
    ran = []

    @app.task(retries=1, backoff_base_s=0)
    def fetch() -> None:
        ran.append(ctx.attempt)
        raise error("no answer", reason_code="dependency_unavailable", stage="fetch")

    job = fetch.submit()
    anywhere.drain()
    (letter,) = anywhere.engine.dead_letters()
    assert (letter.task_id, letter.reason_code, letter.stage) == (job.id, "dependency_unavailable", "fetch")
    assert ran == ([1, 2] if error.retryable else [1])


def test_an_error_of_your_own_need_not_call_its_base(app: Onetray, harness: Harness) -> None:
    class Refused(PermanentError):
        def __init__(self, code: int) -> None:
            self.code = code

    @app.task
    def pay() -> None:
        raise Refused(402)

    job = pay.submit()
    harness.drain()
    assert (job.state, job.view().error["class"]) == ("failed", "Refused")


@pytest.mark.parametrize("words", [{"reason_code": "bad_luck"}, {"stage": "somewhere"}, {"stage": ""}])
def test_an_unknown_reason_names_the_known_ones(words: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="must be one of"):
        PermanentError("no", **words)  # type: ignore[arg-type]


def test_a_handler_may_say_when_to_try_again(app: Onetray, harness: Harness) -> None:
    @app.task(retries=1)
    def busy() -> None:
        if ctx.attempt == 1:
            raise TransientError("busy", retry_after_s=120)

    job = busy.submit()
    harness.drain()
    harness.advance(119)
    assert harness.drain() == 0
    harness.advance(1)
    assert harness.drain() == 1
    assert job.state == "succeeded"


def test_every_error_of_a_handler_says_whether_it_is_tried_again() -> None:
    assert {e.__name__: e.retryable for e in all_below(TaskError)} == {
        "TransientError": True, "PermanentError": False, "ValidationError": False, "LeaseConflictError": True,
    }  # fmt: skip


def all_below(cls: type[TaskError]) -> set[type[TaskError]]:
    return {
        e for sub in cls.__subclasses__() for e in (sub, *all_below(sub)) if e.__module__ == "onetray.domain.errors"
    }


def test_a_checkpoint_is_there_for_the_next_attempt(app: Onetray, anywhere: Harness) -> None:
    seen = []

    @app.task(retries=1, backoff_base_s=0)
    def count() -> int:
        seen.append(ctx.last_checkpoint)
        for n in range(seen[-1] or 0, 4):
            ctx.checkpoint(n + 1)
            if n == 1:
                raise RuntimeError("half way")
        return int(ctx.last_checkpoint)

    job = count.submit()
    anywhere.drain()
    assert (seen, job.result(0)) == ([None, 2], 4)


def test_a_checkpoint_is_awaited_in_a_worker_too(app: Onetray, engine: Engine) -> None:
    app.use(engine)

    @app.task
    async def careful() -> object:
        await ctx.checkpoint({"at": 3})
        return ctx.last_checkpoint

    with app.worker():
        assert careful.submit().result(20) == {"at": 3}


def test_a_checkpoint_that_is_no_json_is_refused_in_the_handler(app: Onetray, harness: Harness) -> None:
    @app.task
    def careless() -> str:
        try:
            ctx.checkpoint(object())
        except OnetrayError as e:
            return e.code
        return "kept"

    job = careless.submit()
    harness.drain()
    assert job.result(0) == "invalid_input"


def test_a_task_waits_for_input_and_goes_on_with_it(app: Onetray, anywhere: Harness) -> None:
    ran = []

    @app.task
    def order() -> object:
        ran.append(ctx.attempt)
        return ctx.wait_for_input("ann", "which size?")

    job = order.submit()
    anywhere.drain()
    anywhere.assert_state(job, "waiting_input")
    [blocker] = job.explain()
    assert (blocker.held_by, "which size?" in blocker.message) == ("ann", True)
    assert anywhere.drain() == 0
    assert job.resume({"size": 42}, by="ann") == "queued"
    anywhere.drain()
    # Waiting is no attempt.
    assert (job.result(0), ran) == ({"size": 42}, [1, 1])


def test_an_input_that_is_false_is_an_input(app: Onetray, harness: Harness) -> None:
    @app.task
    async def order() -> str:
        return f"got {ctx.wait_for_input()}"

    job = order.submit()
    harness.drain()
    harness.engine.resume(job.id, input=False)
    harness.drain()
    assert job.result(0) == "got False"


def test_a_log_line_goes_to_the_standard_logger_as_well(
    app: Onetray, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def chatty() -> None:
        ctx.log("sent", level="warning", to="ann")

    with caplog.at_level(logging.INFO, "onetray.task"):
        job = chatty.submit()
        harness.drain()
    [record] = [r for r in caplog.records if r.name == "onetray.task"]
    assert (record.levelname, record.getMessage()) == ("WARNING", f"chatty {job.id}: sent to='ann'")


def test_an_unknown_level_is_refused(app: Onetray, harness: Harness) -> None:
    @app.task
    def chatty() -> str:
        with pytest.raises(ValueError, match="level must be one of debug, info"):
            ctx.log("x", level="loud")
        return "well"

    job = chatty.submit()
    harness.drain()
    assert job.result(0) == "well"


def test_progress_is_read_by_others(app: Onetray, engine: Engine) -> None:
    app.use(engine)

    @app.task
    def work() -> None:
        ctx.progress(1, 4)
        ctx.progress(2, 4, "half")

    with app.worker():
        job = work.submit()
        job.result(20)
    said = engine.progress_of(job.id)
    assert (said.done, said.total, said.message) == (2, 4, "half")

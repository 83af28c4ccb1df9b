"""What may be declared, and how it is refused."""

import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
import typing_extensions

from onetray import InvalidInput, Onetray, PermanentError, TransientError
from onetray.testing import Harness


def test_rules_become_the_policy(app: Onetray) -> None:
    @app.task(kind="mail.send", queue="mail", retries=4, timeout_s=9, on_exhaustion="fail")
    def send() -> None: ...

    assert (send.kind, send.queue, send.isolation) == ("mail.send", "mail", "thread")
    assert (send.policy.max_attempts, send.policy.timeout_s, send.policy.on_exhaustion) == (5, 9, "fail")
    assert app.tasks == {"mail.send": send}


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"retires": 3}, r"unknown setting 'retires': did you mean 'retries'\?"),
        ({"nonsense": 3}, "unknown setting 'nonsense'; settings of a task: max_attempts, backoff_base_s"),
        ({"priority": 3}, r"it is an option of a submit: task\.options\(priority=…\)\.submit"),
        ({"countdown": 3}, r"it is an option of a submit: task\.options\(delay_s=…\)\.submit"),
        ({"max_retries": 3}, "unknown setting 'max_retries': use 'retries'"),
        ({"backoff_base_s": 90}, r"backoff_base_s must be at most backoff_max_s \(60\), not 90"),
        ({"backoff_base_s": 3, "backoff_max_s": 2}, r"backoff_base_s must be at most backoff_max_s \(2\), not 3"),
        ({"retry_on": "OSError"}, "retry_on must be a list of exception classes, or of their names"),
        ({"retry_on": OSError}, "retry_on must be a list of exception classes, or of their names"),
        ({"retry_on": [OSError, int]}, "retry_on has int, which is not an exception class"),
        ({"no_retry_on": [3]}, "no_retry_on must be a list of class names"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"retries": True}, "retries must be a whole number"),
        ({"retries": 1, "max_attempts": 2}, "retries or max_attempts, not both"),
        ({"isolation": "async"}, "is not async"),
        ({"isolation": "moon"}, "isolation must be one of"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"kind": ""}, "kind"),
        ({"queue": ""}, "queue"),
    ],
)
def test_a_wrong_rule_is_refused_where_it_is_declared(app: Onetray, rules: dict[str, object], told: str) -> None:
    def job() -> None: ...

    with pytest.raises(InvalidInput, match=told):
        app.task(**rules)(job)  # type: ignore[arg-type]
    assert app.tasks == {}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda app: app.task(retires=3), "setting 'retires': did you mean 'retries'"),
        (lambda app: app.flow("f", concurency=3), "setting 'concurency': did you mean 'concurrency'"),
        (lambda app: app.flow("f", nonsense=3), "setting 'nonsense'; settings of a flow: max_attempts"),
        (lambda app: app.flow("f", retires=3), "setting 'retires': did you mean 'retries'"),
        (lambda app: app.flow("f", priority=3), r"option of a submit: flow\.submit\(config, priority=…\)"),
        (lambda app: app.flow("f", roll_up="all"), "roll_up must be one of strict, drain, mixed"),
        (lambda app: app.flow("f").stage(aprove="ann"), "setting 'aprove': did you mean 'approve'"),
        (lambda app: app.flow("f").stage(kind="x"), "setting 'kind'; settings of a stage: max_attempts"),
        (lambda app: app.worker(concurency=3), "setting 'concurency': did you mean 'concurrency'"),
        (lambda app: app.worker(nonsense=3), "setting 'nonsense'; settings of a worker: concurrency, queues"),
        (lambda app: app.worker(queues=3), "queues must be a list of names, or one text with commas"),
        (lambda app: app.worker(queues=[3]), "queues must be a list of names, or one text with commas"),
        (lambda app: app.worker(name=3), "name must be text"),
        (lambda app: app.worker(janitor="no"), "janitor must be true or false"),
        (lambda app: app.task("mail"), r"'mail' is no function: to name a task, write @app.task\(kind=…\)"),
        (lambda app: app.flow("f").stage("a"), r"'a' is no function: to name a stage, write @flow.stage\(name=…\)"),
        (lambda app: app.task(dict), "dict: no signature found .*; wrap it in a function"),
        (lambda app: app.flow(""), "name must have 1 to 200 characters"),
    ],
)  # fmt: skip
def test_a_wrong_keyword_is_refused_at_its_own_line(app: Onetray, wrong: Callable[[Onetray], Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        wrong(app)


def test_a_wrong_option_of_a_flows_submit_is_refused(app: Onetray) -> None:
    flow = app.flow("f")
    flow.stage(name="only")(lambda: 1)
    with pytest.raises(InvalidInput, match="option 'unique': did you mean 'unique_key'"):
        flow.submit(unique="x")  # type: ignore[call-arg]


def test_a_flow_is_no_task(app: Onetray) -> None:
    app.flow("news")
    with pytest.raises(InvalidInput, match=r"'news' is a flow: use app.flows\['news'\].submit\(config\)"):
        app.submit("news")


class Refused(ConnectionError):
    pass


class Overloaded(TransientError):
    """Asks for a retry, with a reason, which alone would dead-letter it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason_code="timeout")


def test_a_task_is_also_a_function_and_names_submit_to_whoever_looks_for_another_method(app: Onetray) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    assert double(21) == 42
    for name in ("delay", "apply_async", "send", "enqueue", "defer"):
        with pytest.raises(AttributeError, match=rf"has no method '{name}': use double\.submit\(…\)"):
            getattr(double, name)
    with pytest.raises(AttributeError, match="object has no attribute 'colour'"):
        double.colour  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("rules", "error", "attempts"),
    [
        ({"retry_on": [OSError]}, Refused, 3), ({"retry_on": ["OSError"]}, Refused, 1), ({}, Refused, 3),
        ({"retry_on": [OSError]}, KeyError, 1), ({"retry_on": [OSError, "KeyError"]}, KeyError, 3),
        ({"no_retry_on": [OSError]}, Refused, 1), ({"no_retry_on": (LookupError,)}, Refused, 3),
        ({"retry_on": [OSError], "no_retry_on": [ConnectionError]}, Refused, 1),
        ({"retry_on": [OSError], "no_retry_on": ["Refused"]}, Refused, 1),
        ({"retry_on": [Exception]}, PermanentError, 1),
        ({}, Overloaded, 3), ({"no_retry_on": ["Overloaded"]}, Overloaded, 1),
        ({"no_retry_on": [TransientError]}, Overloaded, 1),
        ({"retry_on": [TransientError], "no_retry_on": ["Overloaded"]}, Overloaded, 1),
    ],
)  # fmt: skip
def test_a_class_of_errors_has_its_subclasses(
    app: Onetray, anywhere: Harness, rules: dict[str, Any], error: type[Exception], attempts: int
) -> None:
    @app.task(retries=2, backoff_base_s=0, **rules)
    def broken() -> None:
        raise error("no")

    flow = app.flow("f", retries=2, backoff_base_s=0, **rules)
    flow.stage(name="only")(broken.function)
    jobs = [broken.submit(), flow.submit()]
    anywhere.drain()
    assert [anywhere.engine.task(job.id).attempts for job in jobs[:1]] == [attempts]
    assert [task.attempts for task in jobs[1].children().tasks] == [attempts]


def test_results_of_a_flow_have_the_type_that_it_declares(app: Onetray, anywhere: Harness) -> None:
    @dataclass
    class Results:
        day: date

    flow = app.flow("calendar", results=Results)
    flow.stage(name="day")(lambda: date(2026, 1, 2))
    job = flow.submit()
    anywhere.drain()
    assert job.result(0) == app.job(job.id).result(0) == Results(date(2026, 1, 2))
    flow.results_type = int
    with pytest.raises(InvalidInput, match="the results of flow calendar: Input should be a valid integer"):
        job.result(0)


@pytest.mark.parametrize("field", ["config", "results"])
def test_a_typed_dict_is_one_that_can_be_checked(app: Onetray, harness: Harness, field: str) -> None:
    plain, extended = typing.TypedDict("plain", {"n": int}), typing_extensions.TypedDict("extended", {"n": int})
    if sys.version_info < (3, 12):
        with pytest.raises(InvalidInput, match=f"{field}: before Python 3.12 use the TypedDict of typing_extensions"):
            app.flow("f", **{field: plain})
        plain = extended
    flow = app.flow("f", **{field: plain})
    flow.stage(name="n")(lambda: 3)
    job = flow.submit({"n": 1})
    harness.drain()
    assert job.result(0) == {"n": 3}


def test_an_async_function_does_not_run_in_a_thread(app: Onetray) -> None:
    async def job() -> None: ...

    with pytest.raises(InvalidInput, match="is async"):
        app.task(isolation="thread")(job)


def test_two_tasks_of_one_kind_are_refused(app: Onetray) -> None:
    app.task(kind="one")(lambda: None)
    with pytest.raises(InvalidInput, match="the kind 'one' is declared twice"):
        app.task(kind="one")(lambda: 1)


def test_a_lambda_needs_a_kind(app: Onetray) -> None:
    with pytest.raises(InvalidInput, match="needs kind="):
        app.task(lambda: None)


def test_an_app_has_one_lifespan(app: Onetray) -> None:
    app.lifespan(lambda: iter(()))
    with pytest.raises(InvalidInput, match="already has a lifespan"):
        app.lifespan(lambda: iter(()))


def test_an_unknown_task_is_named_with_those_there_are(app: Onetray) -> None:
    app.task(kind="mail")(lambda: None)
    with pytest.raises(InvalidInput, match="unknown task 'male'; declared tasks: mail"):
        app.submit("male")

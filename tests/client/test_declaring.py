"""What may be declared, and how it is refused."""

import pytest

from onetray import InvalidInput, Onetray


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

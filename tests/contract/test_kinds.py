"""Which kinds a namespace knows, and which jobs were retried."""

from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.tasks import submit


def test_kinds_are_those_that_were_declared_or_submitted(engine: Engine) -> None:
    assert engine.kinds() == []
    engine.declare({"mail": Policy(), "sync": Policy(max_attempts=2)})
    submit(engine, "a")
    submit(engine, "z", namespace="other")
    assert engine.kinds() == ["a", "mail", "sync"]
    assert engine.kinds(limit=2) == ["a", "mail"]
    assert engine.kinds(namespace="other") == ["z"]


def test_the_name_of_a_flow_is_no_kind_unless_tasks_have_it(engine: Engine) -> None:
    engine.submit_flow("news", [StageSpec("write", [TaskSpec("article")])])
    assert engine.kinds() == ["article"]
    submit(engine, "news")
    assert engine.kinds() == ["article", "news"]


def test_a_job_was_retried_if_its_retry_is_still_there(engine: Engine) -> None:
    ids = [submit(engine, "mail"), submit(engine, "mail", correlation_id="order-7"), submit(engine, "mail")]
    for id_ in ids:
        engine.cancel(id_)
    assert engine.retried(ids) == []
    new = [engine.redrive(id_).id or "" for id_ in ids[:2]]
    assert sorted(engine.retried(ids)) == sorted(ids[:2])
    assert engine.retried(ids, namespace="other") == []
    assert engine.retried([]) == []
    engine.cancel(new[0])
    engine.delete_job(new[0])
    assert engine.retried(ids) == [ids[1]]

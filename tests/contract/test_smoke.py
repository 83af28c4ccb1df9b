"""The shortest way through the engine, on both stores."""

from onetray.engine import Engine


def test_a_task_goes_through_its_whole_life(engine: Engine) -> None:
    submitted = engine.submit("mail", {"to": "ann"})
    (claimed,) = engine.claim(worker="w")
    engine.start(claimed)
    engine.succeed(claimed, {"sent": 1})
    task = engine.task(submitted.id or "")
    assert (task.state, task.result, task.version) == ("succeeded", {"sent": 1}, 4)
    assert [e.type for e in engine.events(task.id)] == [
        "task.submitted",
        "task.claimed",
        "task.started",
        "task.succeeded",
    ]

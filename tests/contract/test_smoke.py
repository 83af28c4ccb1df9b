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


def test_every_receipt_names_its_task(engine: Engine) -> None:
    id_ = engine.submit("mail").id
    assert id_ is not None
    assert engine.set_priority(id_.upper(), 1).id == id_
    (claimed,) = engine.claim(worker="w")
    assert [engine.start(claimed).id, engine.succeed(claimed).id, engine.succeed(claimed).id] == [id_] * 3

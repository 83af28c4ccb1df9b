"""A database in memory: its readers and its writer wait for each other, so nothing else may make them wait."""

from __future__ import annotations

import threading

from onetray.config import EngineConfig
from onetray.engine import Engine

ROUNDS = 300


def test_reading_the_names_and_writing_do_not_wait_for_each_other_in_a_circle() -> None:
    """Both read the names again, because they do not know the one that is asked for: one inside a transaction."""
    with Engine.open("sqlite://:memory:", config=EngineConfig(call_timeout_s=5)) as engine:
        engine.submit("mail")
        failed: list[Exception] = []

        def often(call: object) -> None:
            assert callable(call)
            try:
                for _ in range(ROUNDS):
                    call()
            except Exception as e:
                failed.append(e)

        calls = [lambda: engine.claim("unknown", worker="w"), lambda: engine.prune(5, namespace="unknown")] * 2
        threads = [threading.Thread(target=often, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
        assert not any(thread.is_alive() for thread in threads)
        assert not failed

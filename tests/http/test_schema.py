"""Requests made from the API's own description: no answer breaks, none is other than described."""

from __future__ import annotations

from onetray.engine import Engine
from onetray.http.app import build
from onetray.store import open_store
from tests.support.engines import must_verify
from tests.support.fuzz import furnish, run_campaign


def test_no_request_breaks_the_server_and_every_answer_is_as_described() -> None:
    store = open_store("sqlite://:memory:")
    store.migrate()
    with Engine(store, seed=1) as engine:
        ids = furnish(engine)
        done = run_campaign(build(engine), ids, each=1)
        assert not done.faults, "\n\n".join(done.faults[:5])
        assert done.cases > 100
        assert {200, 400, 404, 409} <= set(done.statuses)
        must_verify(engine)

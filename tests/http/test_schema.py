"""Requests made from the API's own description: no answer breaks, none is other than described."""

from __future__ import annotations

from onetray.http.app import build
from tests.support.engines import must_verify, open_migrated
from tests.support.fuzz import furnish, run_campaign


def test_no_request_breaks_the_server_and_every_answer_is_as_described() -> None:
    with open_migrated("sqlite://:memory:") as engine:
        done = run_campaign(build(engine), furnish(engine), cases=100, each=1)
        assert not done.faults, "\n\n".join(done.faults[:5])
        assert done.cases > 100
        assert {200, 400, 404, 409} <= set(done.statuses)
        must_verify(engine)

"""`onetray submit` with --debounce and --throttle."""

from __future__ import annotations

from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told


def test_submits_are_debounced_and_throttled(place: Place) -> None:
    debounced = ("submit", "index", "--unknown-kind", "--debounce", "1h", "--debounce-max", "2h", "--debounce-key", "a")
    first = told(*debounced, "n=1", *place.at)
    assert (first["repeated"], first["window"]) == (False, None)
    done = called(*debounced, "n=2", *place.at)
    assert done.stdout == f"{first['id']} (debounced: the payload of this job was replaced)\n"
    assert place.engine.task(first["id"]).payload == {"n": 2}
    assert "it waits for quiet until" in called("jobs", "explain", first["id"], *place.at).stdout
    throttled = ("submit", "remind", "--unknown-kind", "--throttle", "1h", "--throttle-key", "a", *place.at)
    first = told(*throttled)
    assert called(*throttled).stdout == f"{first['id']} (throttled: an earlier submit created this job)\n"
    done = called("submit", "remind", "--throttle-key", "a", *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert "throttle_key needs throttle_s" in done.stderr

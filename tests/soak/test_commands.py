"""The soak's commands: a campaign that has seen a fault says so, and ends with exit code 1."""

from __future__ import annotations

import pytest

from tests.soak.__main__ import _phases
from tests.support.slow_campaigns import Phase


@pytest.mark.parametrize(("faults", "code"), [([], 0), (["a request took 9 s"], 1)])
def test_a_campaign_in_phases_ends_as_its_phases_did(
    faults: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = 0
    try:
        _phases("sqlite", lambda url: iter([Phase("slow heads", faults=faults)]))
    except SystemExit as e:
        ended = int(e.code or 0)
    printed = capsys.readouterr().out
    assert (ended, "slow heads: " in printed) == (code, True)
    assert all(fault in printed for fault in faults)

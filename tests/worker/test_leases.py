"""When a worker renews its leases."""

from __future__ import annotations

import threading

import pytest

from onetray import Onetray
from onetray.worker.leases import Lease
from tests.support.fleet import wait_until

WAIT_S = 60.0


def test_a_lease_is_renewed_when_half_of_it_has_passed() -> None:
    lease = Lease(1, "default", 60.0)
    lease.renewed(1000.0)
    assert (lease.beat_at, lease.valid_until) == (1030.0, 1060.0)
    lease.renewed(1030.0)
    assert (lease.beat_at, lease.valid_until) == (1060.0, 1090.0)


def test_a_worker_counts_a_lease_from_its_claim_and_sends_a_heartbeat_at_half_of_it(either_app: Onetray) -> None:
    gate, began = threading.Event(), threading.Event()

    @either_app.task(lease_s=3600.0)
    def hold() -> None:
        began.set()
        assert gate.wait(WAIT_S)

    job = hold.submit()
    with either_app.worker() as worker:
        try:
            assert began.wait(WAIT_S)
            ((lease, _),) = worker.held.leases()
            assert lease.valid_until - lease.beat_at == pytest.approx(1800.0)
            expires_at = either_app.engine.task(job.id).lease_expires_at
            lease.beat_at -= 1800.0
            wait_until(lambda: either_app.engine.task(job.id).lease_expires_at != expires_at)
            wait_until(lambda: lease.valid_until - lease.beat_at == pytest.approx(1800.0))
        finally:
            gate.set()

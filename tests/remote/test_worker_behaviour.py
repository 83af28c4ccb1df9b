"""What a worker does with any engine it does with a server's, too: the same tests, with the fixtures of this folder."""

from tests.worker.test_cancel import (
    signals,
    test_a_cancel_reaches_an_async_handler_as_cancelled_error,
    test_a_durable_start_that_is_refused_begins_nothing,
)
from tests.worker.test_lost_tasks import (
    test_a_task_keeps_its_lease_while_other_tasks_of_its_claim_are_lost,
)
from tests.worker.test_outcomes import (
    test_a_log_line_that_cannot_be_stored_unchanged_affects_no_other_line,
)
from tests.worker.test_queues import (
    test_a_stop_releases_prefetched_tasks_at_once_while_handlers_go_on,
    test_a_worker_does_not_claim_kinds_that_its_app_does_not_have,
)

__all__ = [
    "signals",
    "test_a_cancel_reaches_an_async_handler_as_cancelled_error",
    "test_a_durable_start_that_is_refused_begins_nothing",
    "test_a_log_line_that_cannot_be_stored_unchanged_affects_no_other_line",
    "test_a_stop_releases_prefetched_tasks_at_once_while_handlers_go_on",
    "test_a_task_keeps_its_lease_while_other_tasks_of_its_claim_are_lost",
    "test_a_worker_does_not_claim_kinds_that_its_app_does_not_have",
]

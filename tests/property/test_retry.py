"""Backoff stays in its bounds for every policy, and the same seed makes the same waits."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from onetray.domain.clock import SECOND
from onetray.domain.policy import Policy
from onetray.domain.retry import backoff_us, retryable

SECONDS = st.floats(0, 1e6)
POLICIES = st.builds(
    lambda delays, factor, jitter: Policy(
        backoff_base_s=min(delays), backoff_max_s=max(delays), backoff_factor=factor, jitter=jitter
    ),
    st.tuples(SECONDS, SECONDS), st.floats(1, 1000), st.booleans(),
)  # fmt: skip
ATTEMPTS, SEEDS = st.integers(1, 1_000_000), st.integers(0, 2**32)
NAMES = st.sampled_from(["Error", "Boom", "ValidationError", "pkg.PermanentError", "HTTP 404", "HTTP 429", "http_503"])


def usual_s(policy: Policy, attempt: int) -> float:
    """base · factor^(attempt - 1), or the cap when that is past every float."""
    try:
        return policy.backoff_base_s * policy.backoff_factor ** (attempt - 1)
    except OverflowError:
        return policy.backoff_max_s * 2 if policy.backoff_base_s else 0.0


@given(POLICIES, ATTEMPTS, SEEDS)
def test_the_wait_is_capped_after_the_jitter(policy: Policy, attempt: int, seed: int) -> None:
    wait = backoff_us(policy, attempt, random.Random(seed))
    assert 0 <= wait <= policy.backoff_max_s * SECOND


@given(POLICIES, st.integers(1, 60), SEEDS)
def test_the_wait_is_within_half_of_the_usual_one_or_capped(policy: Policy, attempt: int, seed: int) -> None:
    wait, usual = backoff_us(policy, attempt, random.Random(seed)), usual_s(policy, attempt)
    low, high = (0.5, 1.5) if policy.jitter else (1.0, 1.0)
    at_least = min(policy.backoff_max_s, usual * low) * SECOND
    assert at_least - 1 <= wait * 1.000001
    assert wait <= min(policy.backoff_max_s, usual * high) * SECOND * 1.000001


@given(POLICIES, ATTEMPTS, SEEDS)
def test_the_same_seed_makes_the_same_wait(policy: Policy, attempt: int, seed: int) -> None:
    assert backoff_us(policy, attempt, random.Random(seed)) == backoff_us(policy, attempt, random.Random(seed))


@given(POLICIES, SEEDS)
def test_without_jitter_the_waits_never_shrink(policy: Policy, seed: int) -> None:
    steady, chance = policy.with_(jitter=False), random.Random(seed)
    waits = [backoff_us(steady, attempt, chance) for attempt in range(1, 80)]
    assert waits == sorted(waits)


def test_the_defaults_are_half_a_second_doubled_up_to_a_minute() -> None:
    steady = Policy(jitter=False)
    waits = [backoff_us(steady, attempt, random.Random(0)) / SECOND for attempt in (1, 2, 3, 7, 8, 9, 1000)]
    assert waits == [0.5, 1, 2, 32, 60, 60, 60]


def test_jitter_spreads_over_the_whole_range() -> None:
    chance = random.Random(1)
    waits = [backoff_us(Policy(backoff_base_s=10), 1, chance) / SECOND for _ in range(2000)]
    assert 5 <= min(waits) < 5.1
    assert 14.9 < max(waits) <= 15


@given(NAMES, st.lists(NAMES, max_size=3), st.lists(NAMES, max_size=3), st.booleans())
def test_the_reporters_own_word_counts_first(name: str, on: list[str], never: list[str], said: bool) -> None:
    assert retryable(Policy(retry_on=tuple(on), no_retry_on=tuple(never)), name, said) is said


@given(NAMES, st.lists(NAMES, max_size=3))
def test_what_must_not_be_retried_never_is(name: str, on: list[str]) -> None:
    assert not retryable(Policy(retry_on=tuple(on), no_retry_on=(name,)), name, None)


def test_errors_are_classed_by_default() -> None:
    plain = Policy()
    again = {"Error", "TransientError", "TimeoutError", "ConnectionError", "HTTP 429", "HTTP 503", "http_500"}
    never = {"ValidationError", "PermanentError", "my.pkg.ValidationError", "HTTP 404", "HTTP 400"}
    assert {name for name in again | never if retryable(plain, name, None)} == again

"""Cursors mean something to their own list alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onetray.domain.checks import FAR_US
from onetray.domain.errors import InvalidInput
from onetray.http.params import cursor_at, cursor_position
from tests.support.cases import each_case


@given(st.integers(0, FAR_US - 1))
def test_a_cursor_comes_back_to_its_place(at: int) -> None:
    assert cursor_position("jobs", cursor_at("jobs", at)) == at


@given(st.one_of(st.text(max_size=150), st.binary(max_size=60).map(lambda b: b.decode("latin-1"))))
def test_whatever_is_no_cursor_is_refused(text: str) -> None:
    try:
        at = cursor_position("jobs", text)
    except InvalidInput:
        return
    assert cursor_at("jobs", at) == text


@each_case("text", [cursor_at("events", 1), cursor_at("jobs", FAR_US), cursor_at("jobs", 7) + "=", "", "am9iczo"])
def test_a_cursor_of_another_list_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        cursor_position("jobs", text)


def test_without_a_cursor_a_list_begins_at_its_beginning() -> None:
    assert cursor_position("jobs", None) == 0

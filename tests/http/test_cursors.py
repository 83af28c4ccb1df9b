"""Cursors mean something to their own list alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onetray.domain.checks import FAR_US
from onetray.domain.errors import InvalidInput
from onetray.http.params import cursor, place
from tests.support.cases import each_case


@given(st.integers(0, FAR_US - 1))
def test_a_cursor_comes_back_to_its_place(at: int) -> None:
    assert place("jobs", cursor("jobs", at)) == at


@given(st.one_of(st.text(max_size=150), st.binary(max_size=60).map(lambda b: b.decode("latin-1"))))
def test_whatever_is_no_cursor_is_refused(text: str) -> None:
    try:
        at = place("jobs", text)
    except InvalidInput:
        return
    assert cursor("jobs", at) == text


@each_case("text", [cursor("events", 1), cursor("jobs", FAR_US), cursor("jobs", 7) + "=", "", "am9iczo"])
def test_a_cursor_of_another_list_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        place("jobs", text)


def test_without_a_cursor_a_list_begins_at_its_beginning() -> None:
    assert place("jobs", None) == 0

"""The names and routes of other systems, mapped onto the native ones. No lifecycle logic of their own."""

from __future__ import annotations

from onetray.errors import InvalidInput

KNOWN = ("so1",)
NONE = "none"


def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    """The dialects that are meant; `none` alone means none of them."""
    if names == (NONE,):
        return ()
    for name in names:
        if name not in KNOWN:
            raise InvalidInput(
                f"there is no dialect {name!r}; there are: {', '.join(KNOWN)}; or none", field="dialects"
            )
    return tuple(dict.fromkeys(names))

"""What pytest-xdist has a forked worker execute instead of its own program: see one_collection.py."""

from tests.support import one_collection

if __name__ == "__channelexec__":
    one_collection.hand_over(channel)  # type: ignore[name-defined]  # noqa: F821

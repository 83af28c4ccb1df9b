"""The pair of engines that the property tests share."""

from collections.abc import Iterator

import pytest

from tests.property.twins import Pair, pair
from tests.support.cluster import Server


@pytest.fixture(scope="package")
def both(postgres: Server) -> Iterator[Pair]:
    with postgres.database() as url, pair(url) as engines:
        yield engines
        engines.verify()

"""The fixture to which benchmarks report their ratios."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bench.paired import tell

Tell = Callable[..., None]


@pytest.fixture
def bench(pytestconfig: pytest.Config) -> Tell:
    """`bench(name, ratio, limit, details)` keeps one line for the end."""

    def told(name: str, ratio: float, limit: float, details: str, unit: str = "") -> None:
        tell(pytestconfig, name, ratio, limit, details, unit)

    return told

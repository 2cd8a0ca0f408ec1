"""The fixture with which benchmarks report their ratios."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bench.paired import tell

Tell = Callable[..., None]


@pytest.fixture
def bench(pytestconfig: pytest.Config) -> Tell:
    """`bench(name, ratio, limit, details)` records one line, which is printed at the end of the run."""

    def report(name: str, ratio: float, limit: float, details: str, unit: str = "") -> None:
        tell(pytestconfig, name, ratio, limit, details, unit)

    return report

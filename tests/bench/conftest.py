"""Prints the ratios at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bench.paired import show_lines, tell

Tell = Callable[..., None]


@pytest.fixture
def bench(pytestconfig: pytest.Config) -> Tell:
    """`bench(name, ratio, limit, details)` keeps one line for the end."""

    def told(name: str, ratio: float, limit: float, details: str, unit: str = "") -> None:
        tell(pytestconfig, name, ratio, limit, details, unit)

    return told


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was measured."""
    show_lines(terminalreporter, config)

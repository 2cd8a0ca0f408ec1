"""Makes the lab's fixtures known to the tests in this directory when no root conftest does."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A plugin that is registered already is left as it is."""
    config.pluginmanager.import_plugin("tests.lab.plugin")

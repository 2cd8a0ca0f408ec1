"""Loads the lab's fixtures for the tests in this directory if no root conftest loads them."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Import the plugin; this has no effect if it is registered already."""
    config.pluginmanager.import_plugin("tests.lab.plugin")

# SPDX-License-Identifier: Apache-2.0
"""Settings for every test: hypothesis has no deadline, and SIGINT has its default handler.

A run of every change tries one of five examples of each property, and leaves out the tests with the mark `long`.
A shell starts background commands with SIGINT ignored, and every child would inherit that.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests import EVERYTHING, examples

settings.register_profile(
    "vgpuctl", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("vgpuctl")
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests to the long run; the result counts them as deselected."""
    left = [] if EVERYTHING else [item for item in items if item.get_closest_marker("long")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Return a short name for a long text: the workers send each other the names of all tests."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > 200 else None

# SPDX-License-Identifier: Apache-2.0
"""The Ansible versions of the tests: where it matters, the newest and the oldest that the collection supports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import EVERYTHING
from tests.ansible.plays import ANSIBLE, OLDEST_ANSIBLE


@pytest.fixture(params=[ANSIBLE, OLDEST_ANSIBLE] if EVERYTHING else [OLDEST_ANSIBLE], ids=lambda path: path.parent.name)
def ansible(request: pytest.FixtureRequest) -> Path:
    """Return the directory of one Ansible's programs."""
    result: Path = request.param
    return result

# SPDX-License-Identifier: Apache-2.0
"""All tests and their shared helpers."""

from __future__ import annotations

import os

EVERYTHING = os.environ.get("VGPUCTL_TESTS") == "all"
"""Whether this is the long run, `tests/bootstrap.py test --all`, or only a sample of what is the same many times."""

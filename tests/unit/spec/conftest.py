# SPDX-License-Identifier: Apache-2.0
"""Properties are judged by their result: a busy machine makes none of them fail."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

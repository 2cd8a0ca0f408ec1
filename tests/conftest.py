# SPDX-License-Identifier: Apache-2.0
"""Settings for every test: hypothesis has no deadline, and SIGINT has its default handler.

A run of every change tries one of three examples of each property.
A shell starts background commands with SIGINT ignored, and every child would inherit that.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from tests import examples

settings.register_profile(
    "vgpuctl", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("vgpuctl")
signal.signal(signal.SIGINT, signal.default_int_handler)

# SPDX-License-Identifier: Apache-2.0
"""Settings for every test: hypothesis has no deadline, and SIGINT has its default handler.

A shell starts background commands with SIGINT ignored, and every child would inherit that.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("vgpuctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vgpuctl")
signal.signal(signal.SIGINT, signal.default_int_handler)

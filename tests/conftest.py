# SPDX-License-Identifier: Apache-2.0
"""Settings for every test: hypothesis judges results, not speed."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("vgpuctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vgpuctl")

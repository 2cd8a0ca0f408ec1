# SPDX-License-Identifier: Apache-2.0
"""mtty's types count its ports."""

from __future__ import annotations

import pytest

from vgpuctl.makers.kernel_samples import KernelSamples


@pytest.mark.parametrize(("type_id", "ports"), [("mtty-2", 2), ("mtty-0", None), ("mtty-x", None)])
def test_a_type_takes_ports(type_id, ports):
    assert KernelSamples().read_type(type_id, "Dual port serial", "").pool_units == ports

# SPDX-License-Identifier: Apache-2.0
"""The clock."""

from vgpuctl.host.clock import HostClock


def test_it_goes_on():
    clock = HostClock()
    before, wall = clock.monotonic(), clock.now()
    clock.sleep(0.001)
    assert clock.monotonic() >= before + 0.001
    assert wall > 1_700_000_000

# SPDX-License-Identifier: Apache-2.0
"""A simulated host on which the write that creates a vGPU takes as long as with a real driver.

No vendor documents that time, and no measurement is published. DRIVER_SECONDS is the shortest creation for which we
have a measurement: an mdev of a substitute driver, through libvirt's nodeDeviceCreateXML. The substitute has no GPU to
talk to; NVIDIA's driver has one.

`python -m tests.bench.slow_driver WORDS...` runs `vgpuctl WORDS...` on such hosts.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from vgpuctl import simulated
from vgpuctl.cli import entry
from vgpuctl.host.processes import HostClock
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

DRIVER_SECONDS = 0.2


class SlowDriver:
    """The sysfs of a host with such a driver. `waited` is its total time. Writes by several threads overlap."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.waited = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, path: str, text: str) -> None:
        """Write, and wait as long as a real driver takes."""
        self._inner.write(path, text)
        if path.endswith("/current_vgpu_type"):
            started = time.perf_counter()
            time.sleep(DRIVER_SECONDS)
            self.waited += time.perf_counter() - started


def main() -> int:
    """Run this process's command line, with a slow driver on every simulated host that it opens."""
    open_fast = simulated.open_simulated_host

    def open_slow(scenario: str, clock: HostClock | None = None, wait_seconds: float = 60.0) -> Host:
        ports = open_fast(scenario, clock, wait_seconds)
        return replace(ports, sysfs=SlowDriver(ports.sysfs))

    simulated.open_simulated_host = open_slow
    return entry.main()


if __name__ == "__main__":
    sys.exit(main())

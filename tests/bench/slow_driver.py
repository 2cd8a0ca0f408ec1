# SPDX-License-Identifier: Apache-2.0
"""A simulated host on which the write that makes a vGPU takes as long as a driver's.

No maker says how long that is, and no measurement is published. DRIVER_SECONDS is the shortest creation that we have
seen timed: an mdev of a stand-in for a driver, through libvirt's nodeDeviceCreateXML. A stand-in has no GPU to talk to;
NVIDIA's driver has.

`python -m tests.bench.slow_driver WORDS...` is `vgpuctl WORDS...` on such hosts.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from vgpuctl import simulated
from vgpuctl.cli import entry
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

DRIVER_SECONDS = 0.2


class SlowDriver:
    """The files of a host with such a driver; `waited` is the sum of its time. Writes of several threads overlap."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.waited = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, path: str, text: str) -> None:
        """Write, and take the time."""
        self._inner.write(path, text)
        if path.endswith("/current_vgpu_type"):
            begun = time.perf_counter()
            time.sleep(DRIVER_SECONDS)
            self.waited += time.perf_counter() - begun


def main() -> int:
    """Run the process's own command line, with a slow driver on every simulated host that it opens."""
    as_it_is = simulated.open_simulated_host

    def slow(scenario: str) -> Host:
        ports = as_it_is(scenario)
        return replace(ports, sysfs=SlowDriver(ports.sysfs))

    simulated.open_simulated_host = slow
    return entry.main()


if __name__ == "__main__":
    sys.exit(main())

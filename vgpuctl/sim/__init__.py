# SPDX-License-Identifier: Apache-2.0
"""A simulated host with the same ports as a real one. It behaves like the kernel and libvirt.

`open_host` opens a host from a built-in scenario's name (`SCENARIOS`) or a scenario file. The simulator states the
kernel's rules independently: it imports the model and the errors, and nothing else from vgpuctl.
"""

from vgpuctl.sim.host import SCENARIO_DIRECTORY, SCENARIOS, SimHost, open_host, reset_host

__all__ = ["SCENARIOS", "SCENARIO_DIRECTORY", "SimHost", "open_host", "reset_host"]

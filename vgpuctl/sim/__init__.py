# SPDX-License-Identifier: Apache-2.0
"""A simulated host behind the same seams, which reacts as the kernel and libvirt do.

`open_world` opens one by a built-in scenario's name (`SCENARIOS`) or a scenario file. It is an independent
statement of the kernel's rules: it imports the model and the errors, and nothing else of the program.
"""

from vgpuctl.sim.world import SCENARIOS, SimWorld, open_world, reset_world

__all__ = ["SCENARIOS", "SimWorld", "open_world", "reset_world"]

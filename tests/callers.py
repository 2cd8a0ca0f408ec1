# SPDX-License-Identifier: Apache-2.0
"""Users of the host agent, and a simulated host as each of them sees it."""

from __future__ import annotations

from tests.hosts import SimulatedHost, yes
from vgpuctl.library import GpuHost
from vgpuctl.model.caller import Caller, Rights
from vgpuctl.model.outcome import CallSettings, NoProgress
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

ROOT = Caller(0, "root", Rights.ROOT)
ADA = Caller(1001, "ada", Rights.MEMBER)
BOB = Caller(1002, "bob", Rights.MEMBER)
OPERATOR = Caller(1003, "olga", Rights.OPERATOR)
FLEET = Caller(1004, "fleet", Rights.FLEET)
VIEWER = Caller(1005, "vera", Rights.VIEWER)


def host_of(host: SimulatedHost, caller: Caller | None, ports: Host | None = None) -> GpuHost:
    """Return the library's calls on a simulated host for a user; `ports`: others than the host's own."""
    used = replace(ports or host.ports, audit_log=host.sim.audit)
    settings = CallSettings(30.0, NoProgress(), yes, lambda: False, caller=caller)
    return GpuHost(used, settings, None, lambda settings, _: GpuHost(used, settings))

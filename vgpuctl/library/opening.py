# SPDX-License-Identifier: Apache-2.0
"""The ports of the host that a name stands for: this host's, a captured one's, or a simulated host's."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

LOCAL = "local"
_SIMULATED_PREFIX = "sim:"
_LOCAL_URI = re.compile(r"[a-z][a-z0-9]*(\+unix)?:///.*", re.ASCII)


def open_ports(name: str = LOCAL, *, root: str = "/", connect: str | None = None) -> Host:
    """Return the ports of a host.

    Raises:
        InvalidInput, NotFound: there is no such host, or the arguments contradict each other.
    """
    if name.startswith(_SIMULATED_PREFIX):
        from vgpuctl.simulated import open_simulated_host, scenario_of

        return open_simulated_host(scenario_of(name, root=root, connect=connect))
    if name != LOCAL:
        raise InvalidInput(
            f"--host {name}: there is no such host",
            hint=f"say local, ssh://HOST or {_suggest_simulated(name)}; 'vgpuctl sim list-scenarios' lists the latter",
        )
    if connect is not None and not _LOCAL_URI.fullmatch(connect):
        raise InvalidInput(
            f"--connect {connect}: only a libvirt on this host can be used",
            hint="say qemu:///system; another host is --host ssh://HOST",
        )
    from vgpuctl.host.local_host import open_local_host

    return open_local_host(root=os.path.abspath(root), connect=connect)


def _suggest_simulated(text: str) -> str:
    """Return the simulated host that was probably meant by a name without `sim:`."""
    from vgpuctl import sim

    return f"{_SIMULATED_PREFIX}{text if text in sim.SCENARIOS else 'NAME'}"

# SPDX-License-Identifier: Apache-2.0
"""Speak to a host's agent for whoever holds the host, about what is no part of its holder's plan: passwords, messages.

Who reads the lease in the database speaks for it, from any controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy
from vgpuctl.model.desktop import Fence, FleetRequest

if TYPE_CHECKING:
    from vgpuctl.agent.client import AgentHost
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.hosts.link import HostLink
    from vgpuctl.controller.model import FleetHost

Connect = Callable[["FleetHost"], "HostLink"]


@contextmanager
def speaking_to(store: Store, connect: Connect, host_id: str, why: str) -> Iterator[AgentHost]:
    """Yield a host, for calls, on a connection of their own. `why`: what it is asked for, for the error.

    Raises:
        Busy: no controller holds it now. VgpuctlError: as the calls.
    """
    host = store.hosts.find_id(host_id)
    lease = None if host is None else store.hosts.leases().get(host.id)
    if host is None or lease is None:
        raise Busy(f"no controller holds the host of {why} now")
    link = connect(host)
    try:
        yield link.host(FleetRequest(Fence(store.incarnation, lease.epoch, lease.holder)))
    finally:
        link.close()

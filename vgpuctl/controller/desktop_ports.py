# SPDX-License-Identifier: Apache-2.0
"""Which ports of a desktop the controller connects its user to; `FleetService` has the call with all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from vgpuctl.controller.model import Desktop, FleetCaller, FleetHost, Pool, PoolSpec
from vgpuctl.controller.planning.nat_check import nat_problem
from vgpuctl.controller.policy import no_desktop, sees_pool
from vgpuctl.errors import Busy, NotAllowed, Refused
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.people import DesktopPortsResult
from vgpuctl.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.hosts.link import HostLink


class DesktopStream(Value):
    """What of a desktop somebody may be connected to: a port, or the screen. `sees_host`: he may know of its host."""

    desktop: Desktop
    pool: str
    host: FleetHost
    address: str | None
    port: int | None
    sees_host: bool

    def path(self, person: str) -> str:
        """Return the path at the host's agent. `person`: for whom."""
        values = {"generation": self.desktop.generation, "address": self.address, "on_behalf_of": person}
        stream = "screen" if self.port is None else f"ports/{self.port}"
        query = urlencode({name: value for name, value in values.items() if value is not None})
        return f"vms/{self.desktop.id}/{stream}?{query}"


class _Fleet(Protocol):
    """What `FleetService` has besides."""

    _store: Store
    _connect: Callable[[FleetHost], HostLink]

    def _reachable(self, caller: FleetCaller, name: str) -> tuple[Desktop, Pool]: ...


class DesktopPortCalls:
    """The call, and what it takes to connect somebody."""

    def connect_desktop(self: _Fleet, caller: FleetCaller, name: str) -> QueryResult[DesktopPortsResult]:
        """Return the ports of a desktop to which its user connects through the controller."""
        desktop, pool = self._reachable(caller, name)
        return QueryResult(DesktopPortsResult(desktop.name, pool.spec.connect))

    def find_port(self: _Fleet, caller: FleetCaller, name: str, port: int) -> DesktopStream:
        """Return where a port of a desktop is.

        Raises:
            NotFound, Refused: he gets no port of it.
            NotAllowed: not this one.
            Busy: its host has not confirmed its user, or seen its address.
        """
        desktop, pool = self._reachable(caller, name)
        if port not in pool.spec.connect:
            ports = ", ".join(map(str, pool.spec.connect))
            raise NotAllowed(
                f"the pool {pool.name} connects its users to the ports {ports}, not to {port}",
                hint=f"an operator of the fleet changes connect: in its spec: vgpuctl controller "
                f"ensure-pool {pool.name} -f FILE",
                rule="connect",
            )
        host = next((one for one in self._store.hosts.list() if one.id == desktop.host_id), None)
        address = None if desktop.report is None else desktop.report.address
        if desktop.user is None:
            raise Refused(f"nobody has {name}", hint=f"vgpuctl controller assign {pool.name} USER", desktop=name)
        if host is None or not desktop.handed_out or address is None:
            raise Busy(f"{name} has no address to connect to yet", hint="try again in a minute", desktop=name)
        return DesktopStream(desktop, pool.name, host, address, port, sees_pool(caller, pool.name))

    def refuse_nat(self: _Fleet, name: str, spec: PoolSpec) -> None:
        """Refuse a pool whose users reach no desktop, when it is made, or changed to be so.

        Raises:
            Refused: with the three ways out.
        """
        before = next((one.spec for one in self._store.pools.list() if one.name == name), None)
        rooms, _ = self._store.rooms.list()
        networks = {
            host.name: rooms[host.id].room.networks
            for host in self._store.hosts.list()
            if host.id in rooms and spec.hosts.items() <= host.labels.items()
        }
        problem = nat_problem(spec, networks)
        if problem is not None and (before is None or nat_problem(before, networks) is None):
            raise Refused(
                f"pool {name}: {problem}",
                hint="put them on a bridge (vm: {networks: bridge=br0}), send users to a gateway (open: with a link "
                "without {address}), or let them connect through the controller (connect: [3389])",
                pool=name,
            )

    def link_to(self: _Fleet, host: FleetHost) -> HostLink:
        """Return a connection of its own to a host's agent."""
        return self._connect(host)

    def _reachable(self: _Fleet, caller: FleetCaller, name: str) -> tuple[Desktop, Pool]:
        """Return a desktop with its pool, which connects its users.

        Raises:
            NotFound: it was taken from the caller meanwhile. Refused: its pool connects nobody.
        """
        desktop = self._store.desktops.find(name)
        pool = next((one for one in self._store.pools.list() if one.id == desktop.pool_id), None)
        if pool is None or (desktop.user != caller.name and not sees_pool(caller, pool.name)):
            raise no_desktop(name)
        if not pool.spec.connect:
            raise Refused(
                f"the pool {pool.name} connects nobody to its desktops",
                hint="its spec needs connect: with ports, such as connect: [22]",
                desktop=name,
            )
        return desktop, pool

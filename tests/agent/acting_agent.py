# SPDX-License-Identifier: Apache-2.0
"""A simulated host with the parts of an agent that work by themselves, and a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import vgpuctl
from tests.hosts import EagerClock
from vgpuctl import library
from vgpuctl.agent.boot_starts import BootStarter
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.fleet_fence import FleetFence
from vgpuctl.agent.healing import QUIET_SECONDS, HostHealer
from vgpuctl.agent.operation_store import OperationStore
from vgpuctl.agent.operations import AgentOperations
from vgpuctl.model.event import EventType
from vgpuctl.ports.host import Host
from vgpuctl.sim.host import open_host as open_sim
from vgpuctl.value import replace

HOST = "sim:a100-40"

Act = Callable[["Parts"], Awaitable[None]]


class Parts:
    """A simulated host with an agent's operations and events, and a clock that the test turns."""

    def __init__(self, directory: Path, host: str) -> None:
        self.clock = EagerClock()
        self.ports: Host = replace(library.open_ports(host), clock=self.clock)
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.events = EventLog(self.clock)
        fence = FleetFence(directory, self.clock.now, lambda: False)
        self.operations = AgentOperations(library.opener(host), OperationStore(directory), fence)
        self.returned: float | None = None
        self.healer = HostHealer(self.ports, self.operations, self.events, lambda: self.returned)
        self.starter = self.again()

    def again(self) -> BootStarter:
        """Return what starts VMs after a boot, as an agent that has just started has it."""
        return BootStarter(self.ports, self.operations, self.events, self.directory)

    async def round(self) -> None:
        """Take the two looks of a round of healing."""
        for _ in range(2):
            self.clock.seconds += await self.healer.check()

    def published(self, *types: EventType) -> list[tuple[EventType, str | None]]:
        """Return the events of these types with their VMs."""
        return [(event.type, event.vm) for event in self.events.since(None) if event.type in types]

    def done(self) -> list[str]:
        """Return the calls of the agent's operations, the oldest first."""
        return [stored.call for stored in reversed(self.operations.list())]


def on_host(directory: Path, act: Act, host: str = HOST) -> None:
    """Carry out `act` in a loop, with the parts of an agent that has run for a while."""

    async def run() -> None:
        parts = Parts(directory / "agent", host)
        parts.clock.seconds += QUIET_SECONDS
        await act(parts)
        await parts.operations.stop(0)

    asyncio.run(run())


def leak(name: str = "a", host: str = HOST, profile: str = "A100-4C") -> None:
    """Leave the vGPU of a VM that virsh undefined."""
    with vgpuctl.open_host(host) as opened:
        uuid = opened.create_vm(name, profile=profile, start=False).data.uuid
    assert uuid is not None
    library.open_ports(host).hypervisor.undefine(uuid)


def states(host: str = HOST) -> dict[str, str]:
    return {vm.name: str(vm.state) for vm in vgpuctl.open_host(host).list_vms().data}


def reboot(host: str = HOST) -> None:
    open_sim(host.removeprefix("sim:")).reboot()


def scenario(directory: Path, text: str, model: str = "A100") -> str:
    """Return the name of a host with one GPU and this in its scenario."""
    path = directory / "host.yaml"
    path.write_text(f"version: 1\ngpus: [{{model: {model}}}]\n{text}\n")
    return f"sim:{path}"

# SPDX-License-Identifier: Apache-2.0
"""The agent takes a license out of a VM's seed once the guest is licensed, and once only."""

from __future__ import annotations

from pathlib import Path

import pytest

import vgpuctl
from tests.agent.acting_agent import Parts, on_host
from tests.licenses import MARKER, put_license
from vgpuctl.agent.license_seeds import LicenseSeeds
from vgpuctl.agent.usage_sampler import SampledUsage, UsageSampler
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.usage import ReaderProgram, UsageSample, UsageTarget
from vgpuctl.ports.host import for_another_operation
from vgpuctl.sim.host import open_host as open_sim
from vgpuctl.value import replace

SCENARIO = """version: 1
nvidia: {driver: "580.105.06", guest_driver: "580.159.03"}
gpus: [{model: H100}]
storage: {pools: [{name: default}]}
networks: [{name: default}]
images: [{path: /a.qcow2, size_gib: 20, firmware: both}]
"""


@pytest.fixture
def host_name(tmp_path: Path) -> str:
    """Return a host whose guests have NVIDIA's driver, with a VM that has a license and is off, and one without."""
    file = tmp_path / "guests.yaml"
    file.write_text(SCENARIO)
    name = f"sim:{file}"
    put_license(open_sim(str(file)).host_file.parent)
    with vgpuctl.open_host(name) as host:
        host.create_vm("a", profile="H100-10C", image="/a.qcow2", license="cad", start=False)
        host.create_vm("plain", profile="H100-10C", image="/a.qcow2")
    return name


@pytest.fixture
def volumes(tmp_path: Path, host_name: str) -> Path:
    """Return where the simulated host keeps the content of volumes."""
    return open_sim(host_name.removeprefix("sim:")).host_file.parent.parent.parent / "volumes"


def has_token(volumes: Path) -> bool:
    return any(MARKER.encode() in path.read_bytes() for path in volumes.iterdir())


class StartedAgent:
    """An agent's sampler and what agent at its samples, on a host whose guests' licenses a test can take away."""

    def __init__(self, parts: Parts, host_name: str) -> None:
        assert parts.ports.usage is not None
        self.parts, self.host_name = parts, host_name
        self.license_state: str | None = None
        self.reader = parts.ports.usage
        self.restart()

    def restart(self) -> None:
        """Go on as an agent that has just started."""
        self.sampler = UsageSampler(self.parts.ports, SampledUsage(self), self.parts.events)
        self.seeds = LicenseSeeds(self.parts.ports, self.sampler, self.parts.operations)

    def read(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        """Read the use, with the license's state that the test wants; the sampler calls this."""
        sample = self.reader.read(targets, programs)
        if self.license_state is None:
            return sample
        return replace(sample, vgpus=tuple(replace(v, license_state=self.license_state) for v in sample.vgpus))

    async def take_sample(self, *actions: str) -> None:
        """Start and stop VM a, and look at a sample after each."""
        for action in actions or ("",):
            if action:
                getattr(vgpuctl.open_host(self.host_name), action)("a")
            self.parts.clock.seconds += 15
            self.sampler.sample()
            await self.seeds.check()


def test_it_is_taken_out_once_the_guest_is_licensed(tmp_path: Path, host_name: str, volumes: Path) -> None:
    async def act(parts: Parts) -> None:
        agent = StartedAgent(parts, host_name)
        await agent.take_sample()
        assert parts.done() == [], "it is off"
        agent.license_state = "unlicensed"
        await agent.take_sample("start_vm")
        assert (parts.done(), has_token(volumes)) == ([], True)
        agent.license_state = None
        await agent.take_sample("", "")
        assert [(done.call, done.vm) for done in parts.operations.list()] == [("refresh-license", "a")]
        assert not has_token(volumes)

    on_host(tmp_path, act, host_name)


def test_what_is_written_for_the_next_boot_stays_until_then(tmp_path: Path, host_name: str, volumes: Path) -> None:
    async def act(parts: Parts) -> None:
        agent = StartedAgent(parts, host_name)
        await agent.take_sample("start_vm")
        assert not has_token(volumes)
        await agent.take_sample("refresh_license", "")
        assert has_token(volumes), "the guest has not read it"
        agent.license_state = "unlicensed"
        await agent.take_sample()
        agent.license_state = None
        await agent.take_sample()
        assert has_token(volumes), "the license server was away for a moment"
        agent.restart()
        await agent.take_sample("", "")
        assert has_token(volumes), "the agent was started again"
        await agent.take_sample("stop_vm", "start_vm")
        assert not has_token(volumes)

    on_host(tmp_path, act, host_name)


def test_an_agent_that_starts_later_takes_it_out(tmp_path: Path, host_name: str, volumes: Path) -> None:
    async def act(parts: Parts) -> None:
        vgpuctl.open_host(host_name).start_vm("a")
        await StartedAgent(parts, host_name).take_sample()
        assert not has_token(volumes)

    on_host(tmp_path, act, host_name)


def test_a_seed_that_cannot_be_read_is_left_until_the_next_boot(
    tmp_path: Path, host_name: str, volumes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (seed,) = (path for path in volumes.iterdir() if MARKER.encode() in path.read_bytes())
    content = seed.read_bytes()

    async def act(parts: Parts) -> None:
        agent = StartedAgent(parts, host_name)
        seed.write_bytes(b"rubbish")
        await agent.take_sample("start_vm", "", "")
        assert parts.done() == []
        assert caplog.text.count("it is no seed of vgpuctl's") == 1
        seed.write_bytes(content)
        await agent.take_sample()
        assert has_token(volumes)
        await agent.take_sample("stop_vm", "start_vm")
        assert not has_token(volumes)

    on_host(tmp_path, act, host_name)


def test_while_somebody_works_on_the_vm_it_waits(tmp_path: Path, host_name: str, volumes: Path) -> None:
    async def act(parts: Parts) -> None:
        agent = StartedAgent(parts, host_name)
        vgpuctl.open_host(host_name).start_vm("a")
        other = for_another_operation(parts.ports)
        other.operations.begin()
        (claim,) = (claim for claim in other.claims.all() if claim.vm == "a")
        operation = other.operations.current().id
        busy = replace(claim, process=HostProcesses().current_process(), command="refresh-vm a", operation=operation)
        with other.claims.lock(1):
            other.claims.replace(busy)
        await agent.take_sample()
        assert has_token(volumes)
        other.operations.end()
        await agent.seeds.check()
        assert has_token(volumes), "what was seen before the other command ended says nothing about the VM now"
        await agent.take_sample()
        assert not has_token(volumes)

    on_host(tmp_path, act, host_name)

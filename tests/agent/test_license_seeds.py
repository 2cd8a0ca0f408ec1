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
from vgpuctl.sim.host import open_host as open_sim

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


def test_it_is_taken_out_once_the_guest_is_licensed(tmp_path: Path, host_name: str, volumes: Path) -> None:
    async def act(parts: Parts) -> None:
        assert parts.ports.usage is not None
        sampler = UsageSampler(parts.ports, SampledUsage(parts.ports.usage), parts.events)
        seeds = LicenseSeeds(sampler, parts.operations)
        await seeds.check()
        sampler.sample()
        await seeds.check()
        assert parts.done() == [], "it is off"
        assert has_token(volumes)
        vgpuctl.open_host(host_name).start_vm("a")
        for _ in range(2):
            sampler.sample()
            await seeds.check()
        assert [(done.call, done.vm) for done in parts.operations.list()] == [("refresh-license", "a")]
        assert not has_token(volumes)
        vgpuctl.open_host(host_name).refresh_license("a")
        sampler.sample()
        await seeds.check()
        assert has_token(volumes), "what somebody wrote for the next boot stays until then"
        for action in ("stop_vm", "start_vm"):
            getattr(vgpuctl.open_host(host_name), action)("a")
            sampler.sample()
            await seeds.check()
        assert not has_token(volumes)

    on_host(tmp_path, act, host_name)


def test_while_the_seed_cannot_be_changed_it_tries_again(tmp_path: Path, host_name: str, volumes: Path) -> None:
    (seed,) = (path for path in volumes.iterdir() if MARKER.encode() in path.read_bytes())
    content = seed.read_bytes()

    async def act(parts: Parts) -> None:
        assert parts.ports.usage is not None
        vgpuctl.open_host(host_name).start_vm("a")
        sampler = UsageSampler(parts.ports, SampledUsage(parts.ports.usage), parts.events)
        seeds = LicenseSeeds(sampler, parts.operations)
        sampler.sample()
        for text in (b"rubbish", content):
            seed.write_bytes(text)
            await seeds.check()
        assert parts.done() == ["refresh-license"] * 2
        assert not has_token(volumes)

    on_host(tmp_path, act, host_name)

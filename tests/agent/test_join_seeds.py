# SPDX-License-Identifier: Apache-2.0
"""The agent takes a blob out of a VM's seed once the guest that has it has joined its domain, and no other one."""

from __future__ import annotations

from pathlib import Path

import pytest

import vgpuctl
from tests.agent.acting_agent import Parts, on_host
from tests.domain_joins import MARKER, put_blob
from tests.licenses import put_license
from vgpuctl.agent.guest_helpers import AgentGuestHelpers
from vgpuctl.agent.join_seeds import MARGIN_SECONDS, JoinSeeds
from vgpuctl.model.guest_report import GuestReport
from vgpuctl.sim.host import open_host as open_sim

SCENARIO = """version: 1
gpus: [{model: H100}]
storage: {pools: [{name: default}]}
networks: [{name: default}]
images: [{path: /a.qcow2, size_gib: 20, firmware: both}]
"""
NEW = {"profile": "H100-10C", "image": "/a.qcow2", "os": "windows11", "domain_join": "corp", "guest_helper": True}


@pytest.fixture
def host_name(tmp_path: Path) -> str:
    """Return a host with a VM whose guest joins a domain, and is off."""
    file = tmp_path / "guests.yaml"
    file.write_text(SCENARIO)
    name = f"sim:{file}"
    put_blob(etc_of(name), "a")
    with vgpuctl.open_host(name) as host:
        host.create_vm("a", **NEW, start=False)
    return name


def etc_of(host_name: str) -> Path:
    return open_sim(host_name.removeprefix("sim:")).host_file.parent


def blobs(host_name: str) -> int:
    """Return how many seeds have a blob."""
    return sum(MARKER.encode() in path.read_bytes() for path in (etc_of(host_name).parents[1] / "volumes").iterdir())


class Guests:
    """What the helpers of a host's guests report, and what looks at that."""

    def __init__(self, parts: Parts, host_name: str) -> None:
        self.parts, self.host_name = parts, host_name
        self.helpers = AgentGuestHelpers(parts.ports.guest_reports)
        self.seeds = JoinSeeds(parts.ports, self.helpers, parts.operations)

    def do(self, action: str, *args: object, **how: object) -> None:
        with vgpuctl.open_host(self.host_name) as host:
            getattr(host, action)("a", *args, **how)

    def report(self) -> None:
        """Have the guest's helper report now."""
        with vgpuctl.open_host(self.host_name) as host:
            uuid = host.show_vm("a").data.uuid
        self.helpers.write(uuid, GuestReport(self.parts.clock.now(), "1.0", (), None, None, None, False))

    async def check(self) -> None:
        self.parts.clock.seconds += 15
        await self.seeds.check()


def test_it_is_taken_out_when_the_helper_reports(tmp_path: Path, host_name: str) -> None:
    async def act(parts: Parts) -> None:
        guests = Guests(parts, host_name)
        await guests.check()
        guests.do("start_vm")
        for _ in range(2):
            await guests.check()
        assert (parts.done(), blobs(host_name)) == ([], 1), "Windows' setup runs"
        guests.report()
        await guests.check()
        assert [(done.call, done.vm) for done in parts.operations.list()] == [("refresh-license", "a")]
        assert blobs(host_name) == 0
        for _ in range(2):
            guests.report()
            await guests.check()
        assert parts.done() == ["refresh-license"]

    on_host(tmp_path, act, host_name)


def test_a_report_of_the_guest_before_a_refresh_does_not_count(tmp_path: Path, host_name: str) -> None:
    async def act(parts: Parts) -> None:
        guests = Guests(parts, host_name)
        guests.do("start_vm")
        await guests.check()
        guests.do("stop_vm", force=True)
        put_blob(etc_of(host_name), "a")
        guests.do("refresh_vm", "/a.qcow2")
        guests.do("start_vm")
        guests.report()  # the last one of the former guest, which is still known
        await guests.check()
        parts.clock.seconds += MARGIN_SECONDS - 1
        guests.report()  # it was in the channel when the former guest ended
        await guests.check()
        assert (parts.done(), blobs(host_name)) == ([], 1)
        parts.clock.seconds += 1
        guests.report()
        await guests.check()
        assert (parts.done(), blobs(host_name)) == (["refresh-license"], 0)

    on_host(tmp_path, act, host_name)


def test_an_agent_that_starts_later_takes_it_out(tmp_path: Path, host_name: str) -> None:
    async def act(parts: Parts) -> None:
        vgpuctl.open_host(host_name).start_vm("a")
        guests = Guests(parts, host_name)
        guests.report()
        await guests.check()
        assert blobs(host_name) == 1, "whose report this is, is not known"
        parts.clock.seconds += MARGIN_SECONDS + 1
        guests.report()
        await guests.check()
        assert blobs(host_name) == 0

    on_host(tmp_path, act, host_name)


def test_a_guest_with_a_license_keeps_its_seed_until_it_is_licensed(tmp_path: Path, host_name: str) -> None:
    put_license(etc_of(host_name))

    async def act(parts: Parts) -> None:
        guests = Guests(parts, host_name)
        guests.do("set_vm", license="cad")
        guests.do("start_vm")
        for _ in range(3):
            guests.report()
            await guests.check()
        assert (parts.done(), blobs(host_name)) == ([], 1)

    on_host(tmp_path, act, host_name)


def test_a_seed_that_cannot_be_read_is_left_and_said(tmp_path: Path, host_name: str, caplog) -> None:
    volumes = etc_of(host_name).parents[1] / "volumes"
    (seed,) = (path for path in volumes.iterdir() if MARKER.encode() in path.read_bytes())
    seed.write_bytes(b"rubbish")

    async def act(parts: Parts) -> None:
        guests = Guests(parts, host_name)
        guests.do("start_vm")
        for _ in range(4):
            guests.report()
            await guests.check()
        assert (parts.done(), caplog.text.count("whether the seed of VM a has a blob is not known")) == ([], 1)

    on_host(tmp_path, act, host_name)

# SPDX-License-Identifier: Apache-2.0
"""The thin host answers as a real agent of a simulated host does, in all that a controller reads."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import RunningAgent, running
from tests.controller.conftest import IMAGE, wait_until
from tests.controller.thin_host import PROFILE, VGPUS_PER_GPU, ThinHosts, ThinLink
from vgpuctl.agent import usage_sampler
from vgpuctl.controller.hosts.guests import vm_of
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.hosts.use_meter import measure
from vgpuctl.controller.model import Desktop, MeasuredUse
from vgpuctl.controller.planning.fleet_room import FleetRoom
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest
from vgpuctl.value import replace

FENCE = Fence("db-1", 1, "a")
IDS = [str(uuid.UUID(int=number)) for number in range(1, VGPUS_PER_GPU + 3)]
MARKS = [DesktopMark(one, "office", FENCE.incarnation, 1) for one in IDS]


class Site:
    """A host at a link, real or thin."""

    def __init__(self, link: Any) -> None:
        self.link = link

    def code(self, act: Callable[[Any], object], mark: DesktopMark | None = None, fence: Fence = FENCE) -> str:
        """Make a call as a controller does; return the code of its error, or nothing."""
        try:
            act(self.link.host(FleetRequest(fence, mark)))
        except VgpuctlError as error:
            return error.code
        return ""

    def picture(self) -> list[tuple[object, ...]]:
        """Return what the controller reads of each VM, and how many more have room."""
        rows, reported = self.link.host().list_vms().data, self.link.host().read_room()
        vms = [(vm.name, vm.uuid, str(vm.state), vm.desktop, vm.image, self.vgpus(vm)) for vm in rows]
        room = FleetRoom({"h": reported})
        assert {vgpu.gpu for vm in rows for vgpu in vm.vgpus} <= {gpu.address for gpu in reported.gpus}
        return [*sorted(vms), (room.profiles("h")[PROFILE],)]

    @staticmethod
    def vgpus(vm: Any) -> list[tuple[object, ...]]:
        """Return what the controller shows of a VM's vGPUs."""
        rows = vm_of(vm).vgpus
        return [(one.profile, one.framebuffer_mib, one.placement) for one in rows]

    def make(self, number: int, *, start: bool = False) -> str:
        fields = {"profile": (PROFILE,), "memory": "1GiB"}
        return self.code(
            lambda host: host.create_vm(name=f"d{number}", image=IMAGE, start=start, **fields), MARKS[number]
        )


def played(site: Site) -> list[object]:
    """Return all that a host answers in a life of desktops."""
    seen: list[object] = []
    used, later = replace(MARKS[0], generation=2, dirty=True, user="ada"), replace(MARKS[0], generation=3)
    seen.append(site.make(0))  # nobody has announced himself
    seen.append(site.code(lambda host: host.announce_fleet(FENCE)))
    for number in range(VGPUS_PER_GPU):
        seen.append(site.make(number, start=number < 2))
    seen += [site.make(VGPUS_PER_GPU), site.picture()]
    seen += [site.code(lambda host: host.mark_desktop(IDS[0]), used), site.picture()]
    for forced in (False, True):
        seen += [site.code(lambda host, forced=forced: host.stop_vm(IDS[0], force=forced)), site.picture()]
    seen += [site.code(lambda host: host.refresh_vm(IDS[0], IMAGE), later), site.picture()]
    for _ in range(2):
        seen += [site.code(lambda host: host.start_vm(IDS[0])), site.picture()]
    seen += [site.code(lambda host: host.stop_vm(IDS[0], force=True)), site.code(lambda host: host.delete_vm(IDS[0]))]
    seen += [site.picture(), site.make(0), site.code(lambda host: host.delete_vm(IDS[0]))]
    seen += [site.code(lambda host: host.start_vm(IDS[-1])), site.code(lambda host: host.mark_desktop(IDS[-1]), used)]
    for fence in (replace(FENCE, epoch=0), replace(FENCE, holder="b"), replace(FENCE, incarnation="db-2")):
        seen.append(site.code(lambda host, fence=fence: host.announce_fleet(fence)))
        seen.append(site.code(lambda host: host.start_vm(IDS[1]), fence=fence))
    seen.append(site.code(lambda host: host.announce_fleet(replace(FENCE, epoch=2, holder="b"))))
    seen.append(site.code(lambda host: host.stop_vm(IDS[1], force=True)))
    return [*seen, site.picture()]


def test_a_thin_host_answers_as_a_real_one(agent: RunningAgent, tmp_path: Path) -> None:
    link = HostLink("gpu01", f"agent:{agent.path}")
    real = played(Site(link))
    link.close()
    hosts = ThinHosts(tmp_path / "thin", gpus=1)
    thin = played(Site(ThinLink(hosts.add("gpu01"))))
    assert thin == real
    assert {"", "no-capacity", "fenced", "not-found", "tombstone"} <= {one for one in real if isinstance(one, str)}


@pytest.mark.parametrize("call", ["list_vms", "read_room", "read_fleet", "top"])
def test_its_rows_have_the_fields_of_real_ones(agent: RunningAgent, tmp_path: Path, call: str) -> None:
    hosts = ThinHosts(tmp_path / "thin", gpus=1)
    link = HostLink("gpu01", f"agent:{agent.path}")
    for site in (one := Site(link), other := Site(ThinLink(hosts.add("gpu01")))):
        assert [site.code(lambda host: host.announce_fleet(FENCE)), site.make(0)] == ["", ""]
    answers = [getattr(site.link.host(), call)() for site in (one, other)]
    rows = [answer if call != "list_vms" else answer.data[0] for answer in answers]
    link.close()
    own = set(type(rows[1]).__annotations__) - {"times_listed", "address"}
    assert own <= set(type(rows[0]).__annotations__)


def test_a_real_host_says_what_its_desktops_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_sampler, "SAMPLE_SECONDS", 0.1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    with running("sim:a100-40", tmp_path) as agent:
        link = HostLink("gpu01", f"agent:{agent.path}")
        site = Site(link)
        assert site.code(lambda host: host.announce_fleet(FENCE)) == ""
        assert [site.make(0, start=True), site.make(1)] == ["", ""]
        own = tuple(Desktop(one, "p", "d", "m", "i", user="ada") for one in IDS[:2])

        def used() -> tuple[MeasuredUse, MeasuredUse]:
            uses = measure(link.host().top().data.vgpus, own, 60.0)
            return uses[IDS[0], "ada"], uses[IDS[1], "ada"]

        wait_until(lambda: used()[0].memory_known_seconds > 0, "a sample after the start")
        on, off = used()
        link.close()
    assert on == MeasuredUse(memory_known_seconds=60.0, memory_peak_mib=0), "its guest has no driver"
    assert off == MeasuredUse(), "of one that is off nothing is known"

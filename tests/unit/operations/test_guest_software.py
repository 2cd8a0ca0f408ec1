# SPDX-License-Identifier: Apache-2.0
"""show-vm tells the driver and the license of a running guest, and whether the host's driver allows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import context, create, open_sim_host, request, stop
from vgpuctl.model.results.vms import GuestSoftwareResult
from vgpuctl.model.usage import ProcessUse, ReaderProgram, UsageSample, UsageTarget, VgpuUse
from vgpuctl.operations.queries import show_vm, show_vms
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

SCENARIO = """version: 1
nvidia: {{driver: "580.105.06"{guest}}}
gpus: [{{model: H100}}, {{model: H100}}]
"""


def host_of(tmp_path: Path, guest: str | None) -> Host:
    text = SCENARIO.format(guest=f', guest_driver: "{guest}"' if guest else "")
    ports = open_sim_host(tmp_path, text=text).ports
    create(ports, request("H100-10C", name="desk"))
    return ports


class Reported:
    """Reports one sample, and keeps which GPUs were asked for."""

    def __init__(self, *vgpus: VgpuUse) -> None:
        self.asked: list[tuple[UsageTarget, ...]] = []
        self._vgpus = vgpus

    def read(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        self.asked.append(targets)
        return UsageSample(0.0, 0.0, vgpus=self._vgpus, driver_version="580.159.01")

    def read_processes(self, gpu: str) -> tuple[ProcessUse, ...] | None:
        return None


@pytest.mark.parametrize(
    ("guest", "release", "fit"),
    [
        ("580.159.03", "19.5", "supported"),
        ("539.72", "16.14", "supported"),
        ("550.90.07", "17", "old"),
        ("596.36", "20.1", "too-new"),
        ("620.10.01", None, "unknown"),
    ],
)
def test_a_running_guest_has_its_driver_rated(tmp_path: Path, guest: str, release: str | None, fit: str) -> None:
    software = show_vm(host_of(tmp_path, guest), context(), "desk").data.guest_software
    assert software == GuestSoftwareResult(guest, release, "19", fit, "licensed", None)


def test_a_guest_without_driver_a_vm_that_is_off_and_a_host_without_numbers_have_none(tmp_path: Path) -> None:
    assert show_vm(host_of(tmp_path / "a", None), context(), "desk").data.guest_software is None
    ports = host_of(tmp_path / "b", "580.159.03")
    assert show_vm(replace(ports, usage=None), context(), "desk").data.guest_software is None
    assert stop(ports, "desk").changed
    assert show_vm(ports, context(), "desk").data.guest_software is None


def test_only_gpus_of_the_shown_vms_are_asked_and_once(tmp_path: Path) -> None:
    ports = host_of(tmp_path, "580.159.03")
    other = create(ports, request("H100-10C", name="other", gpu="0000:3f:00.0")).data
    desk = show_vm(ports, context(), "desk").data
    reader = Reported(
        VgpuUse(desk.vgpus[0].gpu, (desk.vgpus[0].carrier,), guest_driver="580.159.03", license_expiry=1.8e9),
        VgpuUse(other.vgpus[0].gpu, ("elsewhere",), vm_uuid="f" * 8, guest_driver="580.159.03"),
    )
    watched = replace(ports, usage=reader)
    software = show_vm(watched, context(), "desk").data.guest_software
    assert software is not None
    assert (software.host_release, software.license, software.license_expiry) == ("19.5", None, "2027-01-15T08:00:00Z")
    assert [[target.address for target in asked] for asked in reader.asked] == [["0000:3b:00.0"]]
    shown = show_vms(watched, context(), ("desk", "other"))
    assert (shown["other"].data.guest_software, len(reader.asked)) == (None, 2)
    assert shown["desk"].data.guest_software == software
    stop(ports, "desk")
    assert show_vm(watched, context(), "desk").data.guest_software is None
    assert len(reader.asked) == 2

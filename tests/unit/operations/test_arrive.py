# SPDX-License-Identifier: Apache-2.0
"""Which GPU of a host a VM gets that comes from another one, and what a dry run says where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, request
from tests.meanwhile import with_calls
from vgpuctl.domain.record import record_from_xml
from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.library import GpuHost
from vgpuctl.library.move_between import MoveRequest, check_move, move_vm
from vgpuctl.model.outcome import CallSettings
from vgpuctl.model.port_values import EccState
from vgpuctl.model.request import NewDisk
from vgpuctl.model.results.migration import MigrationOfferResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.migration_offer import offer_vm
from vgpuctl.value import replace


def calls(host: SimulatedHost) -> GpuHost:
    return GpuHost(host.ports, CallSettings())


def to(target: SimulatedHost, *, offline: bool) -> MoveRequest:
    return MoveRequest(target.sim.migration_uri, offline=offline, copies_disks=True, insecure=True)


def whole_gpu_vm(directory: Path, scenario: str = "h100-pcie-x8", **fields: object) -> SimulatedHost:
    host = open_sim_host(directory, scenario)
    create(host.ports, request(mode="passthrough", name="vm", **fields), start=False)
    return host


def reasons(source: SimulatedHost, target: SimulatedHost, *, offline: bool = True) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as raised:
        check_move(calls(source), calls(target), "vm", to(target, offline=offline))
    return [(one["host"], one["what"]) for one in raised.value.facts["against"]]


MIXED = (
    ", but 1 × NVIDIA A16, 1 × NVIDIA A100-PCIE-40GB, 1 × Tesla T4, 1 × Intel Data Center GPU Flex 170, "
    "1 × AMD Radeon PRO V710, 1 × NVIDIA GeForce RTX 4090, 1 × mtty"
)


@pytest.mark.parametrize(
    ("scenario", "instead"), [("mixed", MIXED), ("empty", ""), ("a100-40", ", but 1 × NVIDIA A100-PCIE-40GB")]
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_whole_gpu_never_becomes_one_of_another_model(tmp_path: Path, scenario: str, instead: str, gpus: int) -> None:
    source = whole_gpu_vm(tmp_path / "a", gpus=gpus)
    target = open_sim_host(tmp_path / "b", scenario)
    model = observe(source.ports, ReadScope(models=True)).gpus[0].model
    assert reasons(source, target) == [(f"sim:{scenario}", f"the host has no {model} to pass through{instead}")]


def test_a_whole_gpu_becomes_one_of_its_model_in_whatever_mode(tmp_path: Path) -> None:
    source = whole_gpu_vm(tmp_path / "a")
    target = open_sim_host(tmp_path / "b", "h100-pcie-x8")
    move_vm(calls(source), calls(target), "vm", to(target, offline=True))
    vm = observe(target.ports, ReadScope()).vm("vm")
    assert vm is not None
    assert vm.record is not None
    assert len(vm.record.vgpus) == 1


def test_a_gpu_with_its_audio_function_is_compared_by_the_gpu(tmp_path: Path) -> None:
    source = whole_gpu_vm(tmp_path / "a", "mixed", gpu=("0000:d8:00.0",))
    target = open_sim_host(tmp_path / "b", "mixed")
    move_vm(calls(source), calls(target), "vm", to(target, offline=True))
    vm = observe(target.ports, ReadScope()).vm("vm")
    assert vm is not None
    assert vm.record is not None
    assert {v.gpu for v in vm.record.vgpus} == {"0000:d8:00.0"}


def test_a_plain_vf_goes_to_a_gpu_of_its_model_alone(tmp_path: Path) -> None:
    source = open_sim_host(tmp_path / "a", "mixed")
    create(source.ports, request(mode="sriov", gpu=("0000:af:00.0",), name="vm"), start=False)
    text = "the host has no AMD Radeon PRO V710 with virtual functions"
    assert reasons(source, open_sim_host(tmp_path / "b", "empty")) == [("sim:empty", text)]
    target = open_sim_host(tmp_path / "c", "mixed")
    move_vm(calls(source), calls(target), "vm", to(target, offline=True))
    vm = observe(target.ports, ReadScope()).vm("vm")
    assert vm is not None
    assert vm.record is not None
    assert {v.gpu for v in vm.record.vgpus} == {"0000:af:00.0"}


HOST_FILE = "change gpus: in /etc/vgpuctl/host.yaml; or choose another host"


def why_no_room(source: SimulatedHost, target: SimulatedHost) -> tuple[str, str | None]:
    """Return the only reason why the VM does not come, without its common beginning, and what helps."""
    with pytest.raises(Refused) as raised:
        check_move(calls(source), calls(target), "vm", to(target, offline=False))
    (reason,) = raised.value.facts["against"]
    assert reason["host"] == target.ports.name
    return reason["what"].removeprefix("no room for A100-4C on 0000:3b:00.0: "), reason["hint"]


def write_host_file(host: SimulatedHost, gpu: str) -> None:
    path = host.directory / "state/etc/vgpuctl/host.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"version: 1\ngpus: {{'0000:3b:00.0': {{{gpu}}}}}\n")


@pytest.mark.parametrize(
    ("gpu", "why", "hint"),
    [
        ("cordoned: true", "it is cordoned", "vgpuctl uncordon 0000:3b:00.0 allows new vGPUs"),
        ("reserved_for: [cad-*]", "host.yaml reserves it for VMs named cad-*", HOST_FILE),
        ("profiles: [A100-8C]", "host.yaml allows only A100-8C on it (gpus: profiles:)", HOST_FILE),
        ("mode: unmanaged", "host.yaml excludes it from vgpuctl (mode: unmanaged)", HOST_FILE),
        (
            "mode: passthrough",
            "host.yaml reserves it for mode passthrough",
            "vgpuctl set-mode 0000:3b:00.0 vgpu changes that",
        ),
    ],
)
def test_why_a_gpu_takes_no_vgpu_is_said_as_for_a_new_vm(tmp_path: Path, gpu: str, why: str, hint: str) -> None:
    source, target = open_sim_host(tmp_path / "a", "a100-40"), open_sim_host(tmp_path / "b", "a100-40")
    create(source.ports, request("A100-4C", name="vm"))
    write_host_file(target, gpu)
    assert why_no_room(source, target) == (why, f"on sim:a100-40: {hint}")


@pytest.mark.parametrize(
    ("profile", "count", "why"),
    [
        ("A100-4C", 10, "10 of 10 in use (the maximum for this type): vm-0, vm-1 … vm-9 (10)"),
        ("A100-8C", 1, "it has 1 of another size: A100-8C (8 GiB), held by vm-0"),
    ],
)
def test_who_has_the_room_is_said(tmp_path: Path, profile: str, count: int, why: str) -> None:
    source, target = open_sim_host(tmp_path / "a", "a100-40"), open_sim_host(tmp_path / "b", "a100-40")
    create(source.ports, request("A100-4C", name="vm"))
    for number in range(count):
        create(target.ports, request(profile, name=f"vm-{number}"), start=False)
    assert why_no_room(source, target) == (why, "on sim:a100-40: vgpuctl explain A100-4C")


def test_an_option_of_its_creation_is_named_as_that(tmp_path: Path) -> None:
    source, target = open_sim_host(tmp_path / "a", "a100-40"), open_sim_host(tmp_path / "b", "a100-40")
    create(source.ports, request("A100-4C", name="vm", spread_group="g"))
    create(target.ports, request("A100-4C", name="other", spread_group="g"))
    assert why_no_room(source, target) == (
        "no place for A100-4C on 0000:3b:00.0: vm was created with --spread-group g, and this GPU has other of the "
        "group",
        "on sim:a100-40: move the VMs that are named away (vgpuctl show-gpu 0000:3b:00.0 shows all); or choose another "
        "host",
    )
    create(source.ports, request("A100-4C", name="vm2", scheduler="best_effort"))
    calls(target).delete_vm("other")
    calls(target).set_scheduler("0000:3b:00.0", "fixed_share")
    with pytest.raises(Refused) as raised:
        check_move(calls(source), calls(target), "vm2", to(target, offline=False))
    assert str(raised.value).endswith(
        "0000:3b:00.0: vm2 was created with --scheduler best_effort, and this GPU's scheduler is fixed_share\n"
        "  fix: on sim:a100-40: vgpuctl set-scheduler 0000:3b:00.0 --policy best_effort (it changes all VMs on that "
        "GPU)"
    )


def test_each_of_several_gpus_has_its_reason_in_a_line(tmp_path: Path) -> None:
    source, target = open_sim_host(tmp_path / "a", "h100-mig"), open_sim_host(tmp_path / "b", "h100-mig")
    create(source.ports, request("H100-1-10C", name="vm"))
    for number in range(2):
        create(target.ports, request("H100-1-10C", name=f"vm-{number}"))
    with pytest.raises(Refused) as raised:
        check_move(calls(source), calls(target), "vm", to(target, offline=False))
    assert str(raised.value) == (
        "vm cannot move:\n"
        "sim:h100-mig: no room for H100-1-10C:\n"
        "  0000:3b:00.0: all 2 GPU instances 1g.10gb are in use: vm-0, vm-1\n"
        "  0000:3f:00.0: MIG is off, and H100-1-10C needs a GPU instance\n"
        "  fix: on sim:h100-mig: vgpuctl set-mig 0000:3f:00.0 --for H100-1-10C:1"
    )


def test_a_gpu_with_room_that_does_not_take_it_is_named_beside_a_full_one(tmp_path: Path) -> None:
    source, target = open_sim_host(tmp_path / "a", "l40s-x4"), open_sim_host(tmp_path / "b", "l40s-x4")
    create(source.ports, request("L40S-48Q", name="vm"))
    first, *others = [gpu.address for gpu in observe(target.ports, ReadScope()).gpus]
    for number, gpu in enumerate(others):
        create(target.ports, request("L40S-48Q", name=f"vm-{number}", gpu=(gpu,)))
    ecc = with_calls(target.ports, "nvml", ecc=lambda gpu: EccState(gpu != first, gpu != first))
    here = with_calls(source.ports, "nvml", ecc=lambda gpu: EccState(True, True))
    with pytest.raises(Refused, match=f"\n  {first}: its ECC is off, and that of the GPU on sim:l40s-x4 is on"):
        check_move(GpuHost(here, CallSettings()), GpuHost(ecc, CallSettings()), "vm", to(target, offline=False))


def test_a_file_with_problems_is_named_once_with_its_lines_indented(tmp_path: Path) -> None:
    source, target = open_sim_host(tmp_path / "a", "a100-40"), open_sim_host(tmp_path / "b", "a100-40")
    create(source.ports, request("A100-4C", name="vm"))
    write_host_file(target, "mode: foo, x: 1")
    with pytest.raises(Refused) as raised:
        check_move(calls(source), calls(target), "vm", to(target, offline=False))
    _, first, *more, fix = str(raised.value).splitlines()
    assert first.startswith("sim:a100-40: /etc/vgpuctl/host.yaml cannot be used: ")
    assert [line[:25] for line in more] == ["  /etc/vgpuctl/host.yaml:"] * 2
    assert fix == "  fix: on sim:a100-40: correct or remove /etc/vgpuctl/host.yaml"


def test_vfs_that_are_off_are_the_only_reason(tmp_path: Path) -> None:
    source, target = open_sim_host(tmp_path / "a", "a16"), open_sim_host(tmp_path / "b", "mixed")
    create(source.ports, request("A16-4Q", name="vm"))
    with pytest.raises(Refused) as raised:
        check_move(calls(source), calls(target), "vm", to(target, offline=False))
    assert [(one["what"], one["hint"]) for one in raised.value.facts["against"]] == [
        (
            "the VFs of 0000:17:00.0 (NVIDIA A16) are off: 0 of 16 enabled, and it may offer A16-4Q once they are on",
            "on sim:mixed: vgpuctl set-mode 0000:17:00.0 vgpu",
        )
    ]


def test_a_host_without_vgpus_has_one_reason(tmp_path: Path) -> None:
    source, target = open_sim_host(tmp_path / "a", "a100-40"), open_sim_host(tmp_path / "b", "mi300x")
    create(source.ports, request("A100-4C", name="vm"))
    assert why_no_room(source, target) == (
        "no GPU offers A100-4C: the host has 2 × AMD Instinct MI300X",
        "choose a host with this GPU: NVIDIA A100-PCIE-40GB",
    )


def foreign_offer(host: SimulatedHost) -> MigrationOfferResult:
    return offer_vm(host.ports, context(), "old-desktop").data


def test_a_vm_that_vgpuctl_does_not_manage_has_only_its_sources_reason(tmp_path: Path) -> None:
    source, target = open_sim_host(tmp_path / "a", "mixed"), open_sim_host(tmp_path / "b", "a100-40")
    offer = foreign_offer(source)
    assert [reason.what for reason in offer.reasons] == [
        "old-desktop was not created by vgpuctl, which does not move it"
    ]
    assert calls(target).prepare_incoming(offer, dry_run=True).data.reasons == ()
    with pytest.raises(InvalidInput, match="is not the VM old-desktop of vgpuctl"):
        calls(target).prepare_incoming(offer)
    (reason,) = calls(target).prepare_incoming(replace(offer, reasons=()), dry_run=True).data.reasons
    assert "is not the VM old-desktop of vgpuctl" in reason.what


def test_the_record_there_has_only_the_disks_that_are_made_there(tmp_path: Path) -> None:
    """A disk that is not in the definition does not go, and a file of its path there is somebody else's."""
    source, target = open_sim_host(tmp_path / "a", "a100-40"), open_sim_host(tmp_path / "b", "a100-40")
    disks = create(
        source.ports, request("A100-4C", name="vm", disks=(NewDisk(1024), NewDisk(1024))), start=False
    ).data.disks
    hypervisor = source.ports.hypervisor
    first, second = (disk.path for disk in disks)
    uuid = observe(source.ports, ReadScope()).vm("vm").uuid
    disk = rf"<disk type=(?:(?!</disk>).)*{re.escape(second)}.*?</disk>"
    hypervisor.define(re.sub(disk, "", hypervisor.definition(uuid), flags=re.DOTALL))
    offer = calls(source).offer_vm("vm", offline=True).data
    place = calls(target).prepare_incoming(offer, copies_disks=True, offline=True, needs_tls=False).data
    assert [disk.path for disk in record_from_xml(place.record).disks] == [first]

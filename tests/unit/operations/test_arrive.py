# SPDX-License-Identifier: Apache-2.0
"""Which GPU of a host a VM gets that comes from another one, and what a dry run says where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, request
from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.library import GpuHost
from vgpuctl.library.move_between import MoveRequest, check_move, move_vm
from vgpuctl.model.outcome import CallSettings
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


@pytest.mark.parametrize("scenario", ["mixed", "empty", "a100-40"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_whole_gpu_never_becomes_one_of_another_model(tmp_path: Path, scenario: str, gpus: int) -> None:
    source = whole_gpu_vm(tmp_path / "a", gpus=gpus)
    target = open_sim_host(tmp_path / "b", scenario)
    model = observe(source.ports, ReadScope(models=True)).gpus[0].model
    assert reasons(source, target) == [(f"sim:{scenario}", f"it has no {model} to pass through")]


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
    text = "it has no AMD Radeon PRO V710 with virtual functions"
    assert reasons(source, open_sim_host(tmp_path / "b", "empty")) == [("sim:empty", text)]
    target = open_sim_host(tmp_path / "c", "mixed")
    move_vm(calls(source), calls(target), "vm", to(target, offline=True))
    vm = observe(target.ports, ReadScope()).vm("vm")
    assert vm is not None
    assert vm.record is not None
    assert {v.gpu for v in vm.record.vgpus} == {"0000:af:00.0"}


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

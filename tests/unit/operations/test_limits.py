# SPDX-License-Identifier: Apache-2.0
"""The limits of an account and of all accounts: with each plan, and under the host lock for what begins meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.callers import ADA, BOB, OPERATOR, host_of
from tests.command_cases import IMAGE
from tests.hosts import SimulatedHost, context, open_sim_host, operation, picture, request
from tests.meanwhile import on_call, unchanged
from vgpuctl.errors import NotAllowed, SomeTargetsFailed
from vgpuctl.library import GpuHost
from vgpuctl.model.caller import Caller, Limits
from vgpuctl.operations.create import create_vm
from vgpuctl.value import replace

SPEC: Any = {"profile": "A100-4C", "memory": "1GiB"}
TWO_VMS = replace(ADA, limits=Limits(vms=2))


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A host with a VM of ada, one of bob and one of root; each has a vGPU of 4 GiB."""
    host = open_sim_host(tmp_path)
    for caller, name in ((ADA, "adas"), (BOB, "bobs"), (None, "roots")):
        host_of(host, caller).create_vm(name, start=False, **SPEC)
    return host


MORE: dict[str, tuple[Limits, Limits, Callable[[GpuHost], object], str]] = {
    "VMs": (Limits(vms=1), Limits(), lambda by: by.create_vm("x", **SPEC), "ada may take 1 VM on this host"),
    "several VMs": (Limits(vms=2), Limits(), lambda by: by.create_vms("x-{}", 2, **SPEC), "they would take 3 VMs"),
    "a VM that stays off": (
        Limits(vms=1),
        Limits(),
        lambda by: by.create_vm("x", start=False, reserve="running", **SPEC),
        "they would take 2 VMs",
    ),
    "VMs that stay off": (
        Limits(vms=1),
        Limits(),
        lambda by: by.create_vms("x-{}", 1, start=False, reserve="running", **SPEC),
        "they would take 2 VMs",
    ),
    "vGPUs": (Limits(vgpus=1), Limits(), lambda by: by.attach_vgpu("adas", profile="A100-4C"), "2 vGPUs"),
    "vGPUs of a new VM": (
        Limits(vgpus=2),
        Limits(),
        lambda by: by.create_vm("x", memory="1GiB", profile="A100-4C:2"),
        "they would take 3 vGPUs",
    ),
    "GPU memory": (
        Limits(gpu_memory_mib=8192),
        Limits(),
        lambda by: by.create_vm("x", memory="1GiB", profile="A100-4C:2"),
        "may take 8 GiB of GPU memory on this host, and they would take 12 GiB",
    ),
    "more of a profile": (
        Limits(gpu_memory_mib=4096),
        Limits(),
        lambda by: by.set_vm("adas", profile="A100-4C:2"),
        "they would take 8 GiB",
    ),
    "VMs of all": (Limits(), Limits(vms=2), lambda by: by.create_vm("x", **SPEC), "all accounts together may take 2"),
    "memory of all": (
        Limits(vms=9),
        Limits(gpu_memory_mib=8192),
        lambda by: by.create_vm("x", **SPEC),
        "all accounts together may take 8 GiB of GPU memory",
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_more_than_the_limit_is_refused_and_nothing_is_written(host: SimulatedHost, name: str) -> None:
    own, group, act, text = MORE[name]
    limited = replace(ADA, limits=own, group_limits=group)
    with unchanged(host), pytest.raises(NotAllowed, match=text) as caught:
        act(host_of(host, limited))
    assert caught.value.code == "not-allowed"
    assert "agent: limits:" in str(caught.value.hint)
    assert str(caught.value.facts["rule"]).startswith("agent.limits.all" if group != Limits() else "agent.limits.each")
    act(host_of(host, ADA))


def test_a_dry_run_is_refused_too(host: SimulatedHost) -> None:
    with pytest.raises(NotAllowed):
        host_of(host, replace(ADA, limits=Limits(vms=1))).create_vm("x", dry_run=True, **SPEC)


def test_what_takes_no_more_is_possible_at_and_above_the_limit(host: SimulatedHost) -> None:
    for limits in (Limits(1, 1, 4096), Limits(0, 0, 0)):
        by = host_of(host, replace(ADA, limits=limits, group_limits=limits))
        by.start_vm("adas")
        by.set_vm("adas", labels={"a": str(limits.vms)})
        by.stop_vm("adas", force=True)
        by.set_vm("adas", memory="2GiB")
        by.set_vm("adas", reserve="running")
        by.set_vm("adas", reserve="always")
    by.set_vm("adas", profile="A100-4C", gpu="0000:3b:00.0")
    by.delete_vm("adas")


def test_a_vm_that_starts_elsewhere_takes_no_more(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    by = host_of(host, replace(ADA, limits=Limits(1, 1, 4096)))
    by.create_vm("vm", reserve="running", start=False, **SPEC)
    host_of(host, None).create_vms("other-{}", 3, **SPEC)
    assert by.start_vm("vm").changed
    with pytest.raises(NotAllowed):
        by.create_vm("x", **SPEC)


def test_vms_of_others_and_of_root_do_not_count_for_an_account(host: SimulatedHost) -> None:
    assert host_of(host, TWO_VMS).create_vm("x", **SPEC).changed
    group = replace(OPERATOR, group_limits=Limits(vms=4))
    assert host_of(host, group).create_vm("y", **SPEC).changed
    with pytest.raises(NotAllowed):
        host_of(host, group).create_vm("z", **SPEC)


@pytest.mark.parametrize(
    ("caller", "limits"),
    [
        pytest.param(ADA, {"limits": Limits(vms=1)}, id="the same account"),
        pytest.param(BOB, {"group_limits": Limits(vms=1)}, id="all accounts"),
    ],
)
def test_a_vm_that_is_created_between_the_plan_and_the_lock_counts(
    tmp_path: Path, caller: Caller, limits: dict[str, Limits]
) -> None:
    host = open_sim_host(tmp_path)
    other = open_sim_host(tmp_path)
    ports = on_call(
        host.ports, "claims.lock", lambda: host_of(other, caller).create_vm("first", start=False, **SPEC), nth=1
    )
    limited = replace(context(), caller=replace(ADA, **limits))
    with pytest.raises(NotAllowed, match="they would take 2 VMs"), operation(ports):
        create_vm(ports, limited, request("A100-4C", name="second"), start=True)
    assert [name for name, _ in picture(host).domains.values()] == ["first"]
    assert len(picture(host).claims) == 1


def test_a_whole_gpu_counts_with_its_memory(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "h100-pcie-x8")
    limited = host_of(host, replace(ADA, limits=Limits(vgpus=1, gpu_memory_mib=100_000)))
    limited.create_vm("vm", mode="passthrough", gpus=1, memory="1GiB")
    limited.stop_vm("vm", force=True)
    tries: tuple[Callable[[], object], ...] = (
        lambda: limited.attach_gpu("vm", gpus=1),
        lambda: limited.create_vm("x", mode="passthrough", gpus=1),
    )
    for act in tries:
        with pytest.raises(NotAllowed, match="they would take 2 vGPUs"):
            act()
    bob = host_of(host, replace(BOB, limits=Limits(gpu_memory_mib=100_000)))
    with pytest.raises(NotAllowed, match="of GPU memory on this host, and they would take"):
        bob.create_vm("y", mode="passthrough", gpus=2)


def test_an_account_deletes_only_so_many_vms_in_an_hour(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    limited = host_of(host, replace(ADA, limits=Limits(removals_per_hour=2)))
    limited.create_vms("vm-{}", 5, start=False, **SPEC)
    limited.delete_vm("vm-1", dry_run=True)
    with pytest.raises(SomeTargetsFailed):
        limited.for_each("delete-vm", ["vm-1", "vm-2", "vm-3"], lambda by, name: by.delete_vm(name))
    assert len(limited.list_vms().data) == 3
    with unchanged(host), pytest.raises(NotAllowed, match="ada may delete or refresh 2 VMs in an hour, and did"):
        limited.ensure_vm("vm-4", state="absent")
    host_of(host, replace(BOB, limits=Limits(removals_per_hour=0))).create_vm("bobs", start=False, **SPEC)
    with pytest.raises(NotAllowed, match="bob may delete or refresh 0 VMs"):
        host_of(host, replace(BOB, limits=Limits(removals_per_hour=0))).delete_vm("bobs")
    assert host_of(host, None).delete_vm("bobs").changed
    host.ports.clock.sleep(3601)
    assert limited.delete_vm("vm-4").changed


def test_a_refresh_counts_as_a_deletion_of_its_disk(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    host_of(host, ADA).create_vms("vm-{}", 2, start=False, **{**SPEC, "image": IMAGE})
    limited = host_of(host, replace(ADA, limits=Limits(removals_per_hour=1)))
    limited.refresh_vm("vm-1", IMAGE, dry_run=True)
    assert limited.refresh_vm("vm-1", IMAGE).changed
    with unchanged(host), pytest.raises(NotAllowed, match="ada may delete or refresh 1 VM in an hour, and did"):
        limited.refresh_vm("vm-2", IMAGE)
    with pytest.raises(NotAllowed):
        limited.delete_vm("vm-2")


def test_removals_that_cannot_be_counted_are_not_none(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    limited = host_of(host, replace(ADA, limits=Limits(removals_per_hour=2)))
    limited.create_vms("vm-{}", 2, start=False, **SPEC)
    limited.delete_vm("vm-1")
    counts = host.sim.run_dir / "removals" / "1001"
    counts.write_text("{")
    with pytest.raises(NotAllowed):
        limited.delete_vm("vm-2")

# SPDX-License-Identifier: Apache-2.0
"""The VMs and GPUs of an audit entry: what each command changed, or was asked to change, and nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from vgpuctl import simulated
from vgpuctl.errors import VgpuctlError

GPU, SECOND = "0000:3b:00.0", "0000:3f:00.0"
SCENARIO = """version: 1
storage: {pools: [{name: default}]}
networks: [{name: default}]
gpus: [{model: A100}, {model: T4}]
"""
Touched = Callable[[Callable[[], object]], tuple[list[str], list[str]]]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> vgpuctl.GpuHost:
    """A host with two GPUs, and a VM on the first one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "host.yaml").write_text(SCENARIO)
    opened = vgpuctl.open_host(f"sim:{tmp_path / 'host.yaml'}")
    opened.create_vm("other", profile="A100-4C")
    return opened


@pytest.fixture
def touched(tmp_path: Path) -> Touched:
    """Make a call, and return the VMs and GPUs of its entry."""

    def call(act: Callable[[], object]) -> tuple[list[str], list[str]]:
        with contextlib.suppress(VgpuctlError):
            act()
        (path,) = (tmp_path / "vgpuctl").glob("host-*/audit.jsonl")
        entry: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
        return entry["vms"], entry["gpus"]

    return call


def reboot_and_open(host: vgpuctl.GpuHost) -> vgpuctl.GpuHost:
    """Reboot the simulated host, and open it as it is then."""
    simulated.reboot(simulated.scenario_of(host.name))
    return vgpuctl.open_host(host.name)


def test_the_life_of_a_vm(host: vgpuctl.GpuHost, touched: Touched) -> None:
    assert touched(lambda: host.create_vm("a", profile="A100-4C")) == (["a"], [GPU])
    assert touched(lambda: host.stop_vm("a", force=True)) == (["a"], [GPU])
    assert touched(lambda: host.start_vm("a")) == (["a"], [GPU])
    assert touched(lambda: host.reboot_vm("a")) == (["a"], [GPU])
    uuid = str(host.show_vm("a").data.uuid)
    assert touched(lambda: host.attach_vgpu("a", profile="A100-4C")) == (["a"], [GPU])
    assert touched(lambda: host.stop_vm(uuid, force=True))[0] == ["a"]
    assert touched(lambda: host.delete_vm("a")) == (["a"], [GPU])


def test_a_call_that_fails_has_what_it_was_asked_for(host: vgpuctl.GpuHost, touched: Touched) -> None:
    assert touched(lambda: host.start_vm("nobody")) == (["nobody"], [])
    assert touched(lambda: host.create_vm("b", profile="A100-4C", gpu=("0000:99:00.0",)))[0] == ["b"]
    assert touched(lambda: host.cordon("3c:00.0")) == ([], ["0000:3c:00.0"])
    assert touched(lambda: host.cordon("H100")) == ([], [])
    assert touched(lambda: host.cordon(gpu="3c:00.0")) == ([], ["0000:3c:00.0"])
    assert touched(lambda: host.start_vm(name="nobody")) == (["nobody"], [])
    assert touched(lambda: host.delete_vgpu("nobody")) == ([], [])


def test_a_uuid_is_the_vm_of_that_name_also_when_the_call_fails(host: vgpuctl.GpuHost, touched: Touched) -> None:
    uuid = str(host.show_vm("other").data.uuid)
    assert touched(lambda: host.detach_vgpu(uuid, ["0000:3b:09.9"])) == (["other"], [])
    assert touched(lambda: host.refresh_vm(uuid, "/none.qcow2")) == (["other"], [])
    assert touched(lambda: host.set_vm(uuid, vcpus=7)) == (["other"], [])


def test_several_vms_are_all_there_and_those_left_alone_too(host: vgpuctl.GpuHost, touched: Touched) -> None:
    names = ["p-1", "p-2", "p-3"]
    assert touched(lambda: host.create_vms("p-{}", 3, profile="A100-4C")) == (names, [GPU])
    assert touched(lambda: host.create_vms("p-{}", 11, profile="A100-4C"))[0] == sorted(f"p-{n}" for n in range(1, 12))


def test_a_gpu_does_not_stand_for_the_vms_on_it(host: vgpuctl.GpuHost, touched: Touched) -> None:
    assert touched(lambda: host.cordon("A100")) == ([], [GPU])
    assert touched(lambda: host.create_vgpu("lab", profile="T4-4Q")) == ([], [SECOND])
    assert touched(lambda: host.delete_vgpu("lab")) == ([], [SECOND])
    assert touched(lambda: host.set_mode("A100", "vgpu")) == ([], [GPU])


def test_vms_that_are_stopped_for_a_gpu_are_there(host: vgpuctl.GpuHost, touched: Touched) -> None:
    assert touched(lambda: host.set_scheduler("A100", "equal_share", drain=True)) == (["other"], [GPU])


def test_a_stopped_vm_whose_vgpu_is_removed_and_created_again_is_there(host: vgpuctl.GpuHost, touched: Touched) -> None:
    host.stop_vm("other", force=True)
    assert touched(lambda: host.set_scheduler("A100", "equal_share", drain=True)) == (["other"], [GPU])
    assert touched(lambda: reboot_and_open(host).restore_host()) == (["other"], [GPU])


def test_the_vms_of_a_change_of_several_gpus_are_there(host: vgpuctl.GpuHost, touched: Touched) -> None:
    host.create_vm("second", profile="T4-4Q")
    both = (["other", "second"], [GPU, SECOND])

    def drain(opened: vgpuctl.GpuHost, gpu: str) -> Any:
        return opened.set_scheduler(gpu, "equal_share", drain=True)

    assert touched(lambda: host.for_each("set-scheduler", [GPU, SECOND], drain)) == both


def test_a_failure_has_the_vm_and_the_gpu_that_its_error_names(host: vgpuctl.GpuHost, touched: Touched) -> None:
    assert touched(lambda: host.set_mode("A100", "passthrough")) == ([], [GPU])


def test_a_spec_file_is_there_with_its_vm_also_when_it_fails(
    host: vgpuctl.GpuHost, touched: Touched, tmp_path: Path
) -> None:
    spec = tmp_path / "vm.yaml"
    spec.write_text("name: big\nprofile: A100-99C\nmemory: 8GiB\nlabels: {site: b, api-token: hunter2}\n")
    assert touched(lambda: host.ensure_vm(file=str(spec)))[0] == ["big"]
    (entry,) = host.log(vm="big").data
    assert json.loads(entry.spec or "") == {
        "name": "big", "profile": ["A100-99C"], "memory": "8GiB", "labels": {"site": "b", "api-token": "***"},
    }  # fmt: skip
    spec.write_text("name: p-{}\nprofile: A100-4C\n")
    assert touched(lambda: host.ensure_vms(2, file=str(spec)))[0] == ["p-1", "p-2"]
    assert json.loads(host.log(vm="p-1").data[0].spec or "")["name"] == "p-{}"
    assert host.log(vm="other").data[0].spec is None


def test_the_names_of_one_call_are_not_those_of_the_next(host: vgpuctl.GpuHost, touched: Touched) -> None:
    touched(lambda: host.stop_vm("other", force=True))
    assert touched(lambda: host.reconcile_host()) == ([], [])


def test_a_password_in_a_name_is_not_written(host: vgpuctl.GpuHost, touched: Touched) -> None:
    assert touched(lambda: host.start_vm("https://ada:x@y/vm"))[0] == ["https://***@y/vm"]

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


def test_the_names_of_one_call_are_not_those_of_the_next(host: vgpuctl.GpuHost, touched: Touched) -> None:
    touched(lambda: host.stop_vm("other", force=True))
    assert touched(lambda: host.reconcile_host()) == ([], [])


def test_a_password_in_a_name_is_not_written(host: vgpuctl.GpuHost, touched: Touched) -> None:
    assert touched(lambda: host.start_vm("https://ada:x@y/vm"))[0] == ["https://***@y/vm"]

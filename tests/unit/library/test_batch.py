# SPDX-License-Identifier: Apache-2.0
"""One change for several VMs: cancellation, a confirmation that no longer holds, and names from one look."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from time import sleep

import pytest

import vgpuctl
from vgpuctl.errors import Interrupted, InUse, SomeTargetsFailed

NAMES = ("vdi-1", "vdi-2", "vdi-3")


@pytest.fixture(autouse=True)
def _three_vms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    vgpuctl.open_host("sim:a100-40").create_vms("vdi-{}", 3, profile="A100-4C", labels={"team": "cad"})


def states() -> list[str]:
    return [str(vm.state) for vm in vgpuctl.open_host("sim:a100-40").list_vms().data]


def test_a_cancelled_batch_tells_what_is_done_and_what_is_not() -> None:
    finished: list[str] = []

    def stop(host: vgpuctl.GpuHost, name: str) -> vgpuctl.Outcome[object]:
        outcome = host.stop_vm(name)
        finished.append(name)
        return outcome

    host = vgpuctl.open_host("sim:a100-40", cancelled=lambda: bool(finished))
    with pytest.raises(Interrupted) as stopped:
        host.for_each("stop-vm", NAMES, stop, parallel=1)
    rows = stopped.value.result.data.targets
    assert [row.name for row in rows] == list(NAMES)
    assert stopped.value.changed
    assert states().count("stopped") == sum(row.ok for row in rows)
    assert states().count("stopped") == 3 or rows[-1].error.code == "interrupted"


def test_one_that_is_stopped_in_its_middle_says_what_stopped_it() -> None:
    begun = Event()

    def cancelled() -> bool:
        if begun.is_set():
            raise Interrupted("stopped by SIGTERM", signal_number=15)
        return False

    def work(host: vgpuctl.GpuHost, name: str) -> vgpuctl.Outcome[object]:
        begun.set()
        while not host._settings.cancelled():
            sleep(0.01)
        raise AssertionError("it was stopped by nobody")

    with pytest.raises(Interrupted) as stopped:
        vgpuctl.open_host("sim:a100-40", cancelled=cancelled).for_each("stop-vm", NAMES, work, parallel=1)
    assert stopped.value.result.data.targets[0].error.message == "stopped by SIGTERM"


def test_what_changed_since_the_confirmation_is_left_alone() -> None:
    def start_one(question: str, details: tuple[str, ...]) -> None:
        vgpuctl.open_host("sim:a100-40").start_vm("vdi-2")

    vgpuctl.open_host("sim:a100-40").stop_vm("vdi-2")
    host = vgpuctl.open_host("sim:a100-40", confirm=start_one)
    with pytest.raises(SomeTargetsFailed) as failed:
        host.for_each("delete-vm", NAMES, lambda one, name: one.delete_vm(name), question=lambda names: "Delete?")
    assert failed.value.status == InUse.status
    assert [vm.name for vm in host.list_vms().data] == ["vdi-2"]


def test_names_come_from_one_look() -> None:
    host = vgpuctl.open_host("sim:a100-40")
    assert [row.name for row in host.select_vms("vdi-{2..3}", "vdi-*", labels={"team": "cad"}).data] == [
        "vdi-2",
        "vdi-3",
        "vdi-1",
    ]

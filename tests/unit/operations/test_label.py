# SPDX-License-Identifier: Apache-2.0
"""Labels and owner change in the record alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import vgpuctl
from vgpuctl.errors import InvalidInput, Unmanaged


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_labels_are_merged_and_everything_else_stays() -> None:
    host = vgpuctl.open_host("sim:a100-40")
    made = host.create_vm("vm", profile="A100-4C", labels={"a": "1", "b": "2"}, owner="x").data
    assert host.set_vm("vm", labels={"a": None, "c": "3"}, dry_run=True).changed
    host.set_vm("vm", labels={"a": None, "c": "3"})
    vm = host.show_vm("vm").data
    assert (vm.labels, vm.owner, vm.state, vm.vgpus) == ({"b": "2", "c": "3"}, "x", "running", made.vgpus)
    assert host.set_vm("vm", labels={"c": "3"}).changed is False
    host.set_vm("vm", owner="")
    host.stop_vm("vm", force=True)
    host.set_vm("vm", profile="A100-5C")
    assert (host.show_vm("vm").data.labels, host.show_vm("vm").data.owner) == ({"b": "2", "c": "3"}, None)


def test_too_many_labels_and_unmanaged_vms_are_refused() -> None:
    host = vgpuctl.open_host("sim:a100-40")
    host.create_vm("vm", profile="A100-4C", labels={f"k{n}": "" for n in range(32)})
    with pytest.raises(InvalidInput, match="too many"):
        host.set_vm("vm", labels={"more": "x"})
    with pytest.raises(InvalidInput):
        host.set_vm("vm")
    with pytest.raises(Unmanaged):
        vgpuctl.open_host("sim:mixed").set_vm("old-desktop", labels={"a": "1"})

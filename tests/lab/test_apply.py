"""apply, diff and assert on a real kernel: apply makes the host match a file; diff and assert report later changes."""

from __future__ import annotations

import pytest

from tests.lab.machine import Lab
from tests.lab.partitioned import STATE, driver_lines, partitioned_host
from tests.lab.vgpuctl_in import HOST_YAML, IGB, call, must

WANTED = f"""{HOST_YAML}gpus:
  "{IGB}":  # the only one
    mode: vgpu
    scheduler: {{policy: fixed_share, time_slice_ms: 4}}
    cordoned: true
"""
FIXED, EQUAL = ["3 1 0 4000000"], ["2 2 33 1041666"]


@pytest.mark.deadline(600)
def test_apply_is_idempotent_and_reports_and_fixes_drift(lab: Lab) -> None:
    partitioned_host(lab, "vendor-vf")
    lab.run("cat > /root/wanted.yaml", stdin=WANTED)
    must(lab, "apply", "-f", "/root/wanted.yaml", "--dry-run")
    assert lab.read(f"/sys/bus/pci/devices/{IGB}/sriov_numvfs").strip() == "0"
    must(lab, "apply", "-f", "/root/wanted.yaml")
    assert int(lab.read(f"/sys/bus/pci/devices/{IGB}/sriov_numvfs")) > 0
    assert (driver_lines(lab, "scheduler"), lab.read("/etc/vgpuctl/host.yaml")) == (FIXED, WANTED)
    assert must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start", status=4)["code"] == "no-capacity"
    assert call(lab, "diff")[0] == call(lab, "diff", "--quiet")[0] == 0
    assert must(lab, "apply")["steps"] == []
    lab.run(f"echo 'scheduler 2 0 0 0 0' > {STATE}")
    assert call(lab, "diff", "--quiet")[0] == 7
    status, document = call(lab, "diff")
    assert status == 7
    assert "equal_share" in str(document)
    assert driver_lines(lab, "scheduler") == EQUAL
    must(lab, "apply")
    assert driver_lines(lab, "scheduler") == FIXED
    assert call(lab, "diff")[0] == 0

"""What version 0.2.0 left in /run/vgpuctl, under a running guest, is read, kept and taken over by this version."""

from __future__ import annotations

import json

import pytest

from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import leftovers, must, put_gpu, use_defaults

# Claims as 0.2.0 wrote them, whose operation has ended. Another VM's creation was killed after its claim, and a command
# that drained the VM was killed before the guest went off: both left their operation's file, which nobody locks.
AS_WRITTEN_BEFORE = r"""
import json, os, pathlib, sys
run, gone = pathlib.Path("/run/vgpuctl"), {"pid": 4194301, "start_ticks": 1000}
killed = "0123456789abcdef", "123456789abcdef0"
for path in (run / "claims").iterdir():
    claim = json.loads(path.read_text())
    path.write_text(json.dumps({**claim, "process": gone, "operation": "00000000ffffffff"}))
for name in killed:
    (run / "operations" / name).write_text(json.dumps({"pid": gone["pid"], "command": "vgpuctl create-vm gone"}))
other = claim["function"][:-1] + str((int(claim["function"][-1]) + 1) % 8)
left = {**claim, "carrier": other, "function": other, "vm": "gone", "vm_uuid": "6c9a3b4e-0000-4000-8000-000000000001"}
(run / "claims" / other).write_text(json.dumps({**left, "process": gone, "operation": killed[0]}))
(run / "drained").mkdir(mode=0o700, exist_ok=True)
note = {"vm_uuid": claim["vm_uuid"], "gpu": None, "process": gone, "run": "0", "until": 0.0, "operation": killed[1]}
(run / "drained" / claim["vm_uuid"]).write_text(json.dumps(note))
print(json.dumps([claim["carrier"], other]))
"""


@pytest.mark.deadline(600)
def test_claims_of_the_version_before_are_kept_under_a_running_guest(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    before = leftovers(lab)
    made = must(lab, "create-vm", "vm", "--profile", "A100-4C")
    carrier, stray = json.loads(lab.run(["python3", "-c", AS_WRITTEN_BEFORE], timeout=60).stdout)
    assert [v["carrier"] for v in made["vgpus"]] == [carrier]
    assert [f["kind"] for f in must(lab, "reconcile-host", "--dry-run")["findings"]] == ["leaked"]
    must(lab, "reconcile-host")
    assert must(lab, "reconcile-host")["findings"] == []
    shown = must(lab, "show-vm", "vm")
    assert (shown["state"], shown["ownership"], [v["present"] for v in shown["vgpus"]]) == (
        "running",
        "managed",
        [True],
    )
    assert lab.run("ls /run/vgpuctl/claims /run/vgpuctl/drained | grep -v ':$'").stdout.split() == [carrier]
    must(lab, "stop-vm", "vm", "--force")
    assert must(lab, "start-vm", "vm")["state"] == "running"
    claim = json.loads(lab.run(f"cat /run/vgpuctl/claims/{carrier}").stdout)
    assert (claim["carrier"], claim["operation"] != "00000000ffffffff") == (carrier, True)
    must(lab, "stop-vm", "vm", "--force")
    must(lab, "delete-vm", "vm", "--yes")
    assert leftovers(lab) == before
    assert stray != carrier

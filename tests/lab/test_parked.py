"""Writes that block in the kernel while a process holds the device: remove an mdev, clear a type, disable VFs."""

from __future__ import annotations

import json
import re

import pytest

from tests.lab.bystanders import SECOND_IGB
from tests.lab.held import held_unseen
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB, call, leftovers, must, use_defaults

PCI = "/sys/bus/pci/devices"
# Runs all commands in parallel, because each waits half a minute for the kernel.
AT_ONCE = r"""
import json, subprocess, sys
commands = [subprocess.Popen(["vgpuctl", "--json", "--yes", *words], stdout=subprocess.PIPE, text=True)
            for words in json.loads(sys.argv[1])]
print(json.dumps([[json.loads(c.communicate()[0]), c.returncode] for c in commands]))
"""


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_a_hanging_write_exits_75_only_for_its_gpu_until_the_holder_ends(lab: Lab) -> None:
    nvme = lab.hotplug_nvme()
    forms = ("form=mdev-pf,vendor-vf", "vfs=7")
    lab.run(["modprobe", "vgpulab", f"pf={IGB},{SECOND_IGB}", *forms, "clear_waits=Y"])
    lab.run(f"modprobe nvme && echo 0 > {PCI}/{nvme}/sriov_drivers_autoprobe && echo 2 > {PCI}/{nvme}/sriov_numvfs")
    use_defaults(lab)
    before = leftovers(lab)
    mdev = must(lab, "create-vm", "vm-mdev", "--profile", "A100-4C", "--gpu", IGB, "--no-start")["vgpus"][0]["carrier"]
    made = must(lab, "create-vm", "vm-vf", "--profile", "A100-4C", "--gpu", SECOND_IGB, "--no-start")
    vf = made["vgpus"][0]["carrier"]
    plain = lab.run(f"basename $(readlink {PCI}/{nvme}/virtfn0)").stdout.strip()
    lab.run(f"echo vfio-pci > {PCI}/{plain}/driver_override && echo {plain} > /sys/bus/pci/drivers_probe")
    commands = [["delete-vm", "vm-mdev"], ["delete-vm", "vm-vf"], ["set-mode", nvme, "passthrough"]]
    with (
        held_unseen(lab, f"/sys/bus/mdev/devices/{mdev}"),
        held_unseen(lab, f"{PCI}/{vf}"),
        held_unseen(lab, f"{PCI}/{plain}"),
    ):
        script = ["python3", "-c", AT_ONCE, json.dumps(commands)]
        for document, status in json.loads(lab.run(script, timeout=200).stdout):
            assert (status, document["error"]["code"]) == (75, "stuck"), document
            assert re.search(r"pid \d+", document["error"]["message"])
        for words in (["create-vm", "vm-2", "--profile", "A100-4C", "--gpu", IGB, "--no-start"], *commands[1:]):
            status, document = call(lab, *words)
            assert (status, document["error"]["code"]) == (75, "stuck"), document
        assert {vm["name"] for vm in must(lab, "list-vms")} == {"vm-mdev", "vm-vf"}
        problems = {g["address"]: g["problems"] for g in must(lab, "list-gpus", "--all")}
        assert all("waits in the kernel" in str(problems[g]) for g in (IGB, SECOND_IGB))
        other = must(lab, "create-vm", "vm-3", "--mode", "passthrough", "--gpu", "0000:03:00.0", "--no-start")
        assert other["record"] == "ready", "another GPU is not held back"
    lab.wait_until(
        f"! ls {PCI}/{nvme}/virtfn0 && ! ls /sys/bus/mdev/devices/{mdev} && grep -x 0 {PCI}/{vf}/nvidia/c*type"
    )
    must(lab, "delete-vm", "vm-3")
    must(lab, "reconcile-host")
    assert must(lab, "reconcile-host")["findings"] == []
    assert leftovers(lab) == before
    must(lab, "set-mode", nvme, "passthrough")
    must(lab, "create-vm", "vm-mdev", "--profile", "A100-4C", "--gpu", IGB, "--no-start")
    must(lab, "create-vm", "vm-vf", "--profile", "A100-4C", "--gpu", SECOND_IGB, "--no-start")

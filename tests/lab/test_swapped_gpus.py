"""VMs that swap their GPUs, one of which waits meanwhile, with real libvirt, VFIO and guests."""

from __future__ import annotations

import pytest

from tests.lab.bystanders import SECOND_IGB
from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.nvidia_host import put_nvml
from tests.lab.vgpuctl_in import A100, IGB, leftovers, must, use_defaults

NAMES = ("vm-0", "vm-1", "vm-2")
# Moves each VM to the other GPU as move-vms does: the second one gives up its place until the others have moved.
SWAP = f"""
from vgpuctl.model.outcome import NoProgress
from vgpuctl.operations.moves import carry_out
from vgpuctl.observe import ReadScope, observe
from vgpuctl.host.local_host import open_local_host
from vgpuctl.operations.plans.move_order import VmLeave, VmMove
host = open_local_host()
other = {{"{IGB}": "{SECOND_IGB}", "{SECOND_IGB}": "{IGB}"}}
vms = {{vm.name: vm for vm in observe(host, ReadScope(types=True)).vms}}
last, vgpu = vms["vm-1"], vms["vm-1"].record.vgpus[0]
others = [VmMove(vms[name], v, other[v.gpu]) for name in ("vm-0", "vm-2") for v in vms[name].record.vgpus]
carry_out(host, (VmLeave(last, vgpu), *others, VmMove(last, vgpu, other[vgpu.gpu], waits=True)), 180, NoProgress())
"""


@pytest.mark.deadline(1500)
@pytest.mark.parametrize("running", [True, False], ids=["running", "off"])
def test_two_sizes_swap_gpus_and_each_guest_runs_there(lab: Lab, running: bool) -> None:
    lab.run(["modprobe", "vgpulab", f"pf={IGB},{SECOND_IGB}", "form=vendor-vf,vendor-vf", "vfs=7,7"])
    put_nvml(lab)
    use_defaults(lab)
    before = leftovers(lab)
    for name, profile in zip(NAMES, ("A100-20C", "A100-40C", "A100-20C"), strict=True):
        must(lab, "create-vm", name, "--profile", profile, "--no-start")
    for name in NAMES if running else ():
        must(lab, "start-vm", name)
        assert A100 in guest_devices(lab, name)
    gpus = [must(lab, "show-vm", name)["vgpus"][0]["gpu"] for name in NAMES]
    assert gpus[0] == gpus[2] != gpus[1]
    lab.run(["env", "PYTHONPATH=/opt/vgpuctl/src:/opt/vgpuctl/lib", "python3", "-c", SWAP], timeout=600)
    now = [must(lab, "show-vm", name) for name in NAMES]
    assert [vm["vgpus"][0]["gpu"] for vm in now] == [gpus[1], gpus[0], gpus[1]]
    assert [vm["vgpus"][0]["present"] for vm in now] == [True] * len(NAMES)
    assert [vm["state"] for vm in now] == ["running" if running else "stopped"] * len(NAMES)
    for name in NAMES[:2]:
        must(lab, "start-vm", name)
        assert A100 in guest_devices(lab, name)
    assert must(lab, "reconcile-host")["findings"] == []
    for name in NAMES:
        must(lab, "delete-vm", name)
    assert leftovers(lab) == before

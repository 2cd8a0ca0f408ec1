"""Unmanaged objects on the same host: an mdev, a vGPU on the tested GPU, VFs, a VM. vgpuctl must not change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.domains import mdev_hostdev, tiny_domain
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB

SECOND_IGB = "0000:02:00.0"
MDEV = "0f0f0f0f-1111-4222-8333-444444444444"
ON_OUR_GPU = "0f0f0f0f-5555-4666-8777-888888888888"
PCI = "/sys/bus/pci/devices"
LOOK = f"""
virsh dumpxml --inactive theirs; virsh domstate theirs
readlink /sys/bus/mdev/devices/{MDEV} /sys/bus/mdev/devices/{MDEV}/mdev_type
ls /sys/bus/mdev/devices | grep -x {ON_OUR_GPU}
cat {PCI}/{SECOND_IGB}/sriov_numvfs
for vf in {PCI}/{SECOND_IGB}/virtfn*; do readlink $vf; readlink $vf/driver; cat $vf/driver_override; done
for vf in $(cat /root/their-vfs); do cat {PCI}/$vf/nvidia/current_vgpu_type; done
"""


@contextmanager
def bystanders(lab: Lab, *, plain_vfs: bool = True) -> Iterator[None]:
    """Create the unmanaged objects, and check at the end that none of them changed. Call this after `put_gpu`.

    The tested GPU gets one vGPU: an mdev, or a vGPU type on the last VF. With `plain_vfs`, another card gets 2 VFs,
    and one of them is bound to vfio-pci.
    """
    script = f"""set -e
modprobe mtty; echo {MDEV} > /sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create
true > /root/their-vfs
if [ -d {PCI}/{IGB}/mdev_supported_types ]; then
    grep -l 'A100-4C$' {PCI}/{IGB}/mdev_supported_types/*/name | head -1 | xargs dirname > /root/kind
    echo {ON_OUR_GPU} > $(cat /root/kind)/create
elif [ -e {PCI}/{IGB}/virtfn6/nvidia ]; then
    basename $(readlink {PCI}/{IGB}/virtfn6) > /root/their-vfs
    awk '/A100-4C$/ {{ print $1 }}' {PCI}/{IGB}/virtfn6/nvidia/creatable_vgpu_types > /root/kind
    cat /root/kind > {PCI}/{IGB}/virtfn6/nvidia/current_vgpu_type
fi"""
    if plain_vfs:
        script += f"""
modprobe igb; echo 0 > {PCI}/{SECOND_IGB}/sriov_drivers_autoprobe; echo 2 > {PCI}/{SECOND_IGB}/sriov_numvfs
echo vfio-pci > {PCI}/{SECOND_IGB}/virtfn1/driver_override
basename $(readlink {PCI}/{SECOND_IGB}/virtfn1) > /sys/bus/pci/drivers_probe"""
    lab.run(script)
    lab.run("virsh define /dev/stdin", stdin=tiny_domain("theirs", devices=mdev_hostdev(MDEV)))
    before = lab.run(LOOK, check=False).stdout
    assert MDEV in before
    yield
    after = lab.run(LOOK, check=False)
    assert after.stdout == before, f"before:\n{before}\nafter:\n{after.stdout}{after.stderr}"

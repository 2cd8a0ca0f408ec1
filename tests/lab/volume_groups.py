"""An LVM volume group on a loop device of the lab's host, and libvirt's logical pool of it."""

from __future__ import annotations

from tests.lab.machine import Lab

GROUP = "vg0"
EXTENT = 4 << 20


def put_volume_group(lab: Lab, mib: int = 1024) -> None:
    """Make the volume group on a sparse file, and the pool of the same name, started."""
    lab.run(f"""set -e
        truncate -s {mib}M /var/tmp/{GROUP}.img
        loop=$(losetup --find --show /var/tmp/{GROUP}.img)
        pvcreate -q "$loop"; vgcreate -q {GROUP} "$loop"
        virsh -q pool-define-as {GROUP} logical --source-name {GROUP} --target /dev/{GROUP}
        virsh -q pool-start {GROUP}""")


def volumes(lab: Lab) -> dict[str, int]:
    """Return the logical volumes and their sizes in bytes, from LVM itself."""
    text = lab.run(["lvs", "--noheadings", "--units", "b", "--nosuffix", "-o", "lv_name,lv_size", GROUP]).stdout
    return {name: int(size) for name, size in (line.split() for line in text.splitlines())}

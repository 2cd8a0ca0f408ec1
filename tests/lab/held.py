"""A holder of a VFIO device that /proc does not show: its descriptors are in flight in a socket and open nowhere.

vgpuctl looks for holders before it takes a device away. Only somebody it cannot see makes the kernel park the write
that takes the device, as it does when a VM opens the device between the check and the write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.machine import Lab

# Opens the device as QEMU does (linux/vfio.h: VFIO_GROUP_SET_CONTAINER 104, VFIO_SET_IOMMU 102 with type 1,
# VFIO_GROUP_GET_DEVICE_FD 106, all of type ';'), sends what it has into a socket nobody reads, and closes its own.
HOLD = r"""
import ctypes, fcntl, os, socket, struct, sys
group, device = sys.argv[1:]
container, opened = os.open("/dev/vfio/vfio", os.O_RDWR), os.open(f"/dev/vfio/{group}", os.O_RDWR)
fcntl.ioctl(opened, 0x3b68, struct.pack("i", container))
fcntl.ioctl(container, 0x3b66, 1)
held = fcntl.ioctl(opened, 0x3b6a, ctypes.create_string_buffer(device.encode() + b"\0", 64))
near, far = socket.socketpair()
socket.send_fds(near, [b"x"], [container, opened, held])
for descriptor in (held, opened, container):
    os.close(descriptor)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_unseen(lab: Lab, directory: str) -> Iterator[None]:
    """Hold the device of this sysfs directory to the end of the block; who waits for it in the kernel then goes on."""
    group = lab.run(f"basename $(readlink {directory}/iommu_group)").stdout.strip()
    lab.run("cat > /root/hold.py", stdin=HOLD)
    process = lab.start_command(["python3", "/root/hold.py", group, directory.rpartition("/")[2]])
    try:
        said = process.stdout.readline() if process.stdout else ""
        assert said == "held\n", process.communicate()
        yield
    finally:
        process.communicate(timeout=60)

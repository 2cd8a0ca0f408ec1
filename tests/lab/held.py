"""Holds a VFIO device invisibly: its file descriptors are in flight in a socket, so /proc shows no process with them.

vgpuctl looks for holders before it removes a device. Only a holder that vgpuctl cannot see makes the kernel block the
write that removes the device. The same happens if a VM opens the device between vgpuctl's check and its write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.machine import Lab

# Opens the device as QEMU does (linux/vfio.h: VFIO_GROUP_SET_CONTAINER 104, VFIO_SET_IOMMU 102 with type 1,
# VFIO_GROUP_GET_DEVICE_FD 106, all of type ';'), sends the descriptors into a socket that nobody reads, and closes
# its own copies.
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
    """Hold the device of this sysfs directory until the block ends; then a blocked write in the kernel continues."""
    group = lab.run(f"basename $(readlink {directory}/iommu_group)").stdout.strip()
    lab.run("cat > /root/hold.py", stdin=HOLD)
    process = lab.start_command(["python3", "/root/hold.py", group, directory.rpartition("/")[2]])
    try:
        output = process.stdout.readline() if process.stdout else ""
        assert output == "held\n", process.communicate()
        yield
    finally:
        process.communicate(timeout=60)

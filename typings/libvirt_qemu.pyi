# SPDX-License-Identifier: Apache-2.0
# The calls of libvirt-python's libvirt_qemu that vgpuctl uses; the package ships no types and none are published.

from libvirt import virDomain

def qemuAgentCommand(domain: virDomain, cmd: str, timeout: int, flags: int) -> str: ...
def qemuMonitorCommand(domain: virDomain, cmd: str, flags: int) -> str: ...

# SPDX-License-Identifier: Apache-2.0
"""libvirt's numbers that this program uses; a test compares each with the installed binding.

They are part of libvirt's public interface (libvirt-domain.h, libvirt-storage.h, virterror.h) and never change,
so the modules that name them do not have to load libvirt.
"""

from __future__ import annotations

from vgpuctl.model.vm import VmState

VIR_ERR_INTERNAL_ERROR = 1
VIR_ERR_NO_SUPPORT = 3
VIR_ERR_INVALID_CONN = 6
VIR_ERR_INVALID_ARG = 8
VIR_ERR_OPERATION_FAILED = 9
VIR_ERR_DOM_EXIST = 28
VIR_ERR_OPERATION_DENIED = 29
VIR_ERR_SYSTEM_ERROR = 38
VIR_ERR_RPC = 39
VIR_ERR_NO_DOMAIN = 42
VIR_ERR_NO_NETWORK = 43
VIR_ERR_AUTH_FAILED = 45
VIR_ERR_NO_STORAGE_POOL = 49
VIR_ERR_NO_STORAGE_VOL = 50
VIR_ERR_OPERATION_INVALID = 55
VIR_ERR_CONFIG_UNSUPPORTED = 67
VIR_ERR_OPERATION_TIMEOUT = 68
VIR_ERR_AUTH_CANCELLED = 79
VIR_ERR_NO_DOMAIN_METADATA = 80
VIR_ERR_ACCESS_DENIED = 88
VIR_ERR_STORAGE_VOL_EXIST = 90
VIR_ERR_XML_INVALID_SCHEMA = 92
VIR_ERR_AUTH_UNAVAILABLE = 94
VIR_ERR_DEVICE_MISSING = 99

VIR_DOMAIN_XML_SECURE = 1
VIR_DOMAIN_XML_INACTIVE = 2
VIR_DOMAIN_DEFINE_VALIDATE = 1
VIR_DOMAIN_METADATA_ELEMENT = 2
VIR_DOMAIN_AFFECT_LIVE = 1
VIR_DOMAIN_AFFECT_CONFIG = 2
VIR_DOMAIN_UNDEFINE_MANAGED_SAVE = 1
VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA = 2
VIR_DOMAIN_UNDEFINE_NVRAM = 4
VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA = 16
VIR_DOMAIN_UNDEFINE_TPM = 32

VIR_DOMAIN_RUNNING = 1
VIR_DOMAIN_BLOCKED = 2
VIR_DOMAIN_PAUSED = 3
VIR_DOMAIN_SHUTDOWN = 4
VIR_DOMAIN_SHUTOFF = 5
VIR_DOMAIN_CRASHED = 6
VIR_DOMAIN_PMSUSPENDED = 7

STATES = {
    VIR_DOMAIN_RUNNING: VmState.RUNNING,
    VIR_DOMAIN_BLOCKED: VmState.RUNNING,
    VIR_DOMAIN_PAUSED: VmState.PAUSED,
    VIR_DOMAIN_SHUTDOWN: VmState.RUNNING,  # the guest is powering off and still holds its devices
    VIR_DOMAIN_SHUTOFF: VmState.STOPPED,
    VIR_DOMAIN_CRASHED: VmState.CRASHED,
    VIR_DOMAIN_PMSUSPENDED: VmState.PAUSED,
}

NOT_ALLOWED = frozenset(
    {
        VIR_ERR_OPERATION_DENIED,
        VIR_ERR_AUTH_FAILED,
        VIR_ERR_AUTH_CANCELLED,
        VIR_ERR_AUTH_UNAVAILABLE,
        VIR_ERR_ACCESS_DENIED,
    }
)
"""The caller lacks a right, whatever the call."""

HINTS = {
    VIR_ERR_OPERATION_TIMEOUT: "another job holds the VM; try again",
    VIR_ERR_CONFIG_UNSUPPORTED: "the host or QEMU lacks something the VM asks for; see 'virt-host-validate qemu'",
    VIR_ERR_XML_INVALID_SCHEMA: "this libvirt is older than something in the definition; see it with --print-xml",
    VIR_ERR_DEVICE_MISSING: "a device of the VM is not there; 'vgpuctl start-vm' makes it again",
}

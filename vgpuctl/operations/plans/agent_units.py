# SPDX-License-Identifier: Apache-2.0
"""The systemd units of the host agent. Their comments are for the admin who reads them on a host."""

from __future__ import annotations

from vgpuctl.model.agent_service import (
    OPERATORS_GROUP,
    SERVICE_UNIT,
    SOCKET_MODE,
    SOCKET_PATH,
    SOCKET_UNIT,
    STATE_DIRECTORY,
    STOP_SECONDS,
)
from vgpuctl.operations.plans.installation import (
    InstalledFile,
    package_unit_path,
    quote_for_systemd,
    unit_path,
    with_checksum,
)
from vgpuctl.value import Value

_SOCKET_TEXT = f"""\
[Unit]
Description=Socket of vgpuctl's host agent

[Socket]
ListenStream={SOCKET_PATH}
FileDescriptorName=api
# Without these two lines every user of this host could connect.
SocketMode={SOCKET_MODE:04o}
SocketGroup={OPERATORS_GROUP}
DirectoryMode=0755
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""

# No RuntimeDirectory=: systemd would remove /run/vgpuctl-agent, with the socket in it, when the service stops, and
# /run/vgpuctl, with all claims, if it were named. RestartSteps= and RestartMaxDelaySec= make the pause grow since
# systemd 254; older versions ignore the lines with a warning.
_SERVICE_TEMPLATE = f"""\
[Unit]
Description=vgpuctl's host agent
# After libvirt and all that starts VMs at boot: no VM ever waits for the agent, and nothing requires it. A shutdown
# stops it first, while libvirt still answers the operations that it ends, and before libvirt-guests stops the VMs.
After=vgpuctl-restore.service libvirtd.service virtqemud.service libvirt-guests.service
Requires={SOCKET_UNIT}
# It comes back however often it fails.
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={{python}} -I -m vgpuctl agent run
TimeoutStartSec=60
Restart=always
RestartSec=1
RestartSteps=6
RestartMaxDelaySec=60
SuccessExitStatus=143
# It pings while its API and its thread for libvirt answer.
WatchdogSec=60
TimeoutAbortSec=10
# Running operations end or are undone within this time after a stop.
TimeoutStopSec={STOP_SECONDS}
# A write that the kernel blocks, and a vendor's tool, must not be killed half-way: they outlive the agent.
KillMode=process
# A qemu-img that the kernel kills for memory fails its operation, not the agent.
OOMPolicy=continue
StateDirectory={STATE_DIRECTORY.rpartition("/")[2]}
StateDirectoryMode=0700
# A core dump would hold guests' passwords.
LimitCORE=0

# What it needs not have:
ProtectSystem=full
ConfigurationDirectory=vgpuctl
# LVM keeps its backups of a volume group there when a disk grows or moves to the bin.
ReadWritePaths=/etc/vgpuctl -/etc/lvm
PrivateTmp=yes
PrivateMounts=yes
ProtectControlGroups=yes
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @debug @mount @obsolete @reboot @swap
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_AUDIT_WRITE CAP_BLOCK_SUSPEND CAP_BPF
CapabilityBoundingSet=~CAP_CHECKPOINT_RESTORE CAP_IPC_OWNER CAP_LEASE CAP_LINUX_IMMUTABLE CAP_MAC_ADMIN CAP_MAC_OVERRIDE
CapabilityBoundingSet=~CAP_NET_ADMIN CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_RAW CAP_PERFMON CAP_SETFCAP
CapabilityBoundingSet=~CAP_SETPCAP CAP_SYS_BOOT CAP_SYS_CHROOT CAP_SYS_PACCT CAP_SYS_TIME CAP_SYS_TTY_CONFIG
CapabilityBoundingSet=~CAP_WAKE_ALARM

# What it cannot do without:
# - root (User=, PrivateUsers=): sysfs, VFIO, NVML's changes and libvirt's system socket are root's.
# - the rest of the file system (ProtectSystem=strict, ProtectHome=): storage pools may be anywhere.
# - /sys (ProtectKernelTunables=): it creates vGPUs and VFs by writing there.
# - all devices (PrivateDevices=, DevicePolicy=; ProtectClock= sets that, too): /dev/nvidia*, /dev/vfio and /dev/dri
#   come and go, and NVIDIA's library creates its own (CAP_MKNOD).
# - modules (ProtectKernelModules=): NVIDIA's tools load theirs.
# - the kernel's log (ProtectKernelLogs=): a GPU's errors (Xid) are there.
# - other users' processes (ProtectProc=, ProcSubset=, CAP_SYS_PTRACE): it looks for those that hold a device.
# - the network (PrivateNetwork=, IPAddressDeny=): events go to an address in host.yaml; disks may be on the network.
# - writable code (MemoryDenyWriteExecute=): NVIDIA's libraries may need it.
# - the host's own name (ProtectHostname=): results and audit entries show it, also after it changed.
# - the usual UMask: what it creates has the same mode as what the command creates.
# - CAP_SETUID, CAP_SETGID: programs for events, named in host.yaml, may change their user.
# Vendors' tools run as its children, and nobody documents what they need: hence a list of what is taken away.

[Install]
WantedBy=multi-user.target
Also={SOCKET_UNIT}
"""


class ServiceUnit(Value):
    """A unit; `wanted_by`: the target that starts it once it is enabled. `template` gets the interpreter's path."""

    name: str
    wanted_by: str
    template: str
    purpose: str

    @property
    def path(self) -> str:
        """Where install-host writes it."""
        return unit_path(self.name)

    @property
    def package_path(self) -> str:
        """Where the Debian package has it."""
        return package_unit_path(self.name)

    @property
    def wants_link(self) -> str:
        """The link that enables it."""
        return f"/etc/systemd/system/{self.wanted_by}.wants/{self.name}"

    def text(self, python: str) -> str:
        """Return its text without a checksum; `python` is the interpreter that has vgpuctl."""
        return self.template.replace("{python}", quote_for_systemd(python))

    def file(self, python: str) -> InstalledFile:
        """Return it as a file of an installation that is no package."""
        return InstalledFile(self.path, with_checksum(self.text(python)), 0o644, self.purpose)


_PURPOSE = "runs the host agent"
AGENT_UNITS = (
    ServiceUnit(SOCKET_UNIT, "sockets.target", _SOCKET_TEXT, _PURPOSE),
    ServiceUnit(SERVICE_UNIT, "multi-user.target", _SERVICE_TEMPLATE, _PURPOSE),
)
"""In the order in which they start."""

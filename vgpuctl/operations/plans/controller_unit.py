# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of the controller. Its comments are for the admin who reads them on the machine."""

from __future__ import annotations

from vgpuctl.model.controller_service import ACCOUNT, OPTIONS_FILE, SERVICE_UNIT, SOCKET_PATH, STATE_DIRECTORY
from vgpuctl.operations.plans.agent_units import ServiceUnit

_TEMPLATE = f"""\
[Unit]
Description=vgpuctl's controller of pools of desktops
Wants=network-online.target
After=network-online.target postgresql.service vgpuctl-agent.socket
# It comes back however often it fails: hosts and desktops go on meanwhile.
StartLimitIntervalSec=0

[Service]
Type=notify
User={ACCOUNT}
# OPTIONS="--listen 0.0.0.0:8443 --tls-certificate FILE --tls-key FILE --database @FILE"
EnvironmentFile=-{OPTIONS_FILE}
ExecStart={{python}} -I -m vgpuctl controller run $OPTIONS
TimeoutStartSec=120
Restart=always
RestartSec=1
RestartSteps=6
RestartMaxDelaySec=60
TimeoutStopSec=60
# Each host has a connection, and so has each reader of events.
LimitNOFILE=65536
StateDirectory={STATE_DIRECTORY.rpartition("/")[2]}
StateDirectoryMode=0700
# Who may enter it is an admin of the fleet: root and this user.
RuntimeDirectory={SOCKET_PATH.split("/")[2]}
RuntimeDirectoryMode=0700
UMask=0077
# A core dump would hold the database's password and the SSH key.
LimitCORE=0

# What it needs not have:
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
NoNewPrivileges=yes
RemoveIPC=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# A port below 1024 for --listen; nothing else of root.
AmbientCapabilities=CAP_NET_BIND_SERVICE
CapabilityBoundingSet=CAP_NET_BIND_SERVICE

# What it cannot do without:
# - the network (PrivateNetwork=, IPAddressDeny=): hosts by SSH, the database, clients.
# - other programs (NoExecPaths=): a ProxyCommand of ssh_config.
# - writable code (MemoryDenyWriteExecute=): libraries of paramiko may need it.
# - its own user (DynamicUser=, PrivateUsers=): its SSH key and known_hosts are files of an account that root can use.

[Install]
WantedBy=multi-user.target
"""

CONTROLLER_UNITS = (ServiceUnit(SERVICE_UNIT, "multi-user.target", _TEMPLATE, "runs the controller"),)

# SPDX-License-Identifier: Apache-2.0
"""What install-host puts on a host: the unit that restores after a boot, libvirt's hook, completion files.

Each file ends with a line that holds the checksum of what is above it. A file whose checksum is right is ours and is
replaced or removed; one that was changed by hand, or that somebody else wrote, is kept and named.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping

from vgpuctl.errors import HostCannot
from vgpuctl.value import Value

CONFIG = "/etc/vgpuctl"
UNIT_NAME = "vgpuctl-restore.service"
UNIT = f"/etc/systemd/system/{UNIT_NAME}"
WANTED = f"/etc/systemd/system/multi-user.target.wants/{UNIT_NAME}"
MAIN_HOOK = "/etc/libvirt/hooks/qemu"
HOOK = "/etc/libvirt/hooks/qemu.d/vgpuctl"
HOOK_DIRECTORY_SINCE = 6_005_000
"""libvirt 6.5 runs every file of hooks/qemu.d beside hooks/qemu (its NEWS)."""
DAEMONS = ("libvirtd.service", "virtqemud.service")

COMPLETION_DIRECTORIES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bash": (("/usr/share/bash-completion/completions", "vgpuctl"), ("/etc/bash_completion.d", "vgpuctl")),
    "zsh": (("/usr/share/zsh/vendor-completions", "_vgpuctl"), ("/usr/share/zsh/site-functions", "_vgpuctl")),
    "fish": (("/usr/share/fish/vendor_completions.d", "vgpuctl.fish"),),
}
"""Shell -> where distributions keep completions, best first: (directory, file name). Debian has zsh's own directory."""

_MARK = "# written by vgpuctl install-host, which keeps this file when it was changed by hand: "

# Through env: AppArmor's profile of libvirtd runs what is in /usr/bin unconfined and nothing that is elsewhere, so a
# Python of its own directory would be refused (and has no business to be confined as libvirtd is).
_HOOK = """\
#!/bin/sh
# Makes the missing vGPUs of a VM that vgpuctl made, before it starts, and gives back those that a VM reserves only
# while it runs, after it ended; every other VM and operation leaves at once.
case $2 in prepare) only= ;; release) only='reserve=?running' ;; *) exit 0 ;; esac
head=
while IFS= read -r line || [ -n "$line" ]; do
    head="$head$line
"
    case $line in
        *urn:vgpuctl:1*$only*) exec /usr/bin/env {python} -I -m vgpuctl.hook "$head" "$@" ;;
        *"<memory"* | *"<devices"*) exit 0 ;;
    esac
done
exit 0
"""

# No Requires=: a broken GPU must not hold back the host. No ordering before libvirt's sockets: they come before
# basic.target, after which NVIDIA's daemons start, so it would be a cycle. A socket's service waits for this unit too.
# Type=notify: the unit counts as started when the vGPUs are there, or when GPUs that are not ready have held libvirt
# back for boot: hold_libvirt_seconds:. restore-host goes on with those.
_UNIT = """\
[Unit]
Description=Make the vGPUs again that a boot took away
After=local-fs.target systemd-modules-load.service nvidia-vgpud.service nvidia-vgpu-mgr.service
Before=libvirtd.service virtqemud.service libvirt-guests.service

[Service]
Type=notify
RemainAfterExit=yes
ExecStart={python} -I -m vgpuctl restore-host
TimeoutStartSec=4200

[Install]
WantedBy=multi-user.target
"""


class InstalledFile(Value):
    """A file to put in place. `what` says what it is for."""

    path: str
    text: str
    mode: int
    what: str


def signed(text: str) -> str:
    """Return the text with its checksum's line at the end."""
    return f"{text}{_MARK}{_digest(text)}\n"


def is_ours(text: str) -> bool:
    """Say whether a file is as install-host, of whatever version, wrote it."""
    body, mark, digest = text.rpartition(_MARK)
    return bool(mark) and digest.strip() == _digest(body)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def unit_file(python: str) -> InstalledFile:
    """Return the systemd unit; `python` is the interpreter that has vgpuctl."""
    quoted = '"' + python.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'
    return InstalledFile(UNIT, signed(_UNIT.format(python=quoted)), 0o644, "restores the vGPUs after a boot")


def hook_text(python: str) -> str:
    """Return libvirt's hook without its checksum."""
    return _HOOK.format(python=shlex.quote(python))


def hook_file(python: str, libvirt_version: int | None, main_hook: str | None) -> InstalledFile:
    """Return libvirt's hook: in qemu.d, or as the only hook of a libvirt that knows no such directory.

    Raises:
        HostCannot: that libvirt is older than 6.5 and somebody's hook is in the only place.
    """
    if libvirt_version is None or libvirt_version >= HOOK_DIRECTORY_SINCE:
        return InstalledFile(HOOK, signed(hook_text(python)), 0o755, "makes a VM's vGPUs when it starts")
    if main_hook is not None and not is_ours(main_hook):
        raise HostCannot(
            f"{MAIN_HOOK} is somebody else's, and libvirt {_shown(libvirt_version)} runs no second hook",
            hint="libvirt 6.5 or newer runs every file of hooks/qemu.d as well",
            check="hook",
            path=MAIN_HOOK,
            libvirt_version=_shown(libvirt_version),
        )
    return InstalledFile(MAIN_HOOK, signed(hook_text(python)), 0o755, "makes a VM's vGPUs when it starts")


def _shown(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"


def completion_file(shell: str, directory: str, name: str, script: str) -> InstalledFile:
    """Return one shell's completion file."""
    text = script if script.endswith("\n") else f"{script}\n"
    return InstalledFile(f"{directory}/{name}", signed(text), 0o644, f"completes vgpuctl in {shell}")

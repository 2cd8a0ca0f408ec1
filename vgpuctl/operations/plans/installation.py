# SPDX-License-Identifier: Apache-2.0
"""What install-host puts on a host: the unit that restores after a boot, libvirt's hook, completion files.

Each file ends with a line that holds the checksum of the text above it. vgpuctl replaces or removes a file whose
checksum is right. It keeps and names a file that was changed by hand, or that somebody else wrote.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping

from vgpuctl.errors import HostCannot, Refused
from vgpuctl.extras import PACKAGE_PYTHON
from vgpuctl.model.numbers import format_version
from vgpuctl.value import Value

CONFIG_DIRECTORY = "/etc/vgpuctl"
UNIT_NAME = "vgpuctl-restore.service"
_UNIT_DIRECTORY, _PACKAGE_UNIT_DIRECTORY = "/etc/systemd/system", "/usr/lib/systemd/system"
UNIT_PATH = f"{_UNIT_DIRECTORY}/{UNIT_NAME}"
UNIT_WANTS_LINK = f"{_UNIT_DIRECTORY}/multi-user.target.wants/{UNIT_NAME}"
PACKAGE_UNIT_PATH = f"{_PACKAGE_UNIT_DIRECTORY}/{UNIT_NAME}"
"""The Debian package brings the unit and the completion files itself, and has install-host write the hook: libvirtd's
AppArmor profile runs scripts in /etc/libvirt/hooks alone."""
MAIN_HOOK_PATH = "/etc/libvirt/hooks/qemu"
HOOK_PATH = "/etc/libvirt/hooks/qemu.d/vgpuctl"
HOOK_DIRECTORY_SINCE = 6_005_000
"""From libvirt 6.5 on, libvirt runs every file of hooks/qemu.d in addition to hooks/qemu (its NEWS)."""
DAEMONS = ("libvirtd.service", "virtqemud.service")

COMPLETION_DIRECTORIES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bash": (("/usr/share/bash-completion/completions", "vgpuctl"), ("/etc/bash_completion.d", "vgpuctl")),
    "zsh": (("/usr/share/zsh/vendor-completions", "_vgpuctl"), ("/usr/share/zsh/site-functions", "_vgpuctl")),
    "fish": (("/usr/share/fish/vendor_completions.d", "vgpuctl.fish"),),
}
"""Shell -> completion directories of distributions, best first: (directory, file name). Debian's differs for zsh."""

_CHECKSUM_PREFIX = "# written by vgpuctl install-host, which keeps this file when it was changed by hand: "

# Uses env: AppArmor's profile of libvirtd runs programs in /usr/bin unconfined and refuses all others. So it would
# refuse a Python in another directory (which does not need libvirtd's confinement anyway).
_HOOK_TEMPLATE = """\
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

# No Requires=: a broken GPU must not block the host. No ordering before libvirt's sockets: they start before
# basic.target, and NVIDIA's daemons start after it, so that would be a cycle. A socket's service waits for this unit
# too. Type=notify: the unit counts as started when the vGPUs exist, or when GPUs that are not ready have delayed
# libvirt for boot: hold_libvirt_seconds:. restore-host then continues with those GPUs.
_UNIT_TEMPLATE = """\
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
    """A file to install. `purpose` says what it is for."""

    path: str
    text: str
    mode: int
    purpose: str


def with_checksum(text: str) -> str:
    """Return the text with its checksum line at the end."""
    return f"{text}{_CHECKSUM_PREFIX}{_checksum(text)}\n"


def has_valid_checksum(text: str) -> bool:
    """Say whether a file is unchanged since install-host, of any version, wrote it."""
    body, prefix, digest = text.rpartition(_CHECKSUM_PREFIX)
    return bool(prefix) and digest.strip() == _checksum(body)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_package(python: str) -> bool:
    """Return whether the Debian package has this interpreter."""
    return python == PACKAGE_PYTHON


def refuse_beside_package(python: str, package_unit: str | None) -> None:
    """Refuse to replace the package's hook by one of another installation; `package_unit` is the text of its unit.

    Raises:
        Refused: the Debian package is installed, and this is not it.
    """
    if package_unit is not None and not is_package(python):
        raise Refused(
            f"the Debian package vgpuctl has libvirt's hook and the boot unit of this host; {python} is not its Python",
            hint="/usr/bin/vgpuctl install-host; or first: apt remove vgpuctl",
            path=PACKAGE_UNIT_PATH,
            python=python,
        )


def unit_text(python: str) -> str:
    """Return the systemd unit without its checksum; `python` is the interpreter that has vgpuctl."""
    return _UNIT_TEMPLATE.format(python=quote_for_systemd(python))


def quote_for_systemd(word: str) -> str:
    """Return a word as a unit's command line has it (systemd.service(5))."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def unit_path(name: str) -> str:
    """Return where install-host writes a unit."""
    return f"{_UNIT_DIRECTORY}/{name}"


def package_unit_path(name: str) -> str:
    """Return where the Debian package has a unit."""
    return f"{_PACKAGE_UNIT_DIRECTORY}/{name}"


def unit_file(python: str) -> InstalledFile:
    """Return the systemd unit of an installation that is no package."""
    return InstalledFile(UNIT_PATH, with_checksum(unit_text(python)), 0o644, "restores the vGPUs after a boot")


def hook_text(python: str) -> str:
    """Return libvirt's hook without its checksum."""
    return _HOOK_TEMPLATE.format(python=shlex.quote(python))


def hook_file(python: str, libvirt_version: int | None, main_hook: str | None) -> InstalledFile:
    """Return libvirt's hook: in qemu.d, or as the only hook of a libvirt without that directory.

    Raises:
        HostCannot: libvirt is older than 6.5 and somebody else's hook is in the only place.
    """
    if libvirt_version is None or libvirt_version >= HOOK_DIRECTORY_SINCE:
        return InstalledFile(HOOK_PATH, with_checksum(hook_text(python)), 0o755, "creates a VM's vGPUs when it starts")
    if main_hook is not None and not has_valid_checksum(main_hook):
        raise HostCannot(
            f"{MAIN_HOOK_PATH} belongs to another program, and libvirt {format_version(libvirt_version)} runs only "
            "one hook",
            hint="use libvirt 6.5 or newer, which also runs every file in hooks/qemu.d",
            check="hook",
            path=MAIN_HOOK_PATH,
            libvirt_version=format_version(libvirt_version),
        )
    return InstalledFile(MAIN_HOOK_PATH, with_checksum(hook_text(python)), 0o755, "creates a VM's vGPUs when it starts")


def completion_file(shell: str, directory: str, name: str, script: str) -> InstalledFile:
    """Return one shell's completion file."""
    text = script if script.endswith("\n") else f"{script}\n"
    return InstalledFile(f"{directory}/{name}", with_checksum(text), 0o644, f"completes vgpuctl in {shell}")

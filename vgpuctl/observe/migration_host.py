# SPDX-License-Identifier: Apache-2.0
"""What a host tells the other one about itself before a VM moves: versions, CPU, and certificates for encryption.

QEMU encrypts a migration with the certificates of libvirt's directory for it: `migrate_tls_x509_cert_dir` of
/etc/libvirt/qemu.conf, else /etc/pki/libvirt-migrate if that exists, else `default_tls_x509_cert_dir`, else
/etc/pki/qemu (qemu_conf.c). Who sends is the client, who takes is the server (docs, kbase/tlscerts; QEMU, tls). Only
the names of the files are read.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from vgpuctl.errors import VgpuctlError
from vgpuctl.model.numbers import format_version
from vgpuctl.model.results.migration import MigrationHostResult
from vgpuctl.observe.host_name import read_host_name
from vgpuctl.observe.nvml_facts import driver_version

if TYPE_CHECKING:
    from vgpuctl.model.snapshot import Snapshot
    from vgpuctl.ports.host import Host

QEMU_CONF = "/etc/libvirt/qemu.conf"
CERTIFICATES = "/etc/pki/qemu"
MIGRATION_CERTIFICATES = "/etc/pki/libvirt-migrate"
AUTHORITY = "ca-cert.pem"
CLIENT_FILES = (AUTHORITY, "client-cert.pem", "client-key.pem")
SERVER_FILES = (AUTHORITY, "server-cert.pem", "server-key.pem")
_OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")
_KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
_CPU_MODEL = re.compile(r"^(?:model name|cpu)\s*:\s*(\S.*?)\s*$", re.MULTILINE)
_SETTING = re.compile(r'^\s*(\w{1,64})\s*=\s*"([^"\n]{1,4096})"', re.MULTILINE)
_FIRST_CPU = 8192
"""So much of /proc/cpuinfo has the first CPU; the whole text has a megabyte on a host with many."""


def read_migration_host(host: Host, snapshot: Snapshot, *, arch: str, sends: bool) -> MigrationHostResult:
    """Return what the other host must know. `sends`: VMs go from here; it decides which certificates are needed."""
    status = snapshot.hypervisor
    directory, missing = _read_certificates(host, CLIENT_FILES if sends else SERVER_FILES)
    cpu = _CPU_MODEL.search((_read(host, "/proc/cpuinfo") or "")[:_FIRST_CPU])
    return MigrationHostResult(
        name=read_host_name(host),
        machine_id=host.machine_id,
        arch=arch,
        kernel=_read(host, _KERNEL_RELEASE),
        distribution=next((name for path in _OS_RELEASE if (name := parse_distribution(_read(host, path)))), None),
        libvirt_version=None if status.libvirt_version is None else format_version(status.libvirt_version),
        qemu_version=None if status.qemu_version is None else format_version(status.qemu_version),
        driver=_read_driver(host, snapshot),
        cpu=None if cpu is None else cpu[1],
        tls_directory=directory,
        missing_certificates=missing,
    )


def parse_distribution(text: str | None) -> str | None:
    """Return the distribution and its version, as os-release(5) names them: `ubuntu 24.04`; None if it does not."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        values[name.strip()] = value.strip().strip("\"'")
    return f"{values.get('ID', '')} {values.get('VERSION_ID', '')}".strip() or None


def certificate_directory(settings: str | None, *, has_migration_directory: bool) -> str:
    """Return libvirt's directory of certificates for migration. `settings`: the text of qemu.conf."""
    values: dict[str, str] = dict(_SETTING.findall(settings or ""))
    if "migrate_tls_x509_cert_dir" in values:
        return values["migrate_tls_x509_cert_dir"]
    if has_migration_directory:
        return MIGRATION_CERTIFICATES
    return values.get("default_tls_x509_cert_dir", CERTIFICATES)


def _read_certificates(host: Host, needed: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return where certificates are taken from, and those that are needed and not there; None: that is not known."""
    try:
        directory = certificate_directory(
            _read(host, QEMU_CONF), has_migration_directory=_list(host, MIGRATION_CERTIFICATES) is not None
        )
        names = _list(host, directory)
    except OSError:
        return None, ()
    return directory, tuple(name for name in needed if name not in (names or ()))


def _list(host: Host, directory: str) -> tuple[str, ...] | None:
    """Return the names in a directory; None if there is none."""
    try:
        return host.sysfs.listdir(directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _read(host: Host, path: str) -> str | None:
    try:
        return host.sysfs.read(path).strip() or None
    except OSError:
        return None


def _read_driver(host: Host, snapshot: Snapshot) -> str | None:
    try:
        return driver_version(host, snapshot)
    except VgpuctlError:
        return None

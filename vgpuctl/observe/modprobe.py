# SPDX-License-Identifier: Apache-2.0
"""Read modprobe's files and the loaded driver: options of nvidia.ko, its version, its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import unreadable_error
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.driver_texts import MODULE_VERSION, PROC_VERSION, parse_driver_version
from vgpuctl.scheduler.modprobe_files import DIRECTORIES, DRIVER_PARAMS_PATH, ModprobeFile

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def read_modprobe(host: Host) -> tuple[ModprobeFile, ...]:
    """Return modprobe's files; of files with the same name, only the one in the first directory.

    Raises:
        Failed: a file exists but cannot be read, so its options are unknown.
    """
    files: dict[str, ModprobeFile] = {}
    for folder in DIRECTORIES:
        for name in _list_folder(host, folder):
            if name.endswith(".conf") and name not in files:
                files[name] = ModprobeFile(f"{folder}/{name}", _read_optional(host, f"{folder}/{name}") or "")
    return tuple(files[name] for name in sorted(files))


def driver_version(host: Host, snapshot: Snapshot) -> str | None:
    """Return the version of the loaded NVIDIA driver, None if it is unknown."""
    if snapshot.nvml.driver_version is not None:
        return snapshot.nvml.driver_version
    module = _read_optional(host, MODULE_VERSION)
    return parse_driver_version(module, None) or parse_driver_version(None, _read_optional(host, PROC_VERSION))


def loaded_parameters(host: Host) -> str | None:
    """Return the text of /proc/driver/nvidia/params, None if there is no such file."""
    return _read_optional(host, DRIVER_PARAMS_PATH)


def _list_folder(host: Host, folder: str) -> tuple[str, ...]:
    try:
        return host.sysfs.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise unreadable_error(folder, error) from error


def _read_optional(host: Host, path: str) -> str | None:
    try:
        return host.sysfs.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable_error(path, error) from error

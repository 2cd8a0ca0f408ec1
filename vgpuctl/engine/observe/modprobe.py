# SPDX-License-Identifier: Apache-2.0
"""What modprobe's files and the loaded driver say: options of nvidia.ko, its version, its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.guards import unreadable
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.driver import MODULE_VERSION, PROC_VERSION, loaded_version
from vgpuctl.scheduler.modprobe import FOLDERS, PARAMS, ModprobeFile

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def read_modprobe(world: World) -> tuple[ModprobeFile, ...]:
    """Return modprobe's files, of namesakes the one in the first directory.

    Raises:
        Failed: one is there and cannot be read: what it says is not known then.
    """
    files: dict[str, ModprobeFile] = {}
    for folder in FOLDERS:
        for name in _names(world, folder):
            if name.endswith(".conf") and name not in files:
                files[name] = ModprobeFile(f"{folder}/{name}", _text(world, f"{folder}/{name}") or "")
    return tuple(files[name] for name in sorted(files))


def driver_version(world: World, snapshot: Snapshot) -> str | None:
    """Return the version of NVIDIA's driver that is loaded, None when that is not known."""
    if snapshot.nvml.driver_version is not None:
        return snapshot.nvml.driver_version
    module = _text(world, MODULE_VERSION)
    return loaded_version(module, None) or loaded_version(None, _text(world, PROC_VERSION))


def loaded_parameters(world: World) -> str | None:
    """Return the text of /proc/driver/nvidia/params, None when there is none."""
    return _text(world, PARAMS)


def names_in_etc(world: World) -> tuple[str, ...]:
    """Return the names in /etc."""
    return _names(world, "/etc")


def _names(world: World, folder: str) -> tuple[str, ...]:
    try:
        return world.sysfs.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise unreadable(folder, error) from error


def _text(world: World, path: str) -> str | None:
    try:
        return world.sysfs.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error

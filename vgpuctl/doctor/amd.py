# SPDX-License-Identifier: Apache-2.0
"""AMD's GPUs with the driver gim: its settings, who has their VFs, and the VFIO driver that lets VMs migrate.

Sources: as `vgpuctl.makers.gim` and `vgpuctl.makers.amd`. amdgpu takes VFs too, as it does in a guest; a VF that it has
on the host cannot be given to a VM before libvirt detaches it. libvirt 10.0 and newer choose a variant driver such as
amd-vfio-pci for managed='yes' by themselves (libvirt's NEWS).
"""

from __future__ import annotations

from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    parse_version,
    require_snapshot,
    shorten,
    warn,
)
from vgpuctl.doctor.nvidia import read_modprobe_files
from vgpuctl.doctor.virtualization import KERNEL_RELEASE
from vgpuctl.makers import gim, maker_of, sets_vfs_at_load
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.modprobe_files import DIRECTORIES

NO_GIM_GPU = "no GPU here has AMD's driver gim"
_COMMAND_LINE = "/proc/cmdline"
_ENABLED_DEVICES = f"{gim.PARAMETERS}/enabled_devices"
_VARIANT_DRIVER, _VARIANT_IDS, _VARIANT_KERNEL = "amd-vfio-pci", ("74b6", "75b0"), (6, 8)
_DRIVERS = "/sys/bus/pci/drivers"


def _gim_gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in snapshot.gpus if sets_vfs_at_load(gpu))


def _gpus_without_gim(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Return the GPUs without a driver that had gim: a command that was killed may have left it unloaded."""
    return tuple(
        gpu
        for gpu in snapshot.gpus
        if gpu.driver is None
        and maker_of(gpu).sets_vfs_at_load
        and (gpu.desired_mode is GpuMode.SRIOV or maker_of(gpu).partition_choices(gpu.device_id))
    )


def _check_unloaded(context: CheckContext, snapshot: Snapshot) -> Finding:
    without = _gpus_without_gim(snapshot)
    if not without or context.file(gim.CONFIG_PATH).text is None:
        return not_applicable(NO_GIM_GPU)
    return fail(
        *shorten([f"{gpu.address} has no driver" for gpu in without]),
        f"{gim.CONFIG_PATH} exists, and gim is not loaded: a command that was killed may have left it so",
        fix=f"modprobe {gim.MODULE}; then vgpuctl reconcile-host",
    )


def _check_settings(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = _gim_gpus(snapshot)
    if not gpus:
        return _check_unloaded(context, snapshot)
    files, _ = read_modprobe_files(context)
    options = gim.find_vf_options(
        tuple((file.path, file.text) for file in files), context.file(_COMMAND_LINE).text or ""
    )
    if options:
        return warn(
            *options,
            f"the parameter vf_num wins over {gim.CONFIG_PATH}, so set-mode changes nothing",
            fix="remove vf_num there; then vgpuctl set-mode sets the number of VFs",
        )
    content = context.file(gim.CONFIG_PATH)
    if content.text is None:
        if content.problem:
            return warn(content.problem, fix=f"ls -l {gim.CONFIG_PATH}; set-mode needs to read it")
        return warn(
            f"{gim.CONFIG_PATH} does not exist: gim makes it when it is loaded",
            fix=f"vgpuctl set-mode {gpus[0].address} sriov --vfs N writes it",
        )
    try:
        config = gim.parse_config(content.text)
    except ValueError as error:
        return fail(
            f"{gim.CONFIG_PATH}: {error}",
            "gim may empty such a file when it is loaded, and turn on 1 VF for each GPU",
            fix=f"mv {gim.CONFIG_PATH} {gim.CONFIG_PATH}.bad; then set the numbers with vgpuctl set-mode",
        )
    enabled = (context.file(_ENABLED_DEVICES).text or "").strip()
    order = gim.order_gpus(((g.address, g.device_id or "") for g in gpus), "" if enabled == "(null)" else enabled)
    by_address = {g.address: g for g in gpus}
    different = [
        (address, f"{address}: {count_text(by_address[address].vfs_enabled, 'VF')} on, {wanted} in {gim.CONFIG_PATH}")
        for place, address in enumerate(order)
        if by_address[address].vfs_enabled != (wanted := config.vf_count(place))
    ]
    if different:
        address = different[0][0]
        number = by_address[address].vfs_enabled or config.vf_count(order.index(address))
        return warn(
            *shorten([line for _, line in different]),
            "the numbers change when gim is loaded again, as at the next boot; journalctl -k -g gim shows why",
            fix=f"vgpuctl set-mode {address} sriov --vfs {number}",
        )
    return ok(f"{gim.CONFIG_PATH}: vf_num={','.join(map(str, config.vf_counts))}, as {len(order)} GPUs have it")


def _check_vf_drivers(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = _gim_gpus(snapshot)
    if not gpus:
        return not_applicable(NO_GIM_GPU)
    held = [f"{f.address} of {g.address}: driver amdgpu" for g in gpus for f in g.functions if f.driver == "amdgpu"]
    if held:
        return warn(
            *shorten(held),
            "the host's amdgpu uses VFs that are for VMs; libvirt detaches each when its VM starts",
            fix="echo 'blacklist amdgpu' > /etc/modprobe.d/vgpuctl-amdgpu.conf, rebuild the initramfs and reboot, if "
            "the host needs amdgpu for no other GPU",
        )
    return ok(f"amdgpu has no VF of {count_text(len(gpus), 'GPU')}")


def _check_variant(context: CheckContext, snapshot: Snapshot) -> Finding:
    paths = _vf_id_paths(snapshot)
    ids = {path: (context.file(path).text or "").strip().lower().removeprefix("0x") for path in paths}
    able = [f"{path}: {vf_id}" for path, vf_id in ids.items() if vf_id in _VARIANT_IDS]
    if not able:
        return not_applicable(f"no VF here has an id of {_VARIANT_DRIVER}'s table ({', '.join(_VARIANT_IDS)})")
    release = (context.file(KERNEL_RELEASE).text or "").strip()
    if parse_version(release) < _VARIANT_KERNEL:
        return warn(
            *shorten(able),
            f"{KERNEL_RELEASE}: {release}; {_VARIANT_DRIVER} needs Linux 6.8",
            fix="boot Linux 6.8 or newer, if VMs with these VFs are to migrate",
        )
    if _VARIANT_DRIVER not in (context.folder(_DRIVERS).names or ()):
        return warn(
            *shorten(able),
            f"{_VARIANT_DRIVER} is not loaded: VMs with these VFs start with vfio-pci, and cannot migrate",
            fix=f"modprobe {_VARIANT_DRIVER}, which AMD ships with newer gim; libvirt 10.0 and newer then choose it",
        )
    return ok(f"{_VARIANT_DRIVER} is loaded; libvirt 10.0 and newer choose it for these VFs")


def _vf_id_paths(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(f"{gpu.path}/sriov_vf_device" for gpu in _gim_gpus(snapshot) if gpu.vfs_total)


def _settings_paths(snapshot: Snapshot) -> PathsToRead:
    if not _gim_gpus(snapshot):
        return PathsToRead(files=(gim.CONFIG_PATH,)) if _gpus_without_gim(snapshot) else PathsToRead()
    return PathsToRead(files=(gim.CONFIG_PATH, _COMMAND_LINE, _ENABLED_DEVICES), configs=DIRECTORIES)


def _variant_paths(snapshot: Snapshot) -> PathsToRead:
    paths = _vf_id_paths(snapshot)
    return PathsToRead(files=(*paths, KERNEL_RELEASE), folders=(_DRIVERS,)) if paths else PathsToRead()


CHECKS = (
    Check(
        id="gim-settings",
        title="the settings of AMD's driver gim",
        looks_at="`/etc/gim_config`, `vf_num` in modprobe's files and the kernel's command line, the VFs of each GPU",
        run=require_snapshot(_check_settings),
        find_paths=_settings_paths,
        explains=("gim-settings", "vfs-fixed", "vfs-off"),
    ),
    Check(
        id="gim-vfs",
        title="who has the VFs of AMD's driver gim",
        looks_at="`driver` of each VF",
        run=require_snapshot(_check_vf_drivers),
        explains=("libvirt-failed", "in-use"),
    ),
    Check(
        id="amd-vfio-pci",
        title="the VFIO driver with which AMD's VFs can migrate",
        looks_at="`sriov_vf_device`, `/sys/bus/pci/drivers`, the kernel's version",
        run=require_snapshot(_check_variant),
        find_paths=_variant_paths,
        explains=("libvirt-failed",),
    ),
)

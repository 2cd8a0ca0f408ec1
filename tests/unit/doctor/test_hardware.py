# SPDX-License-Identifier: Apache-2.0
"""The host's IOMMU, KVM, firmware, kernel, libvirt and QEMU; the GPUs' drivers, VFs, types, groups and BARs."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import (
    FAIL,
    NOT_APPLICABLE,
    OK,
    UNKNOWN,
    WARN,
    Case,
    assert_verdict,
    case,
    finding_text,
    run_check,
)
from tests.values import A4C, a100, changed, snapshot, t4, taken
from vgpuctl.doctor.check import FileContent, FolderListing, Verdict
from vgpuctl.doctor.gpus import shorten
from vgpuctl.doctor.virtualization import (
    APPARMOR_ENABLED,
    APPARMOR_PROFILES,
    EFI_DIRECTORY,
    EFI_VARIABLES,
    SECURE_BOOT_VARIABLE,
)
from vgpuctl.model.gpu import Backend, GpuMode, IommuGroupMember, VgpuType
from vgpuctl.model.port_values import HypervisorCapabilities, HypervisorStatus, NvmlStatus
from vgpuctl.value import replace

RESOURCE = "/sys/bus/pci/devices/0000:3b:00.0/resource"
NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
SMALL = "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n"
LARGE = "0x0000380000000000 0x0000380fffffffff 0x000000000014220c\n"
UNSET = "0x0000000000000000 0x0000000fffffffff 0x000000002014220c\n"
EMPTY_ROM = "0x0000000000000000 0x000000000007ffff 0x0000000020046200\n"
VFS_OFF = a100(backend=None, vfs_enabled=0, functions=(), types=())
NO_TYPES = a100(types=())
TOGETHER = changed(changed(a100(), 0, iommu_group=40), 1, iommu_group=40)
CLOSED = FileContent(problem=f"{RESOURCE}: Permission denied")


def nvml(verdict, word, **status):
    return case("nvml", verdict, word, snapshot=snapshot(a100(), nvml=NvmlStatus(**status)))


def group(verdict, address, driver, *words, same_slot=False):
    member = IommuGroupMember(address, driver, same_slot=same_slot)
    gpu = t4(backend=Backend.PASSTHROUGH, iommu_group=3, group_members=(member,))
    return case("iommu-groups", verdict, *words, snapshot=snapshot(gpu))


def ascend(available, **more):
    return t4(
        available=available, vendor_id="19e5", driver="devdrv_device_driver",
        types=(VgpuType("vnpu-vir02", "vir02", "vnpu-vir02"),), **more,
    )  # fmt: skip


GPU_CASES = {
    "vGPUs of NVIDIA's driver": case("vgpu-driver", OK, snapshot=snapshot(a100(), t4())),
    "vGPUs are not known while VFs are off": case("vgpu-driver", NOT_APPLICABLE, snapshot=snapshot(VFS_OFF)),
    "a T4 whose driver makes no vGPUs": case(
        "vgpu-driver", WARN, t4().address, snapshot=snapshot(t4(backend=Backend.PASSTHROUGH))
    ),
    "VFs without vGPUs": case("vgpu-driver", WARN, "0000:3b:00.0", snapshot=snapshot(a100(backend=Backend.SRIOV_VF))),
    "VFs are on": case("vfs", OK, snapshot=snapshot(a100(), t4())),
    "VFs that are off, with the command that turns them on": case(
        "vfs", FAIL, "vgpuctl set-mode 0000:3b:00.0 vgpu; if this is intended: ", "offers nothing to VMs",
        snapshot=snapshot(VFS_OFF),
    ),
    "plain VFs that are off": case(
        "vfs", FAIL, "vgpuctl set-mode 0000:3b:00.0 sriov; ",
        snapshot=snapshot(a100(backend=None, vfs_enabled=0, vendor_id="8086", driver="xe")),
    ),
    "functions without a problem": case("functions", OK, snapshot=snapshot(a100(), t4())),
    "types are offered": case("vgpu-types", OK, snapshot=snapshot(a100(), t4())),
    "a GPU without types": case("vgpu-types", FAIL, snapshot=snapshot(NO_TYPES)),
    "a GPU that is only full": case("vgpu-types", OK, snapshot=snapshot(NO_TYPES, vgpus=(taken(NO_TYPES, A4C),))),
    "vGPUs of a GeForce": case(
        "vgpu-types", WARN, "not supported by NVIDIA", snapshot=snapshot(a100(model="NVIDIA GeForce RTX 4090"))
    ),
    "a mode for containers": case(
        "vgpu-types", WARN, "npu-smi set -t vnpu-mode -d 1", snapshot=snapshot(ascend({"vnpu-vir02": 0}))
    ),
    "a mode for VMs": case("vgpu-types", OK, snapshot=snapshot(ascend({"vnpu-vir02": 3}))),
    "a mode for containers that host.yaml wants": case(
        "vgpu-types", OK, snapshot=snapshot(ascend({"vnpu-vir02": 0}, desired_mode=GpuMode.UNMANAGED))
    ),
    "vNPUs without VFs": case(
        "vgpu-types", WARN, "vgpuctl set-mode 0000:5e:00.0 vgpu",
        snapshot=snapshot(ascend({"vnpu-vir02": 0}, vfs_total=12)),
    ),
    "a driver of Moore Threads that offers nothing": case(
        "vgpu-types", WARN, "mtvgpu_basic", "Above 4G",
        snapshot=snapshot(
            t4(vendor_id="1ed5", driver="mtgpu", backend=Backend.PASSTHROUGH, types=(), functions=())
        ),
    ),
    "a card of Moore Threads without a driver": case(
        "gpu-driver", WARN, "mtvgpu_basic", snapshot=snapshot(t4(vendor_id="1ed5", driver=None, types=()))
    ),
    "a whole card needs no driver of the host": case(
        "gpu-driver", OK, snapshot=snapshot(t4(vendor_id="9999", driver=None, types=()))
    ),
    "a card of Moore Threads for passthrough": case(
        "vgpu-types", NOT_APPLICABLE,
        snapshot=snapshot(
            t4(vendor_id="1ed5", driver="vfio-pci", backend=Backend.PASSTHROUGH, types=(), functions=())
        ),
    ),
    "NVML answers": nvml(OK, "550.90.05", available=True, driver_version="550.90.05"),
    "NVML is absent": nvml(WARN, "absent", available=False, reason="absent"),
    "NVML is not asked": nvml(UNKNOWN, "", available=False, reason="--root"),
    "each VF has its group": case("iommu-groups", OK, snapshot=snapshot(a100(), t4())),
    "VFs that share a group": case(
        "iommu-groups", FAIL, "group 40: 0000:3b:00.4, 0000:3b:00.5", snapshot=snapshot(TOGETHER)
    ),
    "another device in the group": group(WARN, "0000:3c:00.0", "e1000e", "0000:3c:00.0"),
    "another device that vfio-pci has": group(OK, "0000:3c:00.0", "vfio-pci"),
    "the audio function of the same slot": group(OK, "0000:5e:00.1", "snd_hda_intel", same_slot=True),
    "no group without an IOMMU": case("iommu-groups", NOT_APPLICABLE, snapshot=snapshot(a100(vfs=0))),
    "BARs with addresses, and a ROM without one": case(
        "bars", OK, snapshot=snapshot(a100()), files={RESOURCE: SMALL + LARGE + NONE * 4 + EMPTY_ROM + LARGE}
    ),
    "a BAR without an address": case(
        "bars", FAIL, f"{RESOURCE}: BAR 1 of 0000:3b:00.0 has no address (size 64 GiB)", "Above 4G",
        snapshot=snapshot(a100()), files={RESOURCE: SMALL + UNSET},
    ),
    "a VF's BAR without an address": case(
        "bars", FAIL, f"{RESOURCE}: VF BAR 0 of 0000:3b:00.0 has no address (size 64 GiB)", "Above 4G",
        snapshot=snapshot(a100()), files={RESOURCE: SMALL + LARGE + NONE * 4 + EMPTY_ROM + UNSET},
    ),
    "resources that are not there": case("bars", UNKNOWN, snapshot=snapshot(a100())),
    "resources that cannot be read": case(
        "bars", UNKNOWN, str(CLOSED.problem), snapshot=snapshot(a100()), files={RESOURCE: CLOSED}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["gpu-driver", "vgpu-driver", "vfs", "functions", "vgpu-types", "nvml", "bars"])
def test_a_host_without_a_gpu_has_nothing_to_check(name):
    assert run_check(name, snapshot()).verdict is NOT_APPLICABLE


@pytest.mark.parametrize(("driver", "verdict"), [("nvidia", OK), ("vfio-pci", OK), ("nouveau", FAIL), (None, WARN)])
def test_the_driver_of_a_gpu(driver, verdict):
    result = run_check("gpu-driver", snapshot(t4(), a100(driver=driver)))
    assert result.verdict is verdict
    assert f"driver {driver or 'none'}" in finding_text(result)
    if verdict is not OK:
        assert t4().address not in finding_text(result), "only what is wrong is told"


@pytest.mark.parametrize("mode", [GpuMode.PASSTHROUGH, GpuMode.UNMANAGED])
def test_gpus_not_configured_for_vgpus_are_ok(mode):
    off = replace(VFS_OFF, desired_mode=mode)
    assert run_check("vfs", snapshot(off)).verdict is OK
    assert f"host.yaml: mode {mode}" in finding_text(run_check("vfs", snapshot(off)))
    assert run_check("gpu-driver", snapshot(a100(driver=None, desired_mode=mode))).verdict is OK
    assert (
        run_check("vgpu-driver", snapshot(t4(backend=Backend.PASSTHROUGH, desired_mode=mode))).verdict is NOT_APPLICABLE
    )


@pytest.mark.parametrize(
    "gpu",
    [
        changed(a100(), 3, problem="its vGPU types cannot be read: Input/output error"),
        changed(a100(), 3, has_vfio_dev=False),
        a100(problems=("virtfn3 is ignored: Input/output error",)),
    ],
)
def test_a_function_that_is_not_served_fails(gpu):
    result = run_check("functions", snapshot(t4(), gpu))
    assert result.verdict is FAIL
    assert len(result.evidence) == 1


def test_many_lines_are_shortened():
    assert shorten([]) == ()
    assert shorten(["1", "2", "3", "4"]) == ("1", "2", "3", "4")
    assert shorten(["1", "2", "3", "4", "5"]) == ("1", "2", "3", "and 2 more")


CAPABLE = HypervisorCapabilities(kvm=True, uefi=True, emulator="/usr/bin/qemu-system-x86_64")
PLAIN = HypervisorCapabilities(kvm=False, uefi=False, emulator="/usr/bin/qemu-system-x86_64")
GROUPS, CMDLINE = "/sys/kernel/iommu_groups", "/proc/cmdline"
RELEASE = "/proc/sys/kernel/osrelease"
VFIO = {"/dev/vfio": ("vfio",), "/sys/bus/pci/drivers": ("nvidia", "vfio-pci")}
NO_VFIO_PCI = {"/dev/vfio": ("vfio",), "/sys/bus/pci/drivers": ("nvidia",)}
ENFORCED = "man_filter (enforce)\nlibvirtd (enforce)\n"
BRIDGE_HELPER = "man_filter (enforce)\nlibvirtd//qemu_bridge_helper (enforce)\n"
ON, OFF = "\x06\x00\x00\x00\x01", "\x06\x00\x00\x00\x00"
BOOT_ORDER = "BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def libvirt(version: int | None = 10_000_000, qemu: int | None = 8_002_002, **more: object) -> HypervisorStatus:
    values = {"available": True, "uri": "qemu:///system", "libvirt_version": version, "qemu_version": qemu}
    return HypervisorStatus(**{**values, **more})


def iommu(verdict: Verdict, *words: str, line: str, groups: object) -> Case:
    return case("iommu", verdict, *words, files={CMDLINE: line}, folders={GROUPS: groups})


def libvirt_case(verdict: Verdict, status: HypervisorStatus, *words: str, gpu: object = None) -> Case:
    gpus = () if gpu is None else (gpu,)
    return case("libvirt", verdict, *words, snapshot=snapshot(*gpus, hypervisor=status))


def kernel(verdict: Verdict, gpu: object, release: str) -> Case:
    return case("kernel", verdict, release, snapshot=snapshot(gpu), files={RELEASE: f"{release}\n"})


def apparmor(verdict: Verdict, *words: str, enabled: str = "Y\n", profiles: object = "") -> Case:
    return case("apparmor", verdict, *words, files={APPARMOR_ENABLED: enabled, APPARMOR_PROFILES: profiles})


CASES = {
    "groups mean that the IOMMU is on": iommu(
        OK, f"{GROUPS}: 2 groups", f"{CMDLINE}: intel_iommu=on iommu=pt",
        line="ro intel_iommu=on iommu=pt quiet\n", groups=("0", "1"),
    ),
    "no group, whatever the command line": iommu(
        FAIL, "intel_iommu=on", "VT-d", "already enables it", line="ro intel_iommu=on\n", groups=()
    ),
    "no group and no word for it": iommu(FAIL, "add intel_iommu=on iommu=pt", line="ro quiet\n", groups=()),
    "groups that cannot be listed": iommu(
        UNKNOWN, line="ro", groups=FolderListing(problem=f"{GROUPS}: Permission denied")
    ),
    "an empty tree is no host without an IOMMU": case("iommu", UNKNOWN),
    "KVM is there and libvirt uses it": case("kvm", OK, folders={"/dev": ("kvm", "null")}, capabilities=CAPABLE),
    "no KVM device": case("kvm", FAIL, folders={"/dev": ("null",)}, capabilities=CAPABLE),
    "a libvirt without KVM": case("kvm", FAIL, folders={"/dev": ("kvm",)}, capabilities=PLAIN),
    "KVM without /dev": case("kvm", UNKNOWN),
    "VFIO is loaded": case("vfio", OK, snapshot=snapshot(a100()), folders=VFIO),
    "a host without VFIO": case("vfio", FAIL, snapshot=snapshot(a100())),
    "vfio-pci is missed for whole functions": case(
        "vfio", WARN, snapshot=snapshot(a100(backend=Backend.PASSTHROUGH)), folders=NO_VFIO_PCI
    ),
    "vfio-pci is missed for nothing else": case("vfio", OK, snapshot=snapshot(t4()), folders=NO_VFIO_PCI),
    "VFIO without a GPU": case("vfio", NOT_APPLICABLE, snapshot=snapshot(), folders=NO_VFIO_PCI),
    "UEFI firmware is there": case("uefi", OK, snapshot=snapshot(), capabilities=CAPABLE),
    "UEFI firmware is missed with its package": case("uefi", WARN, "ovmf", snapshot=snapshot(), capabilities=PLAIN),
    "UEFI without libvirt": case(
        "uefi", UNKNOWN, "libvirt is off", snapshot=snapshot(), capabilities_problem="libvirt is off"
    ),
    "a kernel for vendor-specific VFIO": kernel(OK, a100(), "6.8.0-45-generic"),
    "a kernel too old for vendor-specific VFIO": kernel(FAIL, a100(), "5.15.0-100-generic"),
    "an old kernel for mdevs": kernel(OK, t4(), "5.15.0-100-generic"),
    "an unreported kernel": case("kernel", UNKNOWN, snapshot=snapshot(a100())),
    "a libvirt for vendor-specific VFIO": libvirt_case(OK, libvirt(10_000_000), gpu=a100()),
    "a libvirt too old for vendor-specific VFIO": libvirt_case(FAIL, libvirt(9_000_000), gpu=a100()),
    "a libvirt for mdevs": libvirt_case(OK, libvirt(9_000_000), gpu=t4()),
    "an old libvirt": libvirt_case(WARN, libvirt(7_000_000), gpu=t4()),
    "a libvirt of unknown version": libvirt_case(UNKNOWN, libvirt(None), gpu=t4()),
    "a libvirt that does not answer": libvirt_case(
        FAIL, libvirt(None, available=False, reason="Connection refused"),
        "libvirt does not answer at qemu:///system: Connection refused",
    ),
    "an unqueried libvirt": libvirt_case(
        UNKNOWN, libvirt(None, available=False, uri="", reason="libvirt is not used: --root")
    ),
    "a session's libvirt has not the host's VMs": libvirt_case(FAIL, libvirt(uri="qemu:///session")),
    "libvirt's test driver": libvirt_case(FAIL, libvirt(uri="test:///default")),
    "AppArmor with libvirt's profile": apparmor(OK, "libvirtd (enforce)", profiles=ENFORCED),
    "AppArmor without libvirt's profile": apparmor(WARN, profiles=BRIDGE_HELPER),
    "AppArmor is off": apparmor(NOT_APPLICABLE, enabled="N\n"),
    "a host without AppArmor": case("apparmor", NOT_APPLICABLE),
    "profiles that only root sees": apparmor(
        UNKNOWN, "run it as root", profiles=FileContent(problem=f"{APPARMOR_PROFILES}: Permission denied")
    ),
    "a host booted by BIOS has no Secure Boot": case("secure-boot", NOT_APPLICABLE, snapshot=snapshot(a100())),
    "Secure Boot that cannot be seen": case(
        "secure-boot", UNKNOWN, snapshot=snapshot(a100()), folders={EFI_DIRECTORY: ()}
    ),
    "firmware without the variable has no Secure Boot": case(
        "secure-boot", OK, snapshot=snapshot(a100()),
        folders={EFI_DIRECTORY: ("efivars",), EFI_VARIABLES: (BOOT_ORDER,)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("one", [*CASES.values(), *GPU_CASES.values()], ids=[*CASES, *GPU_CASES])
def test_the_verdict_on(one):
    assert_verdict(one)


@pytest.mark.parametrize(
    ("version", "qemu", "verdict"),
    [
        (12_004_000, 7_002_000, OK),
        (12_004_000, 7_001_000, FAIL),
        (12_003_000, 6_002_000, OK),
        (10_000_000, None, UNKNOWN),
    ],
)
def test_qemu_is_checked_as_libvirt_starts_it(version, qemu, verdict):
    assert run_check("qemu", snapshot(hypervisor=libvirt(version, qemu))).verdict is verdict


@pytest.mark.parametrize(("value", "driver", "verdict"), [(ON, "nvidia", OK), (OFF, None, OK), (ON, None, FAIL)])
def test_secure_boot_only_matters_when_the_driver_is_missing(value, driver, verdict):
    result = run_check(
        "secure-boot",
        snapshot(a100(driver=driver)),
        files={SECURE_BOOT_VARIABLE: value},
        folders={EFI_DIRECTORY: ("efivars",)},
    )
    assert result.verdict is verdict

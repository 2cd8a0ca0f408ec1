# SPDX-License-Identifier: Apache-2.0
"""Whether a guest can be set up as a VM's fields for guests say.

NVIDIA supports MPS in VMs with a vGPU or a whole GPU (GPU Operator's documentation, "MPS") and lists no vGPU types that
take it. A and B types have no CUDA; the compute mode EXCLUSIVE_PROCESS, with which MPS begins, cannot be set with MIG,
and the device plugin shares no MIG devices by MPS (README of k8s-device-plugin).
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.config.arguments import WINDOWS_11
from vgpuctl.config.licenses import FEATURE_FILE, FEATURES, LICENSE_DIRECTORY
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.makers import maker_of
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.model.license import VGPU_FEATURE, License
from vgpuctl.model.names import parse_profile_name
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.request import GuestSetup
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu

_CHECK = "guest-setup"


def check_guest_setup(snapshot: Snapshot, request: VmRequest, vgpus: Sequence[AssignedVgpu]) -> tuple[str, ...]:
    """Check what vgpuctl is to set up in the guest of a new VM, and return warnings.

    Raises:
        InvalidInput: Windows, or Linux, has no such thing; a program may take more memory than a vGPU has; the license
            is for other GPUs.
        VgpuctlError: the license cannot be read, or is none that a guest can use now.
        HostCannot: a GPU of the VM is not NVIDIA's, or cannot be shared so.
    """
    if request.domain_join is not None and request.os != WINDOWS_11:
        raise InvalidInput(
            f"domain_join is for guests with Windows, and os is {request.os}",
            hint=f"add --os {WINDOWS_11}, or omit it",
            fields=["domain_join"],
            os=request.os,
        )
    setup = GuestSetup() if request.seed is None else request.seed.setup
    fields, license = setup.fields, setup.license
    if not fields:
        return ()
    what = " and ".join(fields)
    if setup.problem is not None:
        raise setup.problem
    warnings = _check_windows(request, setup) if request.os == WINDOWS_11 else ()
    if not (license or setup.guest_driver or setup.guest_sharing):
        return warnings
    for vgpu in vgpus:
        _refuse_maker(snapshot, what, vgpu)
    _refuse_other_license(request, license)
    sharing = request.guest_sharing
    if sharing is None:
        return (*warnings, *_unseen_license(request, license))
    for vgpu in vgpus:
        if vgpu.profile is not None:
            _refuse_profile(sharing, vgpu.profile)
        _refuse_memory(sharing, vgpu)
    return (*_unseen_license(request, license), *_warnings(sharing, vgpus))


def _check_windows(request: VmRequest, setup: GuestSetup) -> tuple[str, ...]:
    """Refuse what Windows does not have, and return warnings."""
    for field, value in (("guest_sharing", setup.guest_sharing), ("k8s_join", setup.k8s_join)):
        if value is not None:
            raise InvalidInput(
                f"{field} is for guests with Linux, and os is {WINDOWS_11}",
                hint="omit it; programs of Windows take turns on the GPU without any setting",
                fields=[field],
                os=request.os,
            )
    warnings = [f"{' and '.join(setup.fields)}: experimental with Windows, where nobody has run it yet"]
    if setup.license is not None:
        name = setup.license.name
        warnings.append(
            f"license {name}: until the guest is licensed, its users can read the token on its CD-ROM drive"
        )
    if setup.domain_join is not None:
        warnings.append(
            f"domain_join {setup.domain_join.name}: until prepare-vm or refresh-license --clear takes the blob out of "
            "the seed, users of the guest can read it on its CD-ROM drive"
        )
    return tuple(warnings)


def _refuse_maker(snapshot: Snapshot, what: str, vgpu: AssignedVgpu) -> None:
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is not None and not maker_of(gpu).has_nvml:
        raise HostCannot(
            f"{what}: that is for NVIDIA's GPUs, and {gpu.address} is {gpu.model}",
            hint="omit it, or choose a GPU of NVIDIA (vgpuctl list-gpus)",
            check=_CHECK,
            gpu=gpu.address,
        )


def _refuse_other_license(request: VmRequest, license: License | None) -> None:
    """Refuse a license for whole GPUs in a VM with vGPUs, and the other way round: the guest would get none."""
    whole = request.mode == "passthrough"
    if license is None or whole is (license.feature != VGPU_FEATURE):
        return
    fitting = [n for n in FEATURES if (n != VGPU_FEATURE) is whole]
    raise InvalidInput(
        f"the license {license.name} is for {'vGPUs' if whole else 'a whole GPU'}: its feature is "
        f"{license.feature} ({FEATURES[license.feature]}), and mode is {request.mode}",
        hint=f"make a license with {' or '.join(f'{n} ({FEATURES[n]})' for n in fitting)} in "
        f"{LICENSE_DIRECTORY}/NAME/{FEATURE_FILE}",
        license=license.name,
        feature=license.feature,
        mode=request.mode,
    )


def _refuse_profile(sharing: GuestSharing, profile: str) -> None:
    name = parse_profile_name(profile)
    if name is not None and name.series in "AB":
        raise HostCannot(
            f"guest_sharing {sharing.text} needs CUDA, which {profile} does not have: it is of series {name.series}",
            hint="choose a profile of series C or Q (vgpuctl list-profiles)",
            check=_CHECK,
            profile=profile,
        )
    if name is not None and name.mig_slices and sharing.method is SharingMethod.MPS:
        raise HostCannot(
            f"guest_sharing {sharing.text}: MPS takes no GPU in MIG mode, and {profile} is a part of one",
            hint="choose a time-sliced profile (vgpuctl list-profiles), or for Kubernetes --guest-sharing "
            f"{SharingMethod.TIME_SLICING}:{sharing.replicas or 4}",
            check=_CHECK,
            profile=profile,
        )


def _refuse_memory(sharing: GuestSharing, vgpu: AssignedVgpu) -> None:
    limit, has = sharing.memory_mib, vgpu.framebuffer_mib
    if limit is not None and has is not None and limit > has:
        raise InvalidInput(
            f"guest_sharing {sharing.text}: a program may take {format_mib(limit)}, and {vgpu.profile or vgpu.gpu} has "
            f"{format_mib(has)}",
            hint=f"limit it to a part of that, for example memory={format_mib(has // 2).replace(' ', '')}",
            memory_mib=limit,
            framebuffer_mib=has,
        )


def _unseen_license(request: VmRequest, license: License | None) -> tuple[str, ...]:
    """Return a warning where the host cannot see that the guest has its license, and so leaves it in the seed."""
    if license is None or request.mode != "passthrough":
        return ()
    command = f"vgpuctl refresh-license {request.name or 'VM'} --clear"
    return (f"the host does not see when a guest with a whole GPU is licensed: then {command} takes the token out",)


def _warnings(sharing: GuestSharing, vgpus: Sequence[AssignedVgpu]) -> tuple[str, ...]:
    """Return what the user should know: what sharing does not protect from, and what NVIDIA does not say."""
    what = "pods" if sharing.replicas else "programs"
    if sharing.method is SharingMethod.TIME_SLICING:
        return (f"guest_sharing {sharing.text}: nothing limits the GPU memory that each of the pods takes",)
    warnings = [f"guest_sharing {sharing.text}: a GPU fault of one of the {what} ends all that share the GPU"]
    if any(vgpu.profile is not None for vgpu in vgpus):
        warnings.append(
            f"guest_sharing {sharing.text}: NVIDIA supports MPS in VMs with vGPUs, but does not list for which "
            "profiles; try it with this one first"
        )
    return tuple(warnings)

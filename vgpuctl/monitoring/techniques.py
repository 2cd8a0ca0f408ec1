# SPDX-License-Identifier: Apache-2.0
"""The ways to share a GPU, what each isolates, and how each fits a workload: a table with its sources.

Nothing here knows a host: `technique_choice` compares it with the GPUs of a snapshot. The order in `FITS` is the
ranking, for each workload best first. It is advice for a workload in general; nothing in vgpuctl acts on it.

Isolation: NVIDIA's table of vGPU modes (`MODES`) says "strong hardware memory and fault isolation" of time-sliced
vGPUs, with shares of time, and separate engines of MIG. An error of the card itself (Xid 48, 79, 95) ends the VMs of
every technique that shares the card.

Size: it is a table; every technique has a row for each workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from vgpuctl.model.results.techniques import Degree, Fit, IsolationDegreeResult, IsolationResult
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.value import Value

MODES = "https://docs.nvidia.com/ai-enterprise/release-8/8.1/infra-software/vgpu/overview.html"
MODE_CHOICE = (
    "https://docs.nvidia.com/ai-enterprise/release-9/latest/infra-software/vgpu/features/inference-mode-decision.html"
)
SIZING = "https://docs.nvidia.com/vgpu/sizing/virtual-pc/latest/right-gpu-vsoftware.html"
SCHEDULER_SOURCE = "NVIDIA: open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/gpu.c (_gpuGetSchedulerPolicyGr)"
MIG_GUIDE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html"
MIG_PAGE = "https://www.nvidia.com/en-us/technologies/multi-instance-gpu"
MPS = "https://docs.nvidia.com/deploy/mps/architecture.html"
MPS_USE = "https://docs.nvidia.com/deploy/mps/when-to-use-mps.html"
DEVICE_PLUGIN = "https://github.com/NVIDIA/k8s-device-plugin (README.md, v0.20.0)"
NVENC = "https://developer.nvidia.com/video-encode-decode-support-matrix"
GIM = "https://github.com/amd/MxGPU-Virtualization (README.md)"
VIRTIO_GPU = "https://www.qemu.org (System Emulation, Device Emulation, virtio-gpu)"
VENUS = "https://docs.mesa3d.org/drivers/venus.html"
ASCEND = "Huawei: src/sdk_driver/vascend/dvt.c of the CANN driver"
GVT_G = "Linux: drivers/gpu/drm/i915/gvt/sched_policy.c"
MOORE_THREADS = "https://docs.mthreads.com/vgpu/version-2.9.2"
VFIO = "https://docs.kernel.org/driver-api/vfio.html"


class Need(StrEnum):
    """What a GPU has to have for a technique."""

    VGPU = "vgpu"
    OTHER_MAKER = "other-maker"
    SCHEDULER = "scheduler"
    MIXED_SIZE = "mixed-size"
    MIG = "mig"
    SHARED_GPU_INSTANCE = "shared-gpu-instance"
    PLAIN_VFS = "plain-vfs"
    WHOLE_GPU = "whole-gpu"
    NVIDIA_GUEST = "nvidia-guest"
    RENDER_NODE = "render-node"


class Technique(Value):
    """One way to share a GPU. `policy`: the scheduler that it sets. `limits`: what it cannot do."""

    name: str
    title: str
    needs: tuple[Need, ...]
    isolation: IsolationResult
    limits: tuple[str, ...]
    sources: tuple[str, ...]
    policy: SchedulerPolicy | None = None


class Workload(Value):
    """What VMs do. `memory_mib`: the framebuffer of the example commands. `series`: NVIDIA's, the preferred first."""

    name: str
    title: str
    memory_mib: int
    series: str


class Suitability(Value):
    """How a technique fits a workload, and why."""

    technique: str
    fit: Fit
    reason: str


def _is(degree: Degree, text: str) -> IsolationDegreeResult:
    return IsolationDegreeResult(degree, text)


_OWN_FRAMEBUFFER = _is(Degree.FULL, "each vGPU has its own part of the framebuffer, fixed when it is created")
_VGPU_FAULTS = _is(
    Degree.PARTIAL, "a guest's fault ends in its own vGPU; an error of the card, such as Xid 79, ends all VMs on it"
)
_VGPU_LIMITS = ("needs NVIDIA's vGPU host driver, and a license in each guest", "all vGPUs of a GPU have one size")
_ONE_GUEST = "everything is in one VM: its root user and its driver are shared"


def _time_sliced(name: str, title: str, policy: SchedulerPolicy, compute: IsolationDegreeResult) -> Technique:
    return Technique(
        name,
        title,
        (Need.VGPU, Need.SCHEDULER),
        IsolationResult(_OWN_FRAMEBUFFER, compute, _VGPU_FAULTS),
        (*_VGPU_LIMITS, "one scheduler for all vGPUs of a GPU; the GPU has to be empty to change it"),
        (MODES, SIZING, SCHEDULER_SOURCE),
        policy,
    )


BEST_EFFORT, EQUAL_SHARE, FIXED_SHARE = "vgpu-best-effort", "vgpu-equal-share", "vgpu-fixed-share"
MIXED_SIZE, MIG_BACKED, MIG_SHARED = "vgpu-mixed-size", "mig-backed", "mig-backed-shared"
OTHER_MAKER, PLAIN_VFS, WHOLE_GPU, MIG_IN_GUEST = "vgpu-other-maker", "sriov", "whole-gpu", "mig-in-guest"
TIME_SLICING, MPS_IN_GUEST, VIRTIO = "time-slicing-in-guest", "mps-in-guest", "virtio-gpu"

_TABLE = (
    _time_sliced(
        BEST_EFFORT,
        "vGPU, scheduler best_effort",
        SchedulerPolicy.BEST_EFFORT,
        _is(Degree.NONE, "idle time goes to who wants it; a busy VM slows the others down"),
    ),
    _time_sliced(
        EQUAL_SHARE,
        "vGPU, scheduler equal_share",
        SchedulerPolicy.EQUAL_SHARE,
        _is(Degree.PARTIAL, "every running vGPU has the same share of time; it shrinks when more VMs start"),
    ),
    _time_sliced(
        FIXED_SHARE,
        "vGPU, scheduler fixed_share",
        SchedulerPolicy.FIXED_SHARE,
        _is(Degree.PARTIAL, "a constant share of time, whether the other VMs run or not; idle time is lost"),
    ),
    Technique(
        MIXED_SIZE,
        "vGPUs of mixed sizes",
        (Need.VGPU, Need.MIXED_SIZE),
        IsolationResult(
            _OWN_FRAMEBUFFER,
            _is(Degree.PARTIAL, "that of its scheduler: best_effort none, equal_share the same share for each"),
            _VGPU_FAULTS,
        ),
        (
            _VGPU_LIMITS[0],
            "no fixed_share and no MIG",
            "a vGPU can begin at few places only, so fewer of some sizes fit",
        ),
        (MODES, MODE_CHOICE),
    ),
    Technique(
        MIG_BACKED,
        "MIG-backed vGPU, one in each GPU instance",
        (Need.VGPU, Need.MIG),
        IsolationResult(
            _is(Degree.FULL, "each GPU instance has its own memory, cache and bandwidth"),
            _is(Degree.FULL, "each GPU instance has its own engines"),
            _is(Degree.FULL, "an error in one GPU instance does not affect the others; one of the card does"),
        ),
        (
            "at most 7 GPU instances, in NVIDIA's fixed sizes; what they leave over is unused",
            "an idle instance lends nothing to the others",
            "no display, except on cards with graphics instances (+gfx)",
        ),
        (MODES, MODE_CHOICE, MIG_PAGE, NVENC),
    ),
    Technique(
        MIG_SHARED,
        "MIG-backed vGPUs, several in each GPU instance",
        (Need.VGPU, Need.MIG, Need.SHARED_GPU_INSTANCE),
        IsolationResult(
            _OWN_FRAMEBUFFER,
            _is(Degree.PARTIAL, "full between GPU instances; inside one, its scheduler's shares of time"),
            _is(Degree.PARTIAL, "full between GPU instances; inside one as with time-sliced vGPUs"),
        ),
        ("only cards whose driver has several vGPUs in a GPU instance", "one size of vGPU in each GPU instance"),
        (MODES, MODE_CHOICE),
    ),
    Technique(
        OTHER_MAKER,
        "vGPU of another maker (mdev)",
        (Need.VGPU, Need.OTHER_MAKER),
        IsolationResult(
            _is(Degree.FULL, "each has the memory of its type"),
            _is(Degree.PARTIAL, "Ascend: AI cores of its own; GVT-g: shares of time; Moore Threads: with equal_share"),
            _is(Degree.PARTIAL, "as the maker's driver does it; an error of the card ends all VMs on it"),
        ),
        (
            "the driver's types have fixed sizes, which share one pool",
            "vgpuctl has a scheduler for Moore Threads alone: for all cards, from when mtgpu is loaded again",
        ),
        (ASCEND, GVT_G, MOORE_THREADS),
    ),
    Technique(
        PLAIN_VFS,
        "plain virtual functions (SR-IOV)",
        (Need.PLAIN_VFS,),
        IsolationResult(
            _is(Degree.FULL, "each VF has its own part of the memory, behind the IOMMU"),
            _is(Degree.PARTIAL, "the host driver's time slices; vgpuctl sets those of xe, from Linux 6.19 on"),
            _is(Degree.PARTIAL, "the host driver resets the VF that hangs; an error of the card ends all VMs on it"),
        ),
        (
            "all VFs have one size, which follows from their number, or is set (xe)",
            "the host driver decides how many there can be",
        ),
        (GIM, VFIO),
    ),
    Technique(
        WHOLE_GPU,
        "whole GPU (passthrough)",
        (Need.WHOLE_GPU,),
        IsolationResult(
            _is(Degree.FULL, "no other VM uses the card"),
            _is(Degree.FULL, "no other VM uses the card"),
            _is(Degree.FULL, "no other VM uses the card"),
        ),
        (
            "one VM for each card; an idle card is lost",
            "the host sees neither use nor temperature while the VM has it",
            "the VM cannot move to another host while it runs",
        ),
        (VFIO,),
    ),
    Technique(
        MIG_IN_GUEST,
        "MIG inside one guest with a whole GPU",
        (Need.WHOLE_GPU, Need.MIG),
        IsolationResult(
            _is(Degree.FULL, "each GPU instance has its own memory"),
            _is(Degree.FULL, "each GPU instance has its own engines"),
            _is(Degree.PARTIAL, f"an error stays in its GPU instance; {_ONE_GUEST}"),
        ),
        ("Linux guests only", "the guest sets MIG up: nvidia-smi -mig 1, then nvidia-smi mig -cgi PROFILE -C"),
        (MIG_GUIDE,),
    ),
    Technique(
        TIME_SLICING,
        "time slicing among containers of one guest",
        (Need.NVIDIA_GUEST,),
        IsolationResult(
            _is(Degree.NONE, "every container can take all memory of the guest's GPU"),
            _is(Degree.NONE, "containers take turns; nothing is guaranteed"),
            _is(Degree.NONE, f"no fault isolation; {_ONE_GUEST}"),
        ),
        ("Linux guests with Kubernetes only: --guest-sharing time-slicing:PODS sets NVIDIA's device plugin up",),
        (DEVICE_PLUGIN,),
    ),
    Technique(
        MPS_IN_GUEST,
        "MPS among processes of one guest",
        (Need.NVIDIA_GUEST,),
        IsolationResult(
            _is(Degree.PARTIAL, "own address spaces since Volta, with optional limits"),
            _is(Degree.PARTIAL, "clients run at the same time, each with at most its share of threads"),
            _is(Degree.NONE, "a fatal fault of one client ends all clients of the GPU"),
        ),
        (
            "Linux guests and CUDA only, not with MIG: --guest-sharing mps sets it up, mps:PODS for Kubernetes",
            "48 clients for each GPU, 60 from CUDA 13.1 on",
        ),
        (MPS, MPS_USE, DEVICE_PLUGIN),
    ),
    Technique(
        VIRTIO,
        "virtio-gpu: QEMU draws for the guest",
        (Need.RENDER_NODE,),
        IsolationResult(
            _is(Degree.NONE, "QEMU allocates on the host's GPU, without a limit"),
            _is(Degree.NONE, "QEMU's processes compete with all others"),
            _is(Degree.NONE, "the guest's commands run in QEMU on the host's driver: no boundary like an IOMMU"),
        ),
        (
            "OpenGL only (Vulkan needs what libvirt has no words for yet); no CUDA, no video encoding, not on Windows",
            "virgl runs the guest's commands in QEMU on the host: only for guests that you trust",
        ),
        (VIRTIO_GPU, VENUS),
    ),
)
TECHNIQUES: Mapping[str, Technique] = {technique.name: technique for technique in _TABLE}

WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("office", "office desktops: documents, browser, video calls", 1024, "BQA"),
        Workload("cad", "CAD, 3D design and rendering on a desktop", 8192, "QB"),
        Workload("training", "training of models", 40960, "CQ"),
        Workload("inference", "serving of models", 10240, "CQ"),
        Workload("notebooks", "notebooks and development, mostly idle", 5120, "CQ"),
        Workload("transcode", "decoding and encoding of video", 4096, "QCA"),
        Workload("kubernetes", "nodes of Kubernetes with GPUs for pods", 10240, "CQ"),
    )
}

_GOOD, _POSSIBLE, _POOR, _UNSUITABLE = Fit.GOOD, Fit.POSSIBLE, Fit.POOR, Fit.UNSUITABLE
_NO_DISPLAY = "no screen: its profiles are for computing"
_ONE_USER = "it divides one guest; every desktop needs its own"
_NO_CUDA = "it has no CUDA"
_ONE_VM = "a card for each VM"

FITS: Mapping[str, tuple[Suitability, ...]] = {
    "office": (
        Suitability(BEST_EFFORT, _GOOD, "office work comes in short bursts; idle time of others makes it fast"),
        Suitability(EQUAL_SHARE, _GOOD, "no user can slow the others down for long, at some cost in speed"),
        Suitability(MIXED_SIZE, _GOOD, "users with two screens and users with four share a card"),
        Suitability(PLAIN_VFS, _GOOD, "Intel Flex and AMD V710 are made for desktops, without a license server"),
        Suitability(FIXED_SHARE, _POSSIBLE, "steady for everybody, but idle desktops keep their share"),
        Suitability(VIRTIO, _POSSIBLE, "cheap and without a license, for trusted users and light graphics"),
        Suitability(OTHER_MAKER, _POSSIBLE, "Intel GVT-g and Moore Threads have desktops"),
        Suitability(MIG_SHARED, _POSSIBLE, "on cards with graphics instances, for groups that must not meet"),
        Suitability(MIG_BACKED, _POOR, "at most 7 desktops on a card"),
        Suitability(WHOLE_GPU, _POOR, "a card for each desktop"),
        Suitability(TIME_SLICING, _UNSUITABLE, _ONE_USER),
        Suitability(MPS_IN_GUEST, _UNSUITABLE, _ONE_USER),
        Suitability(MIG_IN_GUEST, _UNSUITABLE, _ONE_USER),
    ),
    "cad": (
        Suitability(EQUAL_SHARE, _GOOD, "one render job cannot take the screens of the others"),
        Suitability(BEST_EFFORT, _GOOD, "fastest while few work at once"),
        Suitability(MIXED_SIZE, _GOOD, "small and large models share a card"),
        Suitability(WHOLE_GPU, _GOOD, "for the few with the largest models"),
        Suitability(FIXED_SHARE, _POSSIBLE, "the same speed every day, and idle time is lost"),
        Suitability(MIG_SHARED, _POSSIBLE, "on cards with graphics instances"),
        Suitability(MIG_BACKED, _POSSIBLE, "on cards with graphics instances; elsewhere it has no screen"),
        Suitability(PLAIN_VFS, _POSSIBLE, "where the programs support the card's driver"),
        Suitability(OTHER_MAKER, _POOR, "few CAD programs support these cards"),
        Suitability(VIRTIO, _POOR, "slow, and CAD programs are not certified for it"),
        Suitability(TIME_SLICING, _UNSUITABLE, _ONE_USER),
        Suitability(MPS_IN_GUEST, _UNSUITABLE, _ONE_USER),
        Suitability(MIG_IN_GUEST, _UNSUITABLE, _ONE_USER),
    ),
    "training": (
        Suitability(WHOLE_GPU, _GOOD, "all memory, all engines, and NVLink between cards"),
        Suitability(MIG_BACKED, _GOOD, "for small models: constant speed, whatever the others do"),
        Suitability(FIXED_SHARE, _POSSIBLE, "a full-size vGPU can move between hosts, which a whole GPU cannot"),
        Suitability(EQUAL_SHARE, _POSSIBLE, "jobs that may take longer when others train too"),
        Suitability(MIG_IN_GUEST, _POSSIBLE, "several small jobs of one team"),
        Suitability(MPS_IN_GUEST, _POSSIBLE, "several jobs of one user that do not fill the card each"),
        Suitability(PLAIN_VFS, _POSSIBLE, "AMD Instinct: one VF is nearly the whole card"),
        Suitability(OTHER_MAKER, _POSSIBLE, "Ascend: AI cores of its own for small jobs"),
        Suitability(BEST_EFFORT, _POOR, "the time that a job takes depends on all others"),
        Suitability(MIXED_SIZE, _POOR, "fewer large vGPUs fit, and no fixed share"),
        Suitability(MIG_SHARED, _POOR, "a part of a part of the card"),
        Suitability(TIME_SLICING, _POOR, "jobs run out of memory by each other"),
        Suitability(VIRTIO, _UNSUITABLE, _NO_CUDA),
    ),
    "inference": (
        Suitability(MIG_BACKED, _GOOD, "predictable latency and bandwidth; a neighbour does not matter"),
        Suitability(FIXED_SHARE, _GOOD, "a constant share where the card has no MIG"),
        Suitability(EQUAL_SHARE, _GOOD, "most models for each card, if latency may vary"),
        Suitability(MIG_SHARED, _GOOD, "groups that must not meet, with several light models each"),
        Suitability(OTHER_MAKER, _GOOD, "Ascend: AI cores and memory of its own for each model"),
        Suitability(MIXED_SIZE, _POSSIBLE, "models of several sizes on one card, without a fixed share"),
        Suitability(MPS_IN_GUEST, _POSSIBLE, "many small models of one owner: the best use of the engines"),
        Suitability(WHOLE_GPU, _POSSIBLE, "for one model that fills the card"),
        Suitability(MIG_IN_GUEST, _POSSIBLE, "several models of one owner that must not disturb each other"),
        Suitability(BEST_EFFORT, _POSSIBLE, "for tests: latency depends on all others"),
        Suitability(PLAIN_VFS, _POSSIBLE, "where the framework supports the card"),
        Suitability(TIME_SLICING, _POOR, "one model can take the memory of all"),
        Suitability(VIRTIO, _UNSUITABLE, _NO_CUDA),
    ),
    "notebooks": (
        Suitability(BEST_EFFORT, _GOOD, "mostly idle: who works gets nearly the whole card"),
        Suitability(EQUAL_SHARE, _GOOD, "a forgotten loop does not stop the others"),
        Suitability(MIG_SHARED, _GOOD, "courses or teams in an instance each"),
        Suitability(MIG_BACKED, _POSSIBLE, "up to 7 users, whose instances stay idle most of the time"),
        Suitability(TIME_SLICING, _POSSIBLE, "users who trust each other: one full memory stops all"),
        Suitability(MIXED_SIZE, _POSSIBLE, "small ones for most, a large one for some"),
        Suitability(MPS_IN_GUEST, _POSSIBLE, "one user with several kernels; one fault ends all"),
        Suitability(PLAIN_VFS, _POSSIBLE, "where the framework supports the card"),
        Suitability(MIG_IN_GUEST, _POSSIBLE, "users of one server"),
        Suitability(OTHER_MAKER, _POSSIBLE, "where the framework supports the card"),
        Suitability(FIXED_SHARE, _POOR, "idle notebooks keep their share"),
        Suitability(WHOLE_GPU, _POOR, f"{_ONE_VM} that is mostly idle"),
        Suitability(VIRTIO, _UNSUITABLE, _NO_CUDA),
    ),
    "transcode": (
        Suitability(BEST_EFFORT, _GOOD, "encoders and decoders are shared as they are free"),
        Suitability(EQUAL_SHARE, _GOOD, "the same for everybody; encoders stay best effort before driver 590"),
        Suitability(PLAIN_VFS, _GOOD, "Intel Flex: encoders without a license server"),
        Suitability(WHOLE_GPU, _GOOD, "one service that uses all encoders of a card"),
        Suitability(MIXED_SIZE, _POSSIBLE, "small and large streams on one card"),
        Suitability(TIME_SLICING, _POSSIBLE, "many workers of one service: encoders are used at the same time"),
        Suitability(OTHER_MAKER, _POSSIBLE, "if the type has decoders and encoders"),
        Suitability(FIXED_SHARE, _POSSIBLE, "idle encoders cannot be used by others"),
        Suitability(MIG_SHARED, _POSSIBLE, "if the GPU instance has encoders or decoders"),
        Suitability(MIG_BACKED, _POOR, "few GPU instances have decoders, and A100 and H100 have no encoder"),
        Suitability(MIG_IN_GUEST, _POOR, "few GPU instances have decoders, and A100 and H100 have no encoder"),
        Suitability(MPS_IN_GUEST, _POOR, "it shares the CUDA engines, not the encoders"),
        Suitability(VIRTIO, _UNSUITABLE, "it has no video encoding"),
    ),
    "kubernetes": (
        Suitability(WHOLE_GPU, _GOOD, "the node divides the card itself, as on bare metal"),
        Suitability(MIG_BACKED, _GOOD, "nodes of several tenants on one card, with constant speed"),
        Suitability(MIG_IN_GUEST, _GOOD, "pods with GPU instances of their own in one node"),
        Suitability(FIXED_SHARE, _POSSIBLE, "nodes with constant shares where the card has no MIG"),
        Suitability(EQUAL_SHARE, _POSSIBLE, "nodes for tests and light services"),
        Suitability(TIME_SLICING, _POSSIBLE, "more pods than GPUs, for pods that trust each other"),
        Suitability(MPS_IN_GUEST, _POSSIBLE, "more pods than GPUs at the same time, with limits; experimental"),
        Suitability(MIG_SHARED, _POSSIBLE, "small nodes of several tenants"),
        Suitability(MIXED_SIZE, _POSSIBLE, "nodes of several sizes on one card"),
        Suitability(BEST_EFFORT, _POSSIBLE, "nodes for development"),
        Suitability(PLAIN_VFS, _POSSIBLE, "with the maker's own device plugin"),
        Suitability(OTHER_MAKER, _POSSIBLE, "with the maker's own device plugin"),
        Suitability(VIRTIO, _UNSUITABLE, _NO_CUDA),
    ),
}
"""By workload: every technique once, best first."""

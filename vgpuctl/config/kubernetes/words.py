# SPDX-License-Identifier: Apache-2.0
"""The words by which pods ask for GPUs or parts of them: one table, which docs/reference/job-words.md shows.

A word is the name of an extended resource. What one unit of it means, its system decides; where that differs from
cluster to cluster, the user has to say it (`choices`).
"""

from __future__ import annotations

import re
from enum import StrEnum

from vgpuctl.value import Value, replace

GIB = 1024
PERCENT = 0.0
"""The factor of a choice by which a unit of memory is one percent of a GPU's."""


class Amount(StrEnum):
    """What a word counts.

    `shares`: parts of a GPU whose number its cluster decides; `instances`: MIG's; `slices`: the size of one device.
    """

    DEVICES = "devices"
    SHARES = "shares"
    MEMORY = "memory"
    MEMORY_PERCENT = "memory-percent"
    CORES = "cores"
    PRIORITY = "priority"
    INSTANCES = "instances"
    SLICES = "slices"


class Word(Value):
    """One word. `pattern`: of the names that are this word, None for `name` alone; group `model`: of a GPU's model.

    `factor`: what one unit is, in MiB for memory and in percent of a GPU for cores. `choices`: the factors by the names
    that `--assume` takes, for a word whose unit its cluster decides; `any_number`: any whole number, as for shares.
    `counts_whole`: a hundred percent or a multiple of that is whole GPUs. `source`: who says so.
    """

    name: str
    system: str
    maker: str
    amount: Amount
    source: str
    factor: float = 1
    pattern: str | None = None
    choices: tuple[tuple[str, float], ...] = ()
    any_number: bool = False
    counts_whole: bool = False

    def named(self, name: str) -> Word:
        """Return this word with the name that a manifest has."""
        return replace(self, name=name)

    @property
    def model(self) -> str | None:
        """The part of a GPU's model that the name has; None for none."""
        match = None if self.pattern is None else re.fullmatch(self.pattern, self.name, re.ASCII)
        return None if match is None else match.groupdict().get("model")


PLUGIN, HAMI, VOLCANO, ORION, GPUSHARE = "NVIDIA's device plugin", "HAMi", "Volcano", "OrionX", "Alibaba's gpushare"
_PLUGIN = "NVIDIA/k8s-device-plugin, README"
_HAMI = "Project-HAMi/HAMi, charts/hami/values.yaml and docs"
_VOLCANO = "volcano-sh/volcano, how_to_use_vgpu"
_VOLCANO_OLD = "volcano-sh/volcano, how_to_use_gpu_sharing"
_TKE = "tkestack/gpu-manager, README"
_QGPU = "elastic-ai/elastic-gpu, apis/elasticgpu/v1alpha1/types.go; Tencent Cloud, qGPU"
_GPUSHARE = "AliyunContainerService/gpushare-device-plugin, cmd/nvidia/main.go"
_ACK = "kubeflow/arena, pkg/apis/types"
_ACS = "Alibaba Cloud, GPU sharing on GPU-HPN nodes"
_DYNAMIC_SMLU = f"{_HAMI}; the maker's device plugin, min-dsmlu-unit"
_T9K = "T9k's manuals, resources of its scheduler"
_4PARADIGM = "4paradigm/k8s-vgpu-scheduler, docs"
_ORION = "virtaitech/orion, doc/quick-start"
_MAKER = "the maker's device plugin"
NVIDIA, AMD, ASCEND = "NVIDIA", "AMD", "Huawei Ascend"


def _word(name: str, system: str, maker: str, amount: Amount, source: str, factor: float = 1) -> Word:
    return Word(name, system, maker, amount, source, factor)


def _others(maker: str, domain: str, *words: tuple[str, Amount, float]) -> tuple[Word, ...]:
    """Return the words of another maker, as HAMi and the maker's own plugin have them."""
    return tuple(
        Word(f"{domain}/{name}", HAMI, maker, amount, f"{_HAMI}; {_MAKER}", factor) for name, amount, factor in words
    )


WORDS = (
    _word("nvidia.com/gpu", PLUGIN, NVIDIA, Amount.DEVICES, _PLUGIN),
    _word("alpha.kubernetes.io/nvidia-gpu", PLUGIN, NVIDIA, Amount.DEVICES, "Kubernetes before 1.11"),
    Word("nvidia.com/gpu.shared", PLUGIN, NVIDIA, Amount.SHARES, _PLUGIN, any_number=True),
    Word(
        "nvidia.com/mig-1g.5gb", PLUGIN, NVIDIA, Amount.INSTANCES, _PLUGIN, pattern=r"nvidia\.com/mig-[0-9a-z.]{1,20}"
    ),
    _word("nvidia.com/vgpu", HAMI, NVIDIA, Amount.DEVICES, f"{_HAMI}: resourceName"),
    _word("nvidia.com/gpumem", HAMI, NVIDIA, Amount.MEMORY, _HAMI),
    _word("nvidia.com/gpumem-percentage", HAMI, NVIDIA, Amount.MEMORY_PERCENT, _HAMI),
    _word("nvidia.com/gpucores", HAMI, NVIDIA, Amount.CORES, _HAMI),
    _word("nvidia.com/priority", HAMI, NVIDIA, Amount.PRIORITY, _HAMI),
    _word("volcano.sh/vgpu-number", VOLCANO, NVIDIA, Amount.DEVICES, _VOLCANO),
    _word("volcano.sh/vgpu-memory", VOLCANO, NVIDIA, Amount.MEMORY, _VOLCANO),
    _word("volcano.sh/vgpu-memory-percentage", VOLCANO, NVIDIA, Amount.MEMORY_PERCENT, _VOLCANO),
    _word("volcano.sh/vgpu-cores", VOLCANO, NVIDIA, Amount.CORES, _VOLCANO),
    _word("volcano.sh/gpu-memory", VOLCANO, NVIDIA, Amount.MEMORY, _VOLCANO_OLD),
    _word("volcano.sh/gpu-number", VOLCANO, NVIDIA, Amount.DEVICES, "volcano-sh/volcano, how_to_use_gpu_number"),
    Word("tencent.com/vcuda-core", "Tencent's GPU manager", NVIDIA, Amount.CORES, _TKE, counts_whole=True),
    _word("tencent.com/vcuda-memory", "Tencent's GPU manager", NVIDIA, Amount.MEMORY, _TKE, 256),
    Word("tke.cloud.tencent.com/qgpu-core", "qGPU", NVIDIA, Amount.CORES, _QGPU, counts_whole=True),
    _word("tke.cloud.tencent.com/qgpu-core-greedy", "qGPU", NVIDIA, Amount.PRIORITY, _QGPU),
    _word("tke.cloud.tencent.com/qgpu-memory", "qGPU", NVIDIA, Amount.MEMORY, _QGPU, GIB),
    Word(
        "aliyun.com/gpu-mem",
        GPUSHARE,
        NVIDIA,
        Amount.MEMORY,
        _GPUSHARE,
        choices=(("GiB", GIB), ("MiB", 1)),
    ),
    _word("aliyun.com/gpu-count", GPUSHARE, NVIDIA, Amount.DEVICES, _GPUSHARE),
    Word("aliyun.com/gpu-core.percentage", GPUSHARE, NVIDIA, Amount.CORES, _ACK, counts_whole=True),
    _word("alibabacloud.com/gpu-core.percentage", "Alibaba's ACS", NVIDIA, Amount.CORES, _ACS),
    _word("alibabacloud.com/gpu-memory.percentage", "Alibaba's ACS", NVIDIA, Amount.MEMORY_PERCENT, _ACS),
    _word("virtaitech.com/gpu", ORION, NVIDIA, Amount.DEVICES, _ORION),
    _word("tensorstack.dev/nvidia-gpu", "T9k", NVIDIA, Amount.DEVICES, _T9K),
    _word("tensorstack.dev/nvidia-gpu-percent", "T9k", NVIDIA, Amount.MEMORY_PERCENT, _T9K),
    _word("amd.com/gpu", "AMD's device plugin", AMD, Amount.DEVICES, "ROCm/k8s-device-plugin, README"),
    _word("amd.com/gpumem", "AMD's device plugin", AMD, Amount.MEMORY, _HAMI),
    _word("amd.com/gpumem-percentage", "AMD's device plugin", AMD, Amount.MEMORY_PERCENT, _HAMI),
    _word("amd.com/gpucores", "AMD's device plugin", AMD, Amount.CORES, _HAMI),
    Word(
        "huawei.com/Ascend310P",
        HAMI,
        ASCEND,
        Amount.DEVICES,
        _HAMI,
        pattern=r"huawei\.com/Ascend(?P<model>[0-9]{3}[A-Z]?)[0-9-]{0,5}",
    ),
    Word(
        "huawei.com/Ascend310P-memory",
        HAMI,
        ASCEND,
        Amount.MEMORY,
        _HAMI,
        pattern=r"huawei\.com/Ascend(?P<model>[0-9]{3}[A-Z]?)[0-9-]{0,5}-memory",
    ),
    Word(
        "huawei.com/Ascend310P-core",
        HAMI,
        ASCEND,
        Amount.CORES,
        "Project-HAMi/ascend-device-plugin, README",
        pattern=r"huawei\.com/Ascend(?P<model>[0-9]{3}[A-Z]?)[0-9-]{0,5}-core",
    ),
    _word("gpu.intel.com/i915", "Intel's device plugin", "Intel", Amount.DEVICES, "intel/intel-device-plugins, README"),
    _word("gpu.intel.com/xe", "Intel's device plugin", "Intel", Amount.DEVICES, "intel/intel-device-plugins, README"),
    Word(
        "cambricon.com/mlu370.share", "Cambricon's device plugin", "Cambricon", Amount.SHARES, _MAKER, any_number=True
    ),
    *_others(
        "Cambricon",
        "cambricon.com",
        ("mlu", Amount.DEVICES, 1),
        ("vmlu", Amount.DEVICES, 1),
        ("mlu.smlu.vcore", Amount.CORES, 1),
        ("mlu370.smlu.vcore", Amount.CORES, 1),
    ),
    Word(
        "cambricon.com/mlu.smlu.vmemory",
        HAMI,
        "Cambricon",
        Amount.MEMORY,
        _DYNAMIC_SMLU,
        choices=(("256MiB", 256), ("percent", PERCENT)),
        pattern=r"cambricon\.com/mlu[0-9]{0,4}\.smlu\.vmemory",
    ),
    _word("cambricon.com/mlunum", "4paradigm's", "Cambricon", Amount.DEVICES, _4PARADIGM),
    _word("cambricon.com/mlumem", "4paradigm's", "Cambricon", Amount.MEMORY, _4PARADIGM),
    *_others(
        "Hygon",
        "hygon.com",
        ("dcu", Amount.DEVICES, 1),
        ("dcunum", Amount.DEVICES, 1),
        ("dcumem", Amount.MEMORY, 1),
        ("dcucores", Amount.CORES, 1),
    ),
    *_others(
        "MetaX",
        "metax-tech.com",
        ("gpu", Amount.DEVICES, 1),
        ("vfio-gpu", Amount.DEVICES, 1),
        ("sgpu", Amount.DEVICES, 1),
        ("vmemory", Amount.MEMORY, GIB),
        ("vcore", Amount.CORES, 1),
    ),
    *_others(
        "Moore Threads",
        "mthreads.com",
        ("gpu", Amount.DEVICES, 1),
        ("vgpu", Amount.DEVICES, 1),
        ("sgpu-memory", Amount.MEMORY, 512),
        ("sgpu-core", Amount.CORES, 6.25),
    ),
    *_others(
        "Enflame",
        "enflame.com",
        ("gcu", Amount.DEVICES, 1),
        ("drs-gcu", Amount.SLICES, 1),
        ("gcu-memory", Amount.MEMORY, 1),
        ("gcu-core", Amount.CORES, 1),
    ),
    *_others(
        "Kunlunxin",
        "kunlunxin.com",
        ("xpu", Amount.DEVICES, 1),
        ("vxpu", Amount.DEVICES, 1),
        ("vxpu-memory", Amount.MEMORY, 1),
    ),
    *_others("Biren", "birentech.com", ("gpu", Amount.DEVICES, 1)),
    *_others("Vastai", "vastaitech.com", ("va", Amount.DEVICES, 1)),
    Word(
        "iluvatar.ai/BI-V150-vgpu",
        HAMI,
        "Iluvatar",
        Amount.DEVICES,
        _HAMI,
        pattern=r"iluvatar\.ai/([A-Z0-9-]{1,20}-)?v?gpu",
    ),
    Word(
        "iluvatar.ai/BI-V150.vMem",
        HAMI,
        "Iluvatar",
        Amount.MEMORY,
        _HAMI,
        choices=(("MiB", 1), ("256MiB", 256)),
        pattern=r"iluvatar\.ai/([A-Z0-9-]{1,20}\.vMem|vcuda-memory)",
    ),
    Word(
        "iluvatar.ai/BI-V150.vCore",
        HAMI,
        "Iluvatar",
        Amount.CORES,
        _HAMI,
        pattern=r"iluvatar\.ai/([A-Z0-9-]{1,20}\.vCore|vcuda-core)",
    ),
)
"""In the order of the documents: NVIDIA's cards first, then other makers'."""
_BY_NAME = {word.name: word for word in WORDS if word.pattern is None}
_BY_PATTERN = tuple((re.compile(word.pattern, re.ASCII), word) for word in WORDS if word.pattern is not None)
DOMAINS = frozenset(word.name.partition("/")[0] for word in WORDS)
"""The domains of resources that are GPUs: another word of one of them is unknown, and not something else."""


def find_word(name: str) -> Word | None:
    """Return the word that the name of a resource is; None for another resource."""
    by_pattern = (word for pattern, word in _BY_PATTERN if pattern.fullmatch(name))
    return _BY_NAME.get(name) or next(by_pattern, None)

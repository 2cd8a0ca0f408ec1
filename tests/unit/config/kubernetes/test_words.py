# SPDX-License-Identifier: Apache-2.0
"""Each word of the table in a pod of the shape that its system documents, and what it becomes."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path

import pytest

from tests.kubernetes_objects import check_manifests
from vgpuctl.config.kubernetes.manifests import parse_manifests
from vgpuctl.config.kubernetes.request import parse_assumed, parse_request
from vgpuctl.config.kubernetes.words import WORDS, Amount, Word, find_word
from vgpuctl.errors import InvalidInput

PAGE = Path(__file__).resolve().parents[4] / "docs/reference/job-words.md"
_LIST = re.compile(r"(?<=<!-- words: begin -->\n).*?(?=<!-- words: end -->)", re.DOTALL)


def pod(resources: str, extra: str = "") -> str:
    """Return a pod with these limits."""
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: job}\nspec:\n  containers:\n  - name: main\n"
        "    image: example.org/i\n"
        f"    resources:\n      limits: {{{resources}}}\n{extra}"
    )


def requested(resources: str, extra: str = "", *, assume: tuple[str, ...] = ()):
    """Return what a pod with these limits asks for."""
    (template,) = parse_manifests(pod(resources, extra), "job.yaml").templates
    return parse_request(template.containers[0], parse_assumed(assume))


# By word: limits in its system's documentation, and what they are: maker, devices, MiB, % of memory, % of cores.
CASES = {
    "nvidia.com/gpu": ("nvidia.com/gpu: 2", ("NVIDIA", 2, None, None, None)),
    "alpha.kubernetes.io/nvidia-gpu": ("alpha.kubernetes.io/nvidia-gpu: 1", ("NVIDIA", 1, None, None, None)),
    "nvidia.com/gpu.shared": ("nvidia.com/gpu.shared: 1", ("NVIDIA", 1, None, 25, None)),
    "nvidia.com/mig-1g.5gb": ("nvidia.com/mig-1g.5gb: 2", ("NVIDIA", 2, None, None, None)),
    "nvidia.com/vgpu": (
        "nvidia.com/vgpu: 1, nvidia.com/gpumem: 4096, nvidia.com/gpucores: 50",
        ("NVIDIA", 1, 4096, None, 50),
    ),
    "nvidia.com/gpumem": ("nvidia.com/gpu: 2, nvidia.com/gpumem: 3000", ("NVIDIA", 2, 3000, None, None)),
    "nvidia.com/gpumem-percentage": (
        "nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50",
        ("NVIDIA", 1, None, 50, None),
    ),
    "nvidia.com/gpucores": ("nvidia.com/gpu: 1, nvidia.com/gpucores: '30'", ("NVIDIA", 1, None, None, 30)),
    "nvidia.com/priority": (
        "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/priority: 0",
        ("NVIDIA", 1, 3000, None, None),
    ),
    "volcano.sh/vgpu-number": (
        "volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 3000",
        ("NVIDIA", 2, 3000, None, None),
    ),
    "volcano.sh/vgpu-memory": ("volcano.sh/vgpu-memory: 3000", ("NVIDIA", 1, 3000, None, None)),
    "volcano.sh/vgpu-memory-percentage": (
        "volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory-percentage: 50",
        ("NVIDIA", 1, None, 50, None),
    ),
    "volcano.sh/vgpu-cores": (
        "volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 1024, volcano.sh/vgpu-cores: 50",
        ("NVIDIA", 1, 1024, None, 50),
    ),
    "volcano.sh/gpu-memory": ("volcano.sh/gpu-memory: 1024", ("NVIDIA", 1, 1024, None, None)),
    "volcano.sh/gpu-number": ("volcano.sh/gpu-number: 2", ("NVIDIA", 2, None, None, None)),
    "tencent.com/vcuda-core": ("tencent.com/vcuda-core: 200", ("NVIDIA", 2, None, None, None)),
    "tencent.com/vcuda-memory": (
        "tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 20",
        ("NVIDIA", 1, 5120, None, 30),
    ),
    "tke.cloud.tencent.com/qgpu-core": (
        "tke.cloud.tencent.com/qgpu-core: 50, tke.cloud.tencent.com/qgpu-memory: 22",
        ("NVIDIA", 1, 22528, None, 50),
    ),
    "tke.cloud.tencent.com/qgpu-core-greedy": (
        "tke.cloud.tencent.com/qgpu-core-greedy: 20, tke.cloud.tencent.com/qgpu-memory: 4",
        ("NVIDIA", 1, 4096, None, None),
    ),
    "tke.cloud.tencent.com/qgpu-memory": ("tke.cloud.tencent.com/qgpu-memory: '5'", ("NVIDIA", 1, 5120, None, None)),
    "aliyun.com/gpu-mem": ("aliyun.com/gpu-mem: 3", ("NVIDIA", 1, 3072, None, None)),
    "aliyun.com/gpu-count": ("aliyun.com/gpu-count: 2, aliyun.com/gpu-mem: 3", ("NVIDIA", 2, 3072, None, None)),
    "aliyun.com/gpu-core.percentage": (
        "aliyun.com/gpu-core.percentage: 25, aliyun.com/gpu-mem: 5",
        ("NVIDIA", 1, 5120, None, 25),
    ),
    "alibabacloud.com/gpu-core.percentage": (
        "alibabacloud.com/gpu-core.percentage: 50, alibabacloud.com/gpu-memory.percentage: 40",
        ("NVIDIA", 1, None, 40, 50),
    ),
    "alibabacloud.com/gpu-memory.percentage": (
        "alibabacloud.com/gpu-memory.percentage: 20",
        ("NVIDIA", 1, None, 20, None),
    ),
    "virtaitech.com/gpu": ("virtaitech.com/gpu: 1", ("NVIDIA", 1, 4096, None, 50)),
    "tensorstack.dev/nvidia-gpu": ("tensorstack.dev/nvidia-gpu: 2", ("NVIDIA", 2, None, None, None)),
    "tensorstack.dev/nvidia-gpu-percent": (
        "tensorstack.dev/nvidia-gpu-percent: 20",
        ("NVIDIA", 1, None, 20, None),
    ),
    "amd.com/gpu": ("amd.com/gpu: 1", ("AMD", 1, None, None, None)),
    "amd.com/gpumem": ("amd.com/gpu: 1, amd.com/gpumem: 8192", ("AMD", 1, 8192, None, None)),
    "amd.com/gpumem-percentage": ("amd.com/gpu: 1, amd.com/gpumem-percentage: 50", ("AMD", 1, None, 50, None)),
    "amd.com/gpucores": ("amd.com/gpu: 1, amd.com/gpucores: 50", ("AMD", 1, None, None, 50)),
    "huawei.com/Ascend310P": ("huawei.com/Ascend310P: 1", ("Huawei Ascend", 1, None, None, None)),
    "huawei.com/Ascend310P-memory": (
        "huawei.com/Ascend910B4-1: '1', huawei.com/Ascend910B4-1-memory: '4096'",
        ("Huawei Ascend", 1, 4096, None, None),
    ),
    "huawei.com/Ascend310P-core": (
        "huawei.com/Ascend310P: 1, huawei.com/Ascend310P-memory: '8192', huawei.com/Ascend310P-core: '50'",
        ("Huawei Ascend", 1, 8192, None, 50),
    ),
    "gpu.intel.com/i915": ("gpu.intel.com/i915: 1", ("Intel", 1, None, None, None)),
    "gpu.intel.com/xe": ("gpu.intel.com/xe: 1", ("Intel", 1, None, None, None)),
    "cambricon.com/mlu370.share": ("cambricon.com/mlu370.share: 1", None),
    "cambricon.com/mlu": ("cambricon.com/mlu: 1", ("Cambricon", 1, None, None, None)),
    "cambricon.com/vmlu": ("cambricon.com/vmlu: 1", ("Cambricon", 1, None, None, None)),
    "cambricon.com/mlu.smlu.vcore": (
        "cambricon.com/vmlu: 1, cambricon.com/mlu.smlu.vcore: 10",
        ("Cambricon", 1, None, None, 10),
    ),
    "cambricon.com/mlu370.smlu.vcore": (
        "cambricon.com/vmlu: 1, cambricon.com/mlu370.smlu.vcore: 10",
        ("Cambricon", 1, None, None, 10),
    ),
    "cambricon.com/mlu.smlu.vmemory": (
        "cambricon.com/vmlu: 1, cambricon.com/mlu.smlu.vmemory: '20'",
        None,
    ),
    "cambricon.com/mlunum": ("cambricon.com/mlunum: 1", ("Cambricon", 1, None, None, None)),
    "cambricon.com/mlumem": (
        "cambricon.com/mlunum: 1, cambricon.com/mlumem: 10240",
        ("Cambricon", 1, 10240, None, None),
    ),
    "hygon.com/dcu": ("hygon.com/dcu: 1", ("Hygon", 1, None, None, None)),
    "hygon.com/dcunum": ("hygon.com/dcunum: 1", ("Hygon", 1, None, None, None)),
    "hygon.com/dcumem": ("hygon.com/dcunum: 1, hygon.com/dcumem: 2000", ("Hygon", 1, 2000, None, None)),
    "hygon.com/dcucores": ("hygon.com/dcunum: 1, hygon.com/dcucores: 15", ("Hygon", 1, None, None, 15)),
    "metax-tech.com/gpu": ("metax-tech.com/gpu: 4", ("MetaX", 4, None, None, None)),
    "metax-tech.com/vfio-gpu": ("metax-tech.com/vfio-gpu: 1", ("MetaX", 1, None, None, None)),
    "metax-tech.com/sgpu": (
        "metax-tech.com/sgpu: 1, metax-tech.com/vcore: 60, metax-tech.com/vmemory: 2048Mi",
        ("MetaX", 1, 2048, None, 60),
    ),
    "metax-tech.com/vmemory": ("metax-tech.com/sgpu: 1, metax-tech.com/vmemory: 4", ("MetaX", 1, 4096, None, None)),
    "metax-tech.com/vcore": ("metax-tech.com/sgpu: 1, metax-tech.com/vcore: 60", ("MetaX", 1, None, None, 60)),
    "mthreads.com/gpu": ("mthreads.com/gpu: 1", ("Moore Threads", 1, None, None, None)),
    "mthreads.com/vgpu": ("mthreads.com/vgpu: 1", ("Moore Threads", 1, None, None, None)),
    "mthreads.com/sgpu-memory": (
        "mthreads.com/vgpu: 1, mthreads.com/sgpu-memory: 32",
        ("Moore Threads", 1, 16384, None, None),
    ),
    "mthreads.com/sgpu-core": ("mthreads.com/vgpu: 1, mthreads.com/sgpu-core: 8", ("Moore Threads", 1, None, None, 50)),
    "enflame.com/gcu": ("enflame.com/gcu: 1", ("Enflame", 1, None, None, None)),
    "enflame.com/drs-gcu": ("enflame.com/drs-gcu: 3", ("Enflame", 1, None, None, None)),
    "enflame.com/gcu-memory": ("enflame.com/gcu-memory: 4096", ("Enflame", 1, 4096, None, None)),
    "enflame.com/gcu-core": (
        "enflame.com/gcu-memory: 20480, enflame.com/gcu-core: 40",
        ("Enflame", 1, 20480, None, 40),
    ),
    "kunlunxin.com/xpu": ("kunlunxin.com/xpu: 2", ("Kunlunxin", 2, None, None, None)),
    "kunlunxin.com/vxpu": ("kunlunxin.com/vxpu: 1", ("Kunlunxin", 1, None, None, None)),
    "kunlunxin.com/vxpu-memory": (
        "kunlunxin.com/vxpu: 1, kunlunxin.com/vxpu-memory: 24576",
        ("Kunlunxin", 1, 24576, None, None),
    ),
    "birentech.com/gpu": ("birentech.com/gpu: 1", ("Biren", 1, None, None, None)),
    "vastaitech.com/va": ("vastaitech.com/va: 1", ("Vastai", 1, None, None, None)),
    "iluvatar.ai/BI-V150-vgpu": ("iluvatar.ai/BI-V150-vgpu: 1", ("Iluvatar", 1, None, None, None)),
    "iluvatar.ai/BI-V150.vMem": (
        "iluvatar.ai/BI-V150-vgpu: 1, iluvatar.ai/BI-V150.vMem: 64",
        ("Iluvatar", 1, 16384, None, None),
    ),
    "iluvatar.ai/BI-V150.vCore": (
        "iluvatar.ai/BI-V150-vgpu: 1, iluvatar.ai/BI-V150.vCore: 50",
        ("Iluvatar", 1, None, None, 50),
    ),
}
ASSUMED = ("aliyun.com/gpu-mem=GiB", "nvidia.com/gpu.shared=4", "iluvatar.ai/BI-V150.vMem=256MiB")
ORION = "    env: [{name: ORION_GMEM, value: '4096'}, {name: ORION_RATIO, value: '50'}]\n"


def test_every_word_has_a_case() -> None:
    assert list(CASES) == [word.name for word in WORDS]


@pytest.mark.parametrize("name", CASES)
def test_a_word_becomes(name: str) -> None:
    limits, expected = CASES[name]
    assert name in limits or find_word(name).pattern or name.startswith("tke")
    extra = ORION if "virtaitech" in limits else ""
    check_manifests(pod(limits, extra))
    if expected is None:
        with pytest.raises(InvalidInput, match="as its cluster decides"):
            requested(limits)
        return
    request = requested(limits, extra, assume=ASSUMED)
    percents = [p if p is None else Fraction(p) for p in expected[3:]]
    assert [request.maker, request.count, request.memory_mib, request.memory_percent, request.cores_percent] == [
        *expected[:3], *percents
    ]  # fmt: skip
    assert request.at == "job.yaml:6"


def _memory_unit(word: Word) -> str:
    names = " or ".join(name for name, _ in word.choices)
    return f"{names}: `--assume` says which" if names else f"{word.factor:g} MiB"


def described(word: Word) -> str:
    """Return what one unit of a word is, and what it becomes, for the documents."""
    factor = f"{word.factor:g}"
    return {
        Amount.DEVICES: "devices | so many vGPUs, or whole GPUs",
        Amount.SHARES: "a share of a GPU: `--assume` says of how many | a vGPU with that part of the memory",
        Amount.MEMORY: f"{_memory_unit(word)} | a profile whose memory for programs holds it",
        Amount.MEMORY_PERCENT: "1 % of a GPU's memory | a profile with that part of it",
        Amount.CORES: f"{factor} % of a GPU's cores | a profile with that share under `fixed_share`"
        + ("; 100 and multiples: whole GPUs" if word.counts_whole else ""),
        Amount.PRIORITY: "- | not kept",
        Amount.INSTANCES: "GPU instances | MIG-backed profiles of that size",
        Amount.SLICES: "the slices of one device | a profile of that size",
    }[word.amount]  # fmt: skip


def test_the_page_has_the_table() -> None:
    lines = ["| word | system | maker | one unit | becomes | source |", "|---|---|---|---|---|---|"]
    for word in WORDS:
        lines.append(f"| `{word.name}` | {word.system} | {word.maker} | {described(word)} | {word.source} |")
    wanted = "\n".join(lines) + "\n"
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("VGPUCTL_REGENERATE"):
        PAGE.write_text(_LIST.sub(lambda match: wanted, page), encoding="utf-8")
    else:
        assert _LIST.search(page)[0] == wanted


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ("nvidia.com/gpu: 1, tencent.com/vcuda-core: 30", "words of several systems in one container"),
        ("nvidia.com/gpu.shared: 1, nvidia.com/gpumem: 3000", "words of several systems"),
        ("nvidia.com/gpumem: 3000, nvidia.com/gpumem-percentage: 30", "both say how much memory"),
        ("nvidia.com/gpus: 1", "nvidia.com/gpus is no resource that vgpuctl knows"),
        ("enflame.com/drs-gcu: 1, enflame.com/gcu-memory: 4096", "both say how much memory"),
        ("nvidia.com/gpu: 0.5", "'0.5' is no whole number, and Kubernetes takes no part of such a resource"),
        ("aliyun.com/gpu-mem: 5.5", "'5.5' is no whole number"),
        ("nvidia.com/gpu: -1", "'-1' is not an amount"),
        ("nvidia.com/gpu: yes", "'yes' is not an amount"),
        ("nvidia.com/gpu: true", "'True' is not an amount"),
        ("nvidia.com/gpu: [1]", "is not an amount"),
        ("nvidia.com/gpu: 17", "it asks for 17 devices, and a VM has at most 16"),
        ("nvidia.com/gpu: 1E", "it asks for 1000000000000000000 devices"),
        ("nvidia.com/gpu: 9e99", "is too large"),
        ("tencent.com/vcuda-core: 150", "tencent.com/vcuda-core is 150: from 100 on only multiples of 100 exist"),
        ("nvidia.com/gpu: 1, nvidia.com/gpucores: 130", "it asks for 130 % of a GPU's cores"),
        ("aliyun.com/gpu-mem: 3", "aliyun.com/gpu-mem is GiB or MiB, as its cluster decides"),
        ("nvidia.com/gpu.shared: 1", "a number of shares, from 1 to 999, as its cluster decides"),
        ("nvidia.com/mig-1c.3g.20gb: 1", "is no GPU instance of a profile such as 1g.5gb"),
    ],
)
def test_what_is_not_understood_is_refused(limits: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        requested(limits)
    assert problem in raised.value.message
    assert "job.yaml:" in raised.value.message


def test_what_a_cluster_decides_is_assumed_by_the_user_alone() -> None:
    with pytest.raises(InvalidInput) as raised:
        requested("aliyun.com/gpu-mem: 3")
    assert raised.value.hint == (
        "if it is 3 GiB: vgpuctl import-job - --assume aliyun.com/gpu-mem=GiB; "
        "if it is 3 MiB: vgpuctl import-job - --assume aliyun.com/gpu-mem=MiB"
    )
    with pytest.raises(InvalidInput, match="GiB or MiB") as raised:
        requested("aliyun.com/gpu-mem: 8138")
    assert raised.value.hint.startswith("if it is 8138 MiB: "), "the likely one is first"
    assert requested("aliyun.com/gpu-mem: 3", assume=("aliyun.com/gpu-mem=MiB",)).memory_mib == 3
    for text in (
        "aliyun.com/gpu-mem=GB",
        "nvidia.com/gpu=2",
        "nvidia.com/gpu.shared=0",
        "x",
        "nvidia.com/gpu.shared=1000",
        "cambricon.com/mlu370.share=x",
        "iluvatar.ai/MR-V100.vMem=GiB",
    ):
        with pytest.raises(InvalidInput, match="--assume") as raised:
            parse_assumed((text,))
        assert parse_assumed((str(raised.value.hint).removeprefix("--assume "),)), "the hint is accepted"


@pytest.mark.parametrize("word", ["cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu370.smlu.vmemory"])
def test_a_unit_of_cambricon_is_a_percent_or_256_mib(word: str) -> None:
    """HAMi's older documents say a percent, its newer ones what `min-dsmlu-unit` of the maker's plugin says."""
    limits = f"cambricon.com/vmlu: 1, {word}: '20'"
    with pytest.raises(InvalidInput) as refused:
        requested(limits)
    assert f"if it is 5 GiB: vgpuctl import-job - --assume {word}=256MiB" in refused.value.hint
    assert f"if it is 20 % of a GPU's memory: vgpuctl import-job - --assume {word}=percent" in refused.value.hint
    assert requested(limits, assume=(f"{word}=256MiB",)).memory_mib == 5 * 1024
    assert requested(limits, assume=(f"{word}=percent",)).memory_percent == 20


def test_the_hint_is_for_the_word_of_the_manifest() -> None:
    for name, value in (("iluvatar.ai/MR-V100.vMem", "256MiB"), ("cambricon.com/mlu370.share", "4")):
        with pytest.raises(InvalidInput) as raised:
            requested(f"{name}: 3")
        assert raised.value.hint.partition("; ")[0].endswith(f": vgpuctl import-job - --assume {name}={value}")
        assert requested(f"{name}: 3", assume=(f"{name}={value}",)).maker in ("Iluvatar", "Cambricon")


@pytest.mark.parametrize(
    "limits",
    [
        "nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 100",
        "nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 100",
        "tencent.com/vcuda-core: 200, tencent.com/vcuda-memory: 20",
        "tke.cloud.tencent.com/qgpu-core: 200, tke.cloud.tencent.com/qgpu-memory: 4",
    ],
)
def test_all_cores_or_all_memory_are_whole_gpus(limits: str) -> None:
    request = requested(limits)
    assert (request.count, request.is_whole) == (2, True)


def test_an_amount_in_bytes_is_rounded_up() -> None:
    assert requested("nvidia.com/gpumem: 500Ki").memory_mib == 1


def test_what_asks_for_nothing_is_nothing() -> None:
    assert requested("cpu: 2") is None
    assert requested("nvidia.com/gpu: 0") is None
    assert requested("nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, rdma/hca: 1").memory_mib == 3000


def test_a_gpu_of_a_remote_pool_is_no_device() -> None:
    with pytest.raises(InvalidInput, match=r"nvidia.com/remote-gpu is no resource") as raised:
        requested("nvidia.com/remote-gpu: 1")
    assert "over the network needs no device" in raised.value.hint


@pytest.mark.parametrize(
    ("limits", "is_apart"),
    [
        ("nvidia.com/gpu: 2, nvidia.com/gpumem: 3000", True),
        ("volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 3000", True),
        ("nvidia.com/gpu: 1, nvidia.com/gpumem: 3000", False),
        ("nvidia.com/gpu: 2", False),
        ("nvidia.com/mig-1g.5gb: 2", False),
        ("nvidia.com/gpu.shared: 2", False),
    ],
)
def test_parts_in_words_of_hami_are_of_other_gpus_each(limits: str, is_apart: bool) -> None:
    assert requested(limits, assume=ASSUMED).is_apart is is_apart

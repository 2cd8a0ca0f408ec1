# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of this host a pod can mean: by the maker of its words, labels of nodes and annotations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vgpuctl.config.kubernetes.pod_gpus import NodeLabel, plain_product
from vgpuctl.config.kubernetes.pods import PodTemplate
from vgpuctl.model.gpu import Gpu
from vgpuctl.operations.plans.job_offers import gpus_text, job_error
from vgpuctl.placement.constraints import match_gpus

_BRACKETS = re.compile(r"\[([^\]]+)\]")
_MEMORY_KINDS = frozenset({"hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr7"})
_ALLOWED = (
    ("nvidia.com/use-gputype", True),
    ("nvidia.com/nouse-gputype", False),
    ("nvidia.com/use-gpuuuid", True),
    ("nvidia.com/nouse-gpuuuid", False),
)
"""HAMi's annotations, and whether they allow or exclude GPUs."""
SELECTING_ANNOTATIONS = frozenset(name for name, _ in _ALLOWED)


def select_job_gpus(
    gpus: Sequence[Gpu], template: PodTemplate, products: Sequence[NodeLabel], models: Sequence[str]
) -> tuple[list[Gpu], tuple[str, ...]]:
    """Return the GPUs that a pod's words, labels of nodes and annotations allow, and what that was.

    Raises:
        HostCannot: they allow none.
    """
    notes: list[str] = []
    allowed = list(gpus)
    for model in models:
        allowed = [gpu for gpu in allowed if _plain(model) in _plain(gpu.model)]
        notes.append(f"model {model}")
    for label in products:
        allowed = [gpu for gpu in allowed if any(_is_product(gpu, text) for text in label.values) is label.is_wanted]
        notes.append(f"{label.key} {'' if label.is_wanted else 'not '}{' or '.join(label.values)}")
    for annotation, is_wanted in _ALLOWED:
        names = [name.strip() for name in template.annotations.get(annotation, "").split(",") if name.strip()]
        if names:
            allowed = [gpu for gpu in allowed if any(_is_type(gpu, name) for name in names) is is_wanted]
            notes.append(f"{annotation} {', '.join(names)}")
    if not allowed:
        raise job_error(f"no GPU of this host is {' and '.join(notes)}: {gpus_text(gpus)}")
    return allowed, tuple(notes)


def gpus_with_memory(gpus: Sequence[Gpu], asked_mib: int) -> list[Gpu]:
    """Return the GPUs with so much memory; of what a data sheet says, a GPU shows up to a tenth less.

    Raises:
        HostCannot: none has it.
    """
    having = [gpu for gpu in gpus if gpu.framebuffer_mib is None or asked_mib * 10 <= gpu.framebuffer_mib * 11]
    if not having:
        largest = max(gpu.framebuffer_mib or 0 for gpu in gpus)
        raise job_error(f"a whole GPU with {asked_mib} MiB: the largest of {gpus_text(gpus)} has {largest} MiB")
    return having


def _is_product(gpu: Gpu, product: str) -> bool:
    """Return whether a label of NVIDIA's feature discovery, such as Tesla-T4-SHARED, is a GPU's model.

    A GPU whose driver is not loaded is known by the PCI database alone: `NVIDIA Corporation GH100 [H100 SXM5 80GB]`.
    """
    wanted, model = (_words(text) for text in (plain_product(product), gpu.model))
    bracket = _BRACKETS.search(gpu.model)
    if bracket is not None:
        return _is_named_so(wanted, _words(bracket[1]))
    return bool(wanted) and (model[: len(wanted)] == wanted or wanted[: len(model)] == model)


def _is_named_so(wanted: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether a label means a card of the PCI database: the same chip, and no other memory or form."""
    plain = [word for word in wanted if word not in _MEMORY_KINDS]
    sizes = [{word for word in one if re.fullmatch(r"[0-9]+gb", word)} for one in (plain, words)]
    if not plain or plain[0] != (words[0] if words else None) or (all(sizes) and sizes[0] != sizes[1]):
        return False
    is_pcie = ["pcie" in one for one in (wanted, words)]
    named_form = is_pcie[0] or any(word.startswith("sxm") for word in wanted) or len(plain) < len(wanted)
    return is_pcie[0] == is_pcie[1] if named_form else True


def _is_type(gpu: Gpu, name: str) -> bool:
    return bool(match_gpus((gpu,), name)) or _plain(name) in _plain(gpu.model)


def _words(text: str) -> list[str]:
    """Return the words of a model's name without its maker: A10 is no beginning of A100."""
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word not in ("", "nvidia", "tesla", "grid")]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|tesla", "", text.lower())

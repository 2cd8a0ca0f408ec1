# SPDX-License-Identifier: Apache-2.0
"""What pods say of their GPUs beside the resources of their containers: labels of nodes, and labels of their own.

A pod requires labels of its node by `nodeSelector` or by its required node affinity. Some name the model of the GPUs;
some say that pods share each GPU, or are on GPU instances. Sources: NVIDIA/k8s-device-plugin, "GPU Feature Discovery";
Google Cloud, "GPU sharing strategies in GKE" and "Run multi-instance GPUs"; Alibaba Cloud, "Multi-GPU sharing";
NVIDIA/KAI-Scheduler, docs/gpu-sharing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from vgpuctl.config.kubernetes.values import as_mapping, as_shown, list_at, mapping_at
from vgpuctl.config.yaml_reader import Document, KeyPath
from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

PRODUCT_LABELS = (
    "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator", "accelerator",
)  # fmt: skip
"""Labels of nodes that name their GPUs' model."""
COUNT_LABEL = "aliyun.com/gpu-count"
"""A pod's own label: how many GPUs give it its memory, each the same part."""
_STRATEGY_LABEL = "cloud.google.com/gke-gpu-sharing-strategy"
_SHARES_LABEL = "cloud.google.com/gke-max-shared-clients-per-gpu"
_INSTANCE_LABEL = "cloud.google.com/gke-gpu-partition-size"
_SUFFIX = re.compile(r"-(SHARED|MIG-(?P<slices>[1-7])g\.(?P<gb>[0-9]{1,3})gb[0-9a-z.-]*)$", re.ASCII)
_INSTANCE = re.compile(r"(?P<slices>[1-7])g\.(?P<gb>[0-9]{1,3})gb", re.ASCII)
_IN, _NOT_IN = "In", "NotIn"
_NODE, _REQUIRED, _TERMS = "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
_FRACTION, _FRACTION_MEMORY, _FRACTION_COUNT = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
FRACTION_ANNOTATIONS = frozenset({_FRACTION, _FRACTION_MEMORY, _FRACTION_COUNT})
"""KAI's and Run:ai's: a part of a GPU's memory, or so many MiB of it, and of how many GPUs."""


class NodeLabel(Value):
    """A label that a pod requires of its node, with one of these values; or, if it is not wanted, with none of them."""

    key: str
    values: tuple[str, ...]
    is_wanted: bool = True


class PodGpus(Value):
    """What a pod says of its GPUs. `products`: labels with their models.

    `instance`: compute slices and GB of the GPU instances that count as its devices. `is_shared`: pods share each GPU;
    `shares`: among so many, if that is said. `gpu_count`: the GPUs that its memory is divided over. `fraction`,
    `fraction_mib`: the part of a GPU's memory that the pod has, of each of `fraction_count` GPUs, where its containers
    ask for none. `others`: the labels of nodes that say nothing about a VM.
    """

    products: tuple[NodeLabel, ...] = ()
    instance: tuple[int, int] | None = None
    is_shared: bool = False
    shares: int | None = None
    gpu_count: int | None = None
    fraction: Fraction | None = None
    fraction_mib: int | None = None
    fraction_count: int = 1
    others: tuple[NodeLabel, ...] = ()


NOTHING_SAID = PodGpus()


def read_pod_gpus(
    node_labels: Sequence[NodeLabel], labels: Mapping[str, str], annotations: Mapping[str, str], at: str
) -> PodGpus:
    """Return what labels and annotations say. `at`: where the pod is.

    Raises:
        InvalidInput: a label that says a number or a size has another text.
    """
    wanted = {label.key: label.values[0] for label in node_labels if label.is_wanted and len(label.values) == 1}
    products = tuple(label for label in node_labels if label.key in PRODUCT_LABELS)
    suffixes = [match for label in products for text in label.values if (match := _SUFFIX.search(text)) is not None]
    sizes = [_size(wanted[_INSTANCE_LABEL], at)] if _INSTANCE_LABEL in wanted else []
    sizes += [(int(match["slices"]), int(match["gb"])) for match in suffixes if match["slices"] is not None]
    shares = _number(_SHARES_LABEL, wanted[_SHARES_LABEL], at) if _SHARES_LABEL in wanted else None
    is_shared = shares is not None or _STRATEGY_LABEL in wanted or any(m["slices"] is None for m in suffixes)
    read = {*PRODUCT_LABELS, _STRATEGY_LABEL, _SHARES_LABEL, _INSTANCE_LABEL}
    return PodGpus(
        products=products,
        instance=sizes[0] if sizes else None,
        is_shared=is_shared,
        shares=shares,
        gpu_count=_number(COUNT_LABEL, labels[COUNT_LABEL], at) if COUNT_LABEL in labels else None,
        fraction=_fraction(annotations[_FRACTION], at) if _FRACTION in annotations else None,
        fraction_mib=_mib(annotations[_FRACTION_MEMORY], at) if _FRACTION_MEMORY in annotations else None,
        fraction_count=_number(_FRACTION_COUNT, annotations.get(_FRACTION_COUNT, "1"), at),
        others=tuple(label for label in node_labels if label.key not in read),
    )


def plain_product(product: str) -> str:
    """Return a label's model without what it says of sharing: `Tesla-T4` of `Tesla-T4-SHARED`."""
    return _SUFFIX.sub("", product)


def parse_node_affinity(
    document: Document, spec: Mapping[str, Any], path: KeyPath
) -> tuple[tuple[NodeLabel, ...], tuple[str, ...]]:
    """Return the labels of nodes that a pod's affinity requires, and what else it says. `path`: of `spec`.

    Of several terms one must hold: they are read where all are about the same label.

    Raises:
        InvalidInput: it is no affinity.
    """
    affinity, path = mapping_at(document, spec, "affinity", path), (*path, "affinity")
    lost = [f"{key} of the pod" for key in affinity if key != _NODE]
    node, path = mapping_at(document, affinity, _NODE, path), (*path, _NODE)
    lost += [f"{key} of nodes" for key in node if key != _REQUIRED]
    required, path = mapping_at(document, node, _REQUIRED, path), (*path, _REQUIRED)
    terms = [
        _term(document, as_mapping(term), (*path, _TERMS, number))
        for number, term in enumerate(list_at(document, required, _TERMS, path))
    ]
    if len(terms) == 1:
        labels, others = terms[0]
        return labels, (*lost, *others)
    keys = {label.key for labels, _ in terms for label in labels if label.is_wanted}
    if len(keys) == 1 and all(len(labels) == 1 and not others for labels, others in terms):
        merged = dict.fromkeys(value for labels, _ in terms for value in labels[0].values)
        return (NodeLabel(keys.pop(), tuple(merged)),), tuple(lost)
    several = f"{len(terms)} alternatives of nodes: choose the GPUs by the field gpu"
    return (), (*lost, *([several] if terms else []))


def _term(document: Document, term: Mapping[str, Any], path: KeyPath) -> tuple[tuple[NodeLabel, ...], tuple[str, ...]]:
    labels: list[NodeLabel] = []
    lost = ["matchFields of nodes"] if term.get("matchFields") else []
    for number, item in enumerate(list_at(document, term, "matchExpressions", path)):
        expression = as_mapping(item)
        key, operator = as_shown(expression.get("key")), as_shown(expression.get("operator"))
        values = tuple(map(str, list_at(document, expression, "values", (*path, "matchExpressions", number))))
        if operator in (_IN, _NOT_IN) and values:
            labels.append(NodeLabel(key, values, is_wanted=operator == _IN))
        else:
            lost.append(f"node label {key} {operator} {as_shown(' '.join(values))}".rstrip())
    return tuple(labels), tuple(lost)


def _size(text: str, at: str) -> tuple[int, int]:
    match = _INSTANCE.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{at}: {_INSTANCE_LABEL} {text[:40]!a} is no GPU instance such as 1g.5gb")
    return int(match["slices"]), int(match["gb"])


def _number(label: str, text: str, at: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{0,2}", text, re.ASCII) is None:
        raise InvalidInput(f"{at}: {label} {text[:40]!a} is no whole number from 1 to 999")
    return int(text)


def _fraction(text: str, at: str) -> Fraction:
    if re.fullmatch(r"0?\.[0-9]{1,6}|1(\.0{1,6})?", text, re.ASCII) is None or not Fraction(text):
        raise InvalidInput(f"{at}: {_FRACTION} {text[:40]!a} is no part of a GPU such as 0.5")
    return Fraction(text)


def _mib(text: str, at: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{0,6}", text, re.ASCII) is None:
        raise InvalidInput(f"{at}: {_FRACTION_MEMORY} {text[:40]!a} is no number of MiB")
    return int(text)

# SPDX-License-Identifier: Apache-2.0
"""The pins of a VM by its GPUs and by a list, and huge pages of every size."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, snapshot
from vgpuctl.errors import HostCannot
from vgpuctl.operations.plans.guest_devices import (
    HostTopology,
    HugepagePool,
    Pins,
    check_hugepages,
    hugepages_kib,
    hugepages_text,
    resolve_pins,
)
from vgpuctl.value import replace

TOPOLOGY = HostTopology(
    online_cpus=frozenset({0, 1, 2, 5, 6}),
    node_cpus={0: frozenset({0, 1, 2, 3}), 1: frozenset({5, 6}), 2: frozenset()},
    hugepages=(HugepagePool(0, 2048, 10, 20), HugepagePool(1, 2048, 5, 5)),
)


def on_node(node: int | None, cpu_pin: str) -> Pins:
    gpu = replace(a100(), numa_node=node)
    return resolve_pins(snapshot(gpu), cpu_pin, [assigned(gpu, A4C)], TOPOLOGY)


def test_auto_is_the_online_cpus_of_the_gpus_node_and_a_list_has_its_nodes() -> None:
    assert on_node(0, "auto") == Pins("0-2", "0")
    assert on_node(1, "auto") == Pins("5-6", "1")
    assert on_node(0, "2,5") == Pins("2,5", "0-1")
    assert on_node(None, "none") == Pins()


@pytest.mark.parametrize("node", [None, 2, 3])
def test_a_node_without_cpus_is_refused(node: int | None) -> None:
    with pytest.raises(HostCannot) as caught:
        on_node(node, "auto")
    assert "--cpu-pin=CPUS" in (caught.value.hint or "")


def test_huge_pages_count_on_the_bound_nodes_only() -> None:
    check_hugepages(30, "2MiB", "", TOPOLOGY)
    check_hugepages(4096, "none", "1", TOPOLOGY)
    for memory, nodes in ((32, ""), (12, "1"), (10, "2")):
        with pytest.raises(HostCannot):
            check_hugepages(memory, "2MiB", nodes, TOPOLOGY)


@pytest.mark.parametrize(("size", "kib"), [("2MiB", 2048), ("1GiB", 1 << 20)])
def test_sizes(size: str, kib: int) -> None:
    assert (hugepages_kib(size), hugepages_text(kib)) == (kib, size)
    assert [hugepages_text(other) for other in (None, 0, 64)] == ["none", "default", "64KiB"]

# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs for one VM are near each other: one PCIe switch, else one NUMA node, and larger groups stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.gpu import Backend, Gpu, GpuMode
from vgpuctl.placement.vm_placement import choose_near


def gpu(number: int, node: int | None, switch: int, peers: tuple[int, ...] | None = None) -> Gpu:
    """Return a GPU behind a PCIe switch of a NUMA node."""
    bus = f"pci0000:{node or 0:x}{switch:x}"
    return Gpu(
        address=f"0000:{number:02x}:00.0",
        path="",
        model="H100",
        driver="vfio-pci",
        backend=Backend.PASSTHROUGH,
        mode=GpuMode.PASSTHROUGH,
        numa_node=node,
        pci_path=(bus, f"root-{node}-{switch}", f"up-{node}-{switch}", f"down-{number}"),
        nvlink_peers=None if peers is None else tuple(f"0000:{n:02x}:00.0" for n in peers),
    )


def spread(gpus: Sequence[Gpu]) -> tuple[int, int]:
    """Return over how many NUMA nodes and PCIe switches GPUs are spread."""
    return len({g.numa_node for g in gpus}), len({(g.numa_node, *g.pci_path[:-1]) for g in gpus})


def numbers(gpus: tuple[Gpu, ...] | None) -> list[int] | None:
    return None if gpus is None else [int(g.address[5:7], 16) for g in gpus]


SERVER = [gpu(n, n // 4, n // 2 % 2) for n in range(8)]
"""Two sockets with two switches each, and two GPUs on each switch."""


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        (range(8), 1, [0]),
        (range(8), 2, [0, 1]),
        (range(8), 3, [0, 1, 2]),
        (range(8), 4, [0, 1, 2, 3]),
        (range(8), 5, [0, 1, 2, 3, 4]),
        (range(8), 8, list(range(8))),
        (range(8), 9, None),
        ((1, 2, 3), 2, [2, 3]),  # one switch rather than the lowest addresses
        ((1, 2, 3), 1, [1]),  # the pair stays whole
        ((1, 3, 4, 5), 2, [4, 5]),
        ((1, 3, 4, 6), 2, [1, 3]),  # one node where no switch has two
        ((0, 1, 2, 4, 5, 6, 7), 3, [0, 1, 2]),  # the node with four stays whole
        ((0, 1, 2, 4, 5, 6, 7), 4, [4, 5, 6, 7]),
        ((0, 1, 2, 4, 5), 4, [0, 1, 2, 4]),
    ],
)
def test_the_smallest_group_that_has_enough_gives_them(free, count, expected):
    assert numbers(choose_near([SERVER[n] for n in free], count)) == expected


def test_gpus_that_nvlink_connects_come_together():
    bridged = [gpu(0, 0, 0, (2,)), gpu(1, 0, 0, (3,)), gpu(2, 0, 1, (0,)), gpu(3, 0, 1, (1,))]
    assert numbers(choose_near(bridged, 2)) == [0, 2]
    assert numbers(choose_near(bridged[1:], 2)) == [1, 3]


def test_gpus_that_nvlink_connects_over_others_are_one_group():
    chain = [gpu(0, 0, 0, (1,)), gpu(1, 1, 0, (0, 2)), gpu(2, 0, 1, (1,)), gpu(3, 0, 0, ())]
    assert numbers(choose_near(chain, 3)) == [0, 1, 2]
    assert numbers(choose_near(chain[:1] + chain[2:], 2)) == [0, 2], "the one between them is another VM's"


def test_where_nothing_is_known_the_lowest_addresses_are_taken():
    unknown = [Gpu(f"{n}", "", "H100", None, None, GpuMode.PASSTHROUGH) for n in range(3)]
    assert choose_near(unknown, 2) == tuple(unknown[:2])


hosts = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=9).map(
    lambda places: [gpu(n, *place) for n, place in enumerate(places)]
)


@given(hosts, st.data())
def test_the_choice_is_as_near_as_the_nearest_of_all_choices(gpus, data):
    """As many NUMA nodes and switches as the best choice: one of each where one has enough."""
    count = data.draw(st.integers(1, len(gpus)))
    chosen = choose_near(gpus, count)
    assert len({g.address for g in chosen}) == count
    assert all(g in gpus for g in chosen)
    fewest_nodes, fewest_switches = min(spread(choice) for choice in combinations(gpus, count))
    nodes, switches = spread(chosen)
    assert nodes == fewest_nodes
    if fewest_switches == 1 or nodes == 1:
        assert switches == fewest_switches

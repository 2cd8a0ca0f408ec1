# SPDX-License-Identifier: Apache-2.0
"""Which pools' users reach no desktop, as far as hosts say how their networks forward."""

from __future__ import annotations

import pytest

from vgpuctl.controller.planning.nat_check import nat_problem
from vgpuctl.controller.planning.pool_spec import parse_pool

POOL = "kind: floating\nimage: office\nnames: office-{:03}\nmaximum: 2\nprofile: 2B\n"
NAT = {"gpu01": {"default": "nat", "lan": "bridge"}, "gpu02": {"default": "nat", "lan": "nat"}}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "the network default is behind NAT on 2 hosts, such as gpu01"),
        ("open: rdp\n", "the network default is behind NAT"),
        ("open: 'moonlight://{address}'\n", "the network default is behind NAT"),
        ("vm: {networks: lan}\n", "the network lan is behind NAT on host gpu02"),
        ("vm: {networks: [default, lan]}\n", "the network default, lan is behind NAT on host gpu02"),
        ("connect: 22\n", None),
        ("open: 'https://gw.example.org/{name}'\n", None),
        ("vm: {networks: bridge=br0}\n", None),
        ("vm: {networks: [default, bridge=br0]}\n", None),
        ("vm: {networks: other}\n", None),
        ("vm: {networks: none}\n", None),
    ],
)
def test_a_pool_behind_nat(more: str, expected: str | None) -> None:
    problem = nat_problem(parse_pool(POOL + more, "p"), NAT)
    assert (problem is None) if expected is None else (problem is not None and expected in problem)


def test_fixed_pools_and_hosts_that_do_not_say_it() -> None:
    fixed = POOL.replace("floating", "fixed")
    assert nat_problem(parse_pool(fixed, "p"), NAT) is None
    assert nat_problem(parse_pool(POOL, "p"), {"gpu01": {}}) is None

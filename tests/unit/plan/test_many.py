# SPDX-License-Identifier: Apache-2.0
"""Several equal VMs are placed as one after the other would be."""

from __future__ import annotations

import pytest

from tests.worlds import create, open_host, wish
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.plan.many import choose_many

TWO_CARDS = "version: 1\ngpus:\n  - {model: A100, count: 2}\n"


def vms(world, count):
    return [(f"vm-{n}", world.new_uuid()) for n in range(count)]


def look(world):
    return observe(world, Want(types=True))


def test_they_go_where_one_after_the_other_would_go(tmp_path):
    together = open_host(tmp_path / "together", text=TWO_CARDS).world
    chosen = choose_many(look(together), wish("A100-4C"), vms(together, 12))
    single = open_host(tmp_path / "single", text=TWO_CARDS).world
    made = [create(single, wish("A100-4C")).data["vgpus"] for _ in range(12)]
    assert [[v.function for v in vgpus] for vgpus in chosen] == [[v["function"] for v in vgpus] for vgpus in made]


def test_no_carrier_is_given_twice(tmp_path):
    world = open_host(tmp_path, text=TWO_CARDS).world
    chosen = choose_many(look(world), wish("A100-4C", count=2), vms(world, 10))
    carriers = [v.carrier for vgpus in chosen for v in vgpus]
    assert len(carriers) == len(set(carriers)) == 20


def test_too_many_says_how_many_fit(tmp_path):
    world = open_host(tmp_path, text=TWO_CARDS).world
    for _ in range(3):
        create(world, wish("A100-4C"))
    with pytest.raises(NoCapacity, match="17 fit now; none was made") as raised:
        choose_many(look(world), wish("A100-4C"), vms(world, 18))
    assert (raised.value.facts["fits"], raised.value.facts["wanted"]) == (17, 18)
    assert len(choose_many(look(world), wish("A100-4C"), vms(world, 17))) == 17


def test_when_none_fits_it_says_what_stands_in_the_way(tmp_path):
    world = open_host(tmp_path).world
    for _ in range(10):
        create(world, wish("A100-4C"))
    with pytest.raises(NoCapacity, match="0 fit now") as raised:
        choose_many(look(world), wish("A100-4C"), vms(world, 2))
    assert "10 of 10 in use" in str(raised.value.facts["details"])


def test_whole_gpus_are_given_one_to_each(tmp_path):
    text = "version: 1\ngpus:\n  - {model: A100, count: 2, backend: passthrough}\n"
    world = open_host(tmp_path, text=text).world
    snapshot = observe(world, Want())
    whole = wish(mode="passthrough", gpu="A100")
    chosen = choose_many(snapshot, whole, vms(world, 2))
    assert len({v.gpu for vgpus in chosen for v in vgpus}) == 2
    with pytest.raises(NoCapacity, match="2 fit now"):
        choose_many(snapshot, whole, vms(world, 3))
    create(world, wish(mode="passthrough", gpu=snapshot.gpus[0].address))
    with pytest.raises(InUse):
        choose_many(observe(world, Want()), wish(mode="passthrough", gpu=snapshot.gpus[0].address), vms(world, 1))

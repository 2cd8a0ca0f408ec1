# SPDX-License-Identifier: Apache-2.0
"""Several equal VMs are placed as if created one after the other."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.ensure_vms import choose_batch_vgpus

TWO_CARDS = "version: 1\ngpus:\n  - {model: A100, count: 2}\n"


def vms(ports, count):
    return [(f"vm-{n}", ports.new_uuid()) for n in range(count)]


def take_snapshot(ports):
    return observe(ports, ReadScope(types=True))


def test_they_go_where_one_after_the_other_would_go(tmp_path):
    together = open_sim_host(tmp_path / "together", text=TWO_CARDS).ports
    chosen = choose_batch_vgpus(take_snapshot(together), request("A100-4C"), vms(together, 12))
    single = open_sim_host(tmp_path / "single", text=TWO_CARDS).ports
    made = [create(single, request("A100-4C")).data.vgpus for _ in range(12)]
    assert [[v.function for v in vgpus] for vgpus in chosen] == [[v.function for v in vgpus] for vgpus in made]


def test_no_carrier_is_given_twice(tmp_path):
    ports = open_sim_host(tmp_path, text=TWO_CARDS).ports
    chosen = choose_batch_vgpus(take_snapshot(ports), request("A100-4C", count=2), vms(ports, 10))
    carriers = [v.carrier for vgpus in chosen for v in vgpus]
    assert len(carriers) == len(set(carriers)) == 20


def test_too_many_says_how_many_fit(tmp_path):
    ports = open_sim_host(tmp_path, text=TWO_CARDS).ports
    for _ in range(3):
        create(ports, request("A100-4C"))
    with pytest.raises(NoCapacity, match="17 fit now; none was created") as raised:
        choose_batch_vgpus(take_snapshot(ports), request("A100-4C"), vms(ports, 18))
    assert (raised.value.facts["fits"], raised.value.facts["wanted"]) == (17, 18)
    assert len(choose_batch_vgpus(take_snapshot(ports), request("A100-4C"), vms(ports, 17))) == 17


def test_when_none_fits_the_error_names_the_blocker(tmp_path):
    ports = open_sim_host(tmp_path).ports
    for _ in range(10):
        create(ports, request("A100-4C"))
    with pytest.raises(NoCapacity, match="0 fit now") as raised:
        choose_batch_vgpus(take_snapshot(ports), request("A100-4C"), vms(ports, 2))
    assert "10 of 10 in use" in str(raised.value.facts["details"])


def test_whole_gpus_are_given_one_to_each(tmp_path):
    text = "version: 1\ngpus:\n  - {model: A100, count: 2, backend: passthrough}\n"
    ports = open_sim_host(tmp_path, text=text).ports
    snapshot = observe(ports, ReadScope())
    whole = request(mode="passthrough", gpu="A100")
    chosen = choose_batch_vgpus(snapshot, whole, vms(ports, 2))
    assert len({v.gpu for vgpus in chosen for v in vgpus}) == 2
    with pytest.raises(NoCapacity, match="2 fit now"):
        choose_batch_vgpus(snapshot, whole, vms(ports, 3))
    create(ports, request(mode="passthrough", gpu=snapshot.gpus[0].address))
    with pytest.raises(InUse):
        choose_batch_vgpus(
            observe(ports, ReadScope()), request(mode="passthrough", gpu=snapshot.gpus[0].address), vms(ports, 1)
        )

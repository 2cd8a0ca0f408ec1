# SPDX-License-Identifier: Apache-2.0
"""What happens under the lock: observe again, choose, claim; and how a VM's claims are taken over."""

from __future__ import annotations

import pytest

from tests.faults import CHANGING, Watch, counted, failing
from tests.hosts import create, living_operation, open_sim_host, request, take_over
from tests.reserving_vms import small
from tests.unit.operations.test_ensure_vms import ensure, names
from tests.values import A4C, a100, assigned, claim, snapshot, vm
from vgpuctl.errors import Busy, Failed, NoCapacity
from vgpuctl.model.vm import ProcessId
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.claim import recheck_scope
from vgpuctl.value import replace

DEAD = ProcessId(1, 1)


def test_under_the_lock_only_the_chosen_gpus_and_types_are_read_again():
    one, two = a100("0000:05:00.0"), a100("0000:86:00.0")
    want = recheck_scope(snapshot(one, two), (assigned(two, A4C),))
    assert (want.gpu_addresses, want.type_ids, want.models) == (frozenset({two.address}), frozenset({"468"}), False)
    assert want.cached_gpus == (two,)


def test_a_gpu_that_filled_up_before_the_lock_gives_no_capacity(tmp_path):
    host = open_sim_host(tmp_path)
    other = open_sim_host(tmp_path)

    class Filling:
        filled = False

        def lock(self, wait_seconds):
            if not Filling.filled:
                Filling.filled = True
                create(other.ports, request("A100-8C", 5))
            return host.ports.claims.lock(wait_seconds)

        def __getattr__(self, name):
            return getattr(host.ports.claims, name)

    with pytest.raises(NoCapacity):
        create(replace(host.ports, claims=Filling()), request("A100-8C"))
    assert len(host.ports.claims.all()) == 5


def before_the_lock(ports, act):
    """Return ports where another process acts once, between the first snapshot and the lock."""
    done = []

    def before(number, call, args):
        if call == "claims.lock" and not done:
            done.append(number)
            act()

    return Watch(before=before).watch(ports)


def test_of_two_who_want_a_whole_gpu_of_a_model_at_once_each_gets_one(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\ngpus:\n  - {model: RTX 4090}\n  - {model: RTX 4090}\n")
    other = open_sim_host(tmp_path, host.scenario).ports
    whole = request(mode="passthrough", gpu="10de:2684")
    ports = before_the_lock(host.ports, lambda: create(other, replace(whole, name="other")))
    create(ports, whole)
    assert len({v.gpu for v in observe(host.ports, ReadScope()).vgpus}) == 2


@pytest.mark.parametrize("many", [False, True])
def test_a_gpu_that_host_yaml_closed_between_the_look_and_the_lock_is_not_used(tmp_path, many):
    host, profile = small(tmp_path, "vendor-vf", 2)
    first, second = (g.address for g in observe(host.ports, ReadScope()).gpus)
    closed = f'version: 1\ngpus:\n  "{first}": {{cordoned: true}}\n'
    ports = before_the_lock(host.ports, lambda: host.sim.host_file.write_text(closed))
    if many:
        ensure(ports, request(profile), names(2))
    else:
        create(ports, request(profile))
    assert {v.gpu for v in observe(host.ports, ReadScope()).vgpus} == {second}


def test_claims_of_a_dead_process_are_taken_over_and_lost_ones_rewritten(tmp_path):
    ports = open_sim_host(tmp_path).ports
    one, two = (claim(assigned(a100(), A4C, n), 1, ports.operations.current().id) for n in range(2))
    ports.claims.add(replace(one, operation=None))
    assert [step.claim for step in take_over(ports, (one, two), 0)] == [two]
    assert ports.claims.all() == (one, two)


def test_a_lost_claim_stays_lost_on_request(tmp_path):
    ports = open_sim_host(tmp_path).ports
    assert take_over(ports, (claim(assigned(a100(), A4C), 1),), 0, include_missing=False) == ()
    assert ports.claims.all() == ()


def test_claims_of_a_live_process_are_refused_with_its_pid_and_command(tmp_path):
    host = open_sim_host(tmp_path)
    mine = claim(assigned(a100(), A4C), 1, living_operation(host.ports).id)
    host.ports.claims.add(mine)
    with pytest.raises(Busy) as raised:
        take_over(host.ports, (replace(mine, operation=host.ports.operations.current().id),), 0)
    assert raised.value.facts["pid"] == mine.process.pid
    assert mine.command in str(raised.value)


def test_a_claim_of_another_vm_is_refused_with_its_name(tmp_path):
    ports = open_sim_host(tmp_path).ports
    ports.claims.add(claim(assigned(a100(), A4C), 2, None))
    with pytest.raises(Busy) as raised:
        take_over(ports, (claim(assigned(a100(), A4C), 1),), 0)
    assert "vdi-002" in str(raised.value)


def test_when_one_claim_cannot_be_taken_over_all_are_as_before(tmp_path):
    gpu = a100()
    both = tuple(claim(assigned(gpu, A4C, n), 1) for n in range(2))

    def prepared(name):
        ports = open_sim_host(tmp_path / name).ports
        for one in both:
            ports.claims.add(replace(one, operation="dead"))
        return ports

    calls = counted(prepared("dry"), lambda w: take_over(w, both, 0))
    numbers = [n for n, call in enumerate(calls, 1) if call in CHANGING]
    assert len(numbers) == 2
    for number in numbers:
        ports = prepared(str(number))
        before = ports.claims.all()
        with pytest.raises(Failed) as raised:
            take_over(failing(ports, number), both, 0)
        assert raised.value.facts["errno"]
        assert ports.claims.all() == before


def test_a_vm_without_vgpus_needs_no_lock():
    assert recheck_scope(snapshot(a100(), vms=[vm(1)]), ()).gpu_addresses == frozenset()

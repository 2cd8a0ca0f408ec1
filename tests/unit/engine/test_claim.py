# SPDX-License-Identifier: Apache-2.0
"""The act under the lock: look again, choose, claim; and taking a VM's claims over."""

from __future__ import annotations

import pytest

from tests.faults import CHANGING, Watch, counted, failing
from tests.lent import small
from tests.unit.engine.test_many import ensure, names
from tests.values import A4C, a100, claim, promised, snapshot, vm
from tests.worlds import create, open_host, wish
from vgpuctl.engine.claim import narrow, reclaim
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import Busy, Failed, NoCapacity
from vgpuctl.model.vm import ProcessId
from vgpuctl.value import replace

DEAD = ProcessId(1, 1)


def test_under_the_lock_only_the_chosen_gpus_and_types_are_read_again():
    one, two = a100("0000:05:00.0"), a100("0000:86:00.0")
    want = narrow(snapshot(one, two), (promised(two, A4C),))
    assert (want.only, want.type_ids, want.models) == (frozenset({two.address}), frozenset({"468"}), False)
    assert want.known == (two,)


def test_a_gpu_that_filled_up_between_the_look_and_the_lock_gives_no_capacity(tmp_path):
    host = open_host(tmp_path)
    other = open_host(tmp_path)

    class Filling:
        filled = False

        def lock(self, wait_seconds):
            if not Filling.filled:
                Filling.filled = True
                create(other.world, wish("A100-8C", 5))
            return host.world.claims.lock(wait_seconds)

        def __getattr__(self, name):
            return getattr(host.world.claims, name)

    with pytest.raises(NoCapacity):
        create(replace(host.world, claims=Filling()), wish("A100-8C"))
    assert len(host.world.claims.all()) == 5


def before_the_lock(world, act):
    """Return the world with something done by another between the first look and the lock, once."""
    done = []

    def before(number, call, args):
        if call == "claims.lock" and not done:
            done.append(number)
            act()

    return Watch(before=before).watch(world)


def test_of_two_who_want_a_whole_gpu_of_a_model_at_once_each_gets_one(tmp_path):
    host = open_host(tmp_path, text="version: 1\ngpus:\n  - {model: RTX 4090}\n  - {model: RTX 4090}\n")
    other = open_host(tmp_path, host.scenario).world
    whole = wish(mode="passthrough", gpu="10de:2684")
    world = before_the_lock(host.world, lambda: create(other, replace(whole, name="other")))
    create(world, whole)
    assert len({v.gpu for v in observe(host.world, Want()).vgpus}) == 2


@pytest.mark.parametrize("many", [False, True])
def test_a_gpu_that_host_yaml_closed_between_the_look_and_the_lock_is_not_used(tmp_path, many):
    host, profile = small(tmp_path, "vendor-vf", 2)
    first, second = (g.address for g in observe(host.world, Want()).gpus)
    closed = f'version: 1\ngpus:\n  "{first}": {{cordoned: true}}\n'
    world = before_the_lock(host.world, lambda: host.sim.host_file.write_text(closed))
    if many:
        ensure(world, wish(profile), names(2))
    else:
        create(world, wish(profile))
    assert {v.gpu for v in observe(host.world, Want()).vgpus} == {second}


def test_claims_of_a_dead_process_are_taken_over_and_lost_ones_written_anew(tmp_path):
    world = open_host(tmp_path).world
    one, two = (claim(promised(a100(), A4C, n), 1, world.processes.this()) for n in range(2))
    world.claims.add(replace(one, process=DEAD))
    assert [step.claim for step in reclaim(world, (one, two), 0)] == [two]
    assert world.claims.all() == (one, two)


def test_a_lost_claim_stays_lost_when_that_is_wanted(tmp_path):
    world = open_host(tmp_path).world
    assert reclaim(world, (claim(promised(a100(), A4C), 1),), 0, lost=False) == ()
    assert world.claims.all() == ()


def test_claims_of_a_live_process_are_refused_with_its_pid_and_command(tmp_path):
    host = open_host(tmp_path)
    mine = claim(promised(a100(), A4C), 1, host.world.processes.this())
    host.world.claims.add(mine)
    with pytest.raises(Busy) as raised:
        reclaim(host.world, (replace(mine, process=DEAD),), 0)
    assert raised.value.facts["pid"] == mine.process.pid
    assert mine.command in str(raised.value)


def test_a_claim_of_another_vm_is_refused_with_its_name(tmp_path):
    world = open_host(tmp_path).world
    world.claims.add(claim(promised(a100(), A4C), 2, DEAD))
    with pytest.raises(Busy) as raised:
        reclaim(world, (claim(promised(a100(), A4C), 1),), 0)
    assert "vdi-002" in str(raised.value)


def test_when_one_claim_cannot_be_taken_over_all_are_as_before(tmp_path):
    gpu = a100()
    both = tuple(claim(promised(gpu, A4C, n), 1) for n in range(2))

    def prepared(name):
        world = open_host(tmp_path / name).world
        for one in both:
            world.claims.add(replace(one, process=DEAD))
        return world

    calls = counted(prepared("dry"), lambda w: reclaim(w, both, 0))
    numbers = [n for n, call in enumerate(calls, 1) if call in CHANGING]
    assert len(numbers) == 2
    for number in numbers:
        world = prepared(str(number))
        before = world.claims.all()
        with pytest.raises(Failed) as raised:
            reclaim(failing(world, number), both, 0)
        assert raised.value.facts["errno"]
        assert world.claims.all() == before


def test_a_vm_without_vgpus_needs_no_lock():
    assert narrow(snapshot(a100(), vms=[vm(1)]), ()).only == frozenset()

# SPDX-License-Identifier: Apache-2.0
"""All VMs off one GPU: where they go, and who has to stay and why; on simulated hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, delete, open_sim_host, request, stop
from tests.meanwhile import unchanged, with_calls
from tests.reserving_vms import taken, vm_of
from tests.unit.operations.test_moves import TWO, gpus_of, scattered
from vgpuctl.errors import InvalidInput, NoCapacity
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.port_values import DomainLeftovers
from vgpuctl.model.results.moves import MovesResult
from vgpuctl.model.vm import VmState
from vgpuctl.operations.moves import empty_gpu
from vgpuctl.ports.host import Host
from vgpuctl.value import replace


@pytest.fixture
def host(tmp_path):
    return scattered(tmp_path, "vendor-vf", running=False)


def leave(ports: Host, gpu: str, *, dry_run: bool = False) -> Outcome[MovesResult]:
    """move-vms --from."""
    return empty_gpu(ports, context(dry_run=dry_run, confirm=lambda question, steps: None), gpu)


def refused(ports: Host, gpu: str, *, dry_run: bool = False) -> NoCapacity:
    """The error of move-vms --from for what stays."""
    with pytest.raises(NoCapacity, match=f"on {gpu} cannot be moved") as caught:
        leave(ports, gpu, dry_run=dry_run)
    return caught.value


def restrictions(host: SimulatedHost, name: str) -> object:
    return vm_of(host, name).record.request_fields.get("gpu")


@pytest.mark.parametrize("running", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", TWO)
def test_the_vms_of_a_gpu_go_to_another_and_are_as_they_were(tmp_path: Path, kind: str, running: bool) -> None:
    host = scattered(tmp_path, kind, running=running)
    (source,), (target,) = gpus_of(host, "first"), gpus_of(host, "second")
    with unchanged(host):
        planned = leave(host.ports, source, dry_run=True)
    done = leave(host.ports, source)
    assert planned.steps == done.steps
    assert gpus_of(host, "first") == gpus_of(host, "second") == [target]
    assert vm_of(host, "first").state is (VmState.RUNNING if running else VmState.STOPPED)
    assert (done.data.source_gpu, done.data.stays, len(taken(host))) == (source, (), 2)
    assert not leave(host.ports, source).changed


def test_a_restriction_to_the_gpu_itself_does_not_hold_and_becomes_one_to_the_new_gpu(host: SimulatedHost) -> None:
    with pytest.raises(InvalidInput, match="'A100' matches 2 GPUs here"):
        leave(host.ports, "A100")
    (source,), (target,) = gpus_of(host, "first"), gpus_of(host, "second")
    delete(host.ports, "first")
    create(host.ports, request("A100-20C", name="bound", gpu=source))
    leave(host.ports, source)
    assert (gpus_of(host, "bound"), restrictions(host, "bound")) == ([target], target)


def test_a_restriction_to_a_model_holds_and_stays_as_it_was(host: SimulatedHost) -> None:
    (source,), (target,) = gpus_of(host, "first"), gpus_of(host, "second")
    delete(host.ports, "first")
    create(host.ports, request("A100-20C", name="any", gpu=("A100",), placement="depth"))
    if gpus_of(host, "any") != [source]:
        source, target = target, source
    leave(host.ports, source)
    assert (gpus_of(host, "any"), restrictions(host, "any")) == ([target], "A100")


def test_vms_that_run_get_the_room_first(host: SimulatedHost) -> None:
    (source,) = gpus_of(host, "first")
    create(host.ports, request("A100-20C", name="running", gpu=source))
    error = refused(host.ports, source)
    assert isinstance(error.result, Outcome)
    assert [move.vm for move in error.result.data.moves] == ["running"]
    assert (error.changed, error.facts["stays"]) == (True, ["first"])
    assert str(error.facts["details"]).startswith("['first (A100-20C): no room for A100-20C")
    assert str(error.hint).startswith("vgpuctl stop-vm first turns them off")


def test_saved_memory_and_places_only_while_running_keep_a_vm_there(host: SimulatedHost) -> None:
    (source,) = gpus_of(host, "first")

    def leftovers(uuid: str) -> DomainLeftovers:
        return replace(host.ports.hypervisor.leftovers(uuid), managed_save=True)

    saved = refused(with_calls(host.ports, "hypervisor", leftovers=leftovers), source, dry_run=True)
    assert saved.facts["details"] == ["first (A100-20C): its memory is saved, or its GPU is blocked"]
    delete(host.ports, "first")
    create(host.ports, request("A100-20C", name="lent", gpu=source, reserve="running"))
    (line,) = refused(host.ports, source, dry_run=True).facts["details"]
    assert line == (
        "lent (A100-20C): it reserves its places only while it runs: vgpuctl stop-vm and start-vm place it elsewhere"
    )
    stop(host.ports, "lent")
    assert leave(host.ports, source).data.stays == ()


def test_a_host_with_one_gpu_keeps_everything(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    (gpu,) = gpus_of(host, "vm")
    with unchanged(host):
        error = refused(host.ports, gpu)
    assert (error.changed, error.result, error.facts["stays"]) == (False, None, ["vm"])

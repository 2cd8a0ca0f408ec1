# SPDX-License-Identifier: Apache-2.0
"""Another command is faster, between a command's look and its lock: only what a command did itself is reported."""

from __future__ import annotations

from functools import partial

import pytest

from tests.faults import Watch
from tests.halted import elsewhere, reopen
from tests.hosts import context, create, delete, open_sim_host, request, run_reconcile
from tests.layouts import FLEX, do, drained
from tests.schedulers import TWO_MS
from vgpuctl.operations.apply import apply_host
from vgpuctl.operations.desired_state import read_desired_state
from vgpuctl.operations.diagnose import fix_problems
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler


def overtaken(host, work):
    """Return ports before whose first lock another process does some work."""
    pending = [work]

    def before(_number, call, _args):
        if call == "claims.lock" and pending:
            act = pending.pop()
            elsewhere(lambda: act(reopen(host).ports))

    return Watch(before=before).watch(host.ports)


@pytest.fixture
def leaked(tmp_path):
    """Return a host with what two VMs left that were undefined by hand."""
    host = open_sim_host(tmp_path, "mixed")
    for name in ("one", "two"):
        uuid = create(host.ports, request("A100-4C", name=name), start=False).data.uuid
        host.ports.hypervisor.undefine(uuid)
    return host.again()


def test_reconcile_reports_nothing_that_another_reconcile_did(leaked):
    done = run_reconcile(overtaken(leaked, run_reconcile))
    assert (done.changed, done.steps, done.data.findings) == (False, (), ())
    assert leaked.ports.claims.all() == ()


def test_reconcile_reports_what_it_did_of_several(leaked):
    claim = leaked.ports.claims.all()[0]

    def remove_one(ports):
        ports.sysfs.write(f"/sys/bus/pci/devices/{claim.function}/nvidia/current_vgpu_type", "0\n")
        ports.claims.remove(claim.carrier, claim.vm_uuid)

    done = run_reconcile(overtaken(leaked, remove_one))
    (finding,) = done.data.findings
    assert claim.function not in finding.what
    assert done.steps
    assert not [step for step in done.steps if claim.function in step]


def test_doctor_reports_what_it_fixed_and_not_what_it_offered(leaked):
    def confirm(_question, steps):
        assert steps
        elsewhere(lambda: run_reconcile(reopen(leaked).ports))

    done = fix_problems(leaked.ports, context(confirm=confirm), ())
    assert (done.changed, done.steps) == (False, ())


def test_a_setup_reports_only_the_vms_that_it_shut_down(tmp_path):
    host = drained(tmp_path)
    planned = do(host.ports, FLEX, "sriov", 6, drain=True, dry_run=True).steps
    assert {"shut down VM one", "shut down VM two"} <= {*planned}
    ports = overtaken(host, partial(delete, name="one"))
    done = do(ports, FLEX, "sriov", 6, drain=True).steps
    assert done == tuple(step for step in planned if "VM one" not in step)


def test_a_scheduler_reports_only_the_vms_that_it_shut_down(tmp_path):
    host = open_sim_host(tmp_path)
    for name in ("one", "two"):
        create(host.ports, request("A100-4C", name=name))
    wanted = SchedulerRequest("0000:3b:00.0", TWO_MS, drain=True)
    ports = overtaken(host, partial(delete, name="one"))
    done = set_scheduler(ports, context(), wanted).steps
    assert "shut down VM two" in done
    assert not [step for step in done if "VM one" in step]


def test_apply_reports_only_the_vms_that_it_shut_down(tmp_path):
    host = drained(tmp_path)
    desired = read_desired_state(host.ports, None, (f"gpus[{FLEX}].mode=sriov", f"gpus[{FLEX}].vfs=6"))
    ports = overtaken(host, partial(delete, name="one"))
    done = apply_host(ports, context(), desired, drain=True).steps
    assert "shut down VM two" in done
    assert not [step for step in done if "VM one" in step]

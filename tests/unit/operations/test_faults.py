# SPDX-License-Identifier: Apache-2.0
"""Every call of every port fails once, fails for good, or is the last one of a killed process.

After a failure everything is undone, or the error says what is left. What a killed process leaves is finished or
undone by `reconcile`, without a second implementation. No method of a port can be left out of these tests.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, NEVER_RAISE, READING, Trial, acts_on_backends, failing, fault_points, outcome
from tests.hosts import SimulatedHost, create, delete, open_sim_host, picture, request, run_reconcile, start
from tests.meanwhile import unchanged
from vgpuctl.errors import VerifyFailed
from vgpuctl.ports.host import Host

VENDOR_VF = "version: 1\ngpus:\n  - {model: A100, vfs: {total: 2, enabled: 2}}\n"
MDEV_PF = "version: 1\ngpus:\n  - {model: T4, profiles: [T4-2Q, T4-4Q]}\n"
MDEV_VF = (
    'version: 1\nkernel: "5.14.0.el9"\n'
    + "gpus:\n  - {model: A16, profiles: [A16-2Q, A16-4Q], vfs: {total: 2, enabled: 2}}\n"
)
HOSTS = {"vendor-vf": (VENDOR_VF, "A100-4C"), "mdev-pf": (MDEV_PF, "T4-2Q"), "mdev-vf": (MDEV_VF, "A16-2Q")}
PARAMS = (("frame_rate_limiter", "0"),)


def prepared(directory: Path, kind: str, act: str) -> SimulatedHost:
    """Return a host that the act needs: empty, with a running VM, or with one after a reboot."""
    text, profile = HOSTS[kind]
    host = open_sim_host(directory, text=text)
    if act == "create":
        return host
    create(host.ports, request(profile, name="vm", vgpu_params=PARAMS))
    if act == "start":
        host.sim.reboot()
    return host.again()


def do(ports: Host, kind: str, act: str) -> object:
    """Run the act."""
    if act == "create":
        return create(ports, request(HOSTS[kind][1], name="vm", vgpu_params=PARAMS))
    return delete(ports, "vm") if act == "delete" else start(ports, "vm")


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(["create", "delete", "start"], HOSTS))
def test_whatever_call_fails_everything_is_undone_or_the_error_says_what_is_left(tmp_path, kind, act):
    trial = Trial(tmp_path, partial(prepared, kind=kind, act=act), partial(do, kind=kind, act=act))
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    refused = 0
    for number, done, for_good in fault_points(calls, every_read=kind == "vendor-vf"):
        where = f"{act} on {kind}, call {number} {calls[number - 1]}, done={done}, for good={for_good}"
        host = trial.host(f"{number}{done}{for_good}")
        before = picture(host)
        error = outcome(partial(trial.act, failing(host.ports, number, done=done, for_good=for_good)))
        host.sim.close()
        if error is None:
            assert picture(host) != before, where
            continue
        refused += 1
        assert str(error), where
        if picture(host) == before:
            continue
        partly = error.code == "partly-applied"
        lost_claim = not partly and for_good and calls[number - 1].startswith("claims.")
        assert lost_claim or (partly and error.left), where
        later = host.again()
        run_reconcile(later.ports)
        if act != "start":
            assert not run_reconcile(later.ports, dry_run=True).data.findings, where
        if act == "create" and number > calls.index("hypervisor.set_record") + 1 and picture(later).domains:
            # It could not be stopped any more: it stays whole, and is deleted like any other.
            delete(later.ports, "vm")
        if act == "delete" and picture(later).domains:
            delete(later.ports, "vm")  # it was stopped and is whole: only then does its record say "removing"
        if act == "create" or lost_claim:
            assert picture(later) == before, where
        elif act == "delete":
            assert not picture(later).domains, where
            assert not picture(later).claims, where
    assert refused >= 3


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(["create", "delete", "start"], HOSTS))
def test_whatever_call_a_process_dies_in_reconcile_finishes_or_undoes_it(tmp_path, kind, act, spawn):
    trial = Trial(tmp_path, partial(prepared, kind=kind, act=act), partial(do, kind=kind, act=act))
    calls, before = trial.calls(), picture(trial.made)
    left_behind = 0
    for number, done, where, later in trial.killed(calls, spawn):
        after = picture(later)
        result = run_reconcile(later.ports, dry_run=True).data.findings
        run_reconcile(later.ports)
        now = picture(later)
        assert not run_reconcile(later.ports, dry_run=True).data.findings, where
        left_behind += bool(result)
        if act == "create":
            recorded = calls.index("hypervisor.set_record") + 1
            ready = number > recorded or (number == recorded and done)
            assert bool(result) == (after != before and not ready), where
            assert now == (after if ready else before), where
        elif act == "delete":
            gone = not (now.domains or now.types or now.mdevs or now.files or now.claims)
            assert gone or replace(now, running={}) == replace(before, running={}), where
            claim_lost = {f.kind for f in result} == {"claim-lost"}
            assert gone or not result or claim_lost, where
        else:
            assert now.domains == before.domains, where
            start(later.ports, "vm")
            assert picture(later).running, where
    assert left_behind >= (1 if act != "start" else 0)


LOST = """version: 1
gpus:
  - {model: A100, vfs: {total: 2, enabled: 2}}
faults:
  - {on: %s, match: "%s", kind: lost, nth: %d}
"""


@pytest.mark.parametrize(
    ("call", "match"),
    [
        ("sysfs-write", "*/current_vgpu_type"),
        ("sysfs-write", "*/vgpu_params"),
        ("define", "*"),
        ("set-record", "*"),
        ("start", "*"),
        ("make-pool", "*"),
        ("make-volume", "*"),
    ],
)
def test_a_write_that_is_lost_is_noticed_by_create_vm_and_undone(tmp_path, call, match):
    host = open_sim_host(tmp_path, text=LOST % (call, match, 1))
    params = PARAMS if "params" in match else ()
    with unchanged(host), pytest.raises(VerifyFailed) as raised:
        create(host.ports, request("A100-4C", name="vm", vgpu_params=params))
    assert raised.value.undone


@pytest.mark.parametrize(
    ("call", "match", "nth"),
    [
        ("set-record", "*", 2),
        ("destroy", "*", 1),
        ("sysfs-write", "*/current_vgpu_type", 2),
        ("remove-volume", "*", 1),
        ("undefine", "*", 1),
    ],
)
def test_a_write_that_is_lost_is_noticed_by_delete_vm_and_reconcile_finishes(tmp_path, call, match, nth):
    host = open_sim_host(tmp_path, text=LOST % (call, match, nth))
    before = picture(host)
    create(host.ports, request("A100-4C", name="vm"))
    error = outcome(lambda: delete(host.ports, "vm"))
    assert error is not None
    assert (error.code, error.facts["cause"]) == ("partly-applied", "verify-failed")
    assert error.left
    later = host.again()
    if call in ("set-record", "destroy"):
        delete(later.ports, "vm")
    run_reconcile(later.ports)
    assert picture(later) == before


def test_a_lost_undo_is_detected_and_left_for_reconcile(tmp_path):
    text = VENDOR_VF + (
        "faults:\n"
        "  - {on: start, kind: error, nth: 1}\n"
        '  - {on: sysfs-write, match: "*/current_vgpu_type", kind: lost, nth: 2}\n'
    )
    host = open_sim_host(tmp_path, text=text)
    before = picture(host)
    error = outcome(lambda: create(host.ports, request("A100-4C", name="vm")))
    assert error is not None
    assert error.code == "partly-applied"
    assert any("create vGPU A100-4C" in line for line in error.left)
    assert picture(host).claims
    later = host.again()
    assert [f.kind for f in run_reconcile(later.ports).data.findings] == ["half-made"]
    assert picture(later) == before


PORTS = Path(__file__).resolve().parents[3] / "vgpuctl" / "ports"


def _methods() -> set[str]:
    """Return PORT.METHOD for each method of the protocols that are fields of `Host`."""
    classes = {
        node.name: node
        for path in PORTS.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    fields = {
        field.target.id: ast.unparse(field.annotation).removesuffix(" | None")
        for field in classes["Host"].body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    return {
        f"{name}.{method.name}"
        for name, kind in fields.items()
        if kind in classes
        for method in classes[kind].body
        if isinstance(method, ast.FunctionDef)
    }


def test_each_method_of_a_port_changes_something_or_reads_or_never_raises() -> None:
    lists = (CHANGING, NEVER_RAISE, READING)
    assert _methods() == set().union(*lists)
    assert sum(map(len, lists)) == len(set().union(*lists)), "a method is in two lists"

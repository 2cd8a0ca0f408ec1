# SPDX-License-Identifier: Apache-2.0
"""Partitioning a GPU: on a signal or a failed call, the changes are undone, or the error says what is left."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, counted, failing, fault_points, outcome
from tests.hosts import SimulatedHost, copied, create, picture, request, run_reconcile, start
from tests.layouts import Signals, Struck
from tests.partitions import FIRST, OFF, act, everything, mig, names, small
from vgpuctl.errors import Interrupted
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

AMPERE, HOPPER = "A100", "H100"
CHANGES = {
    "on": (HOPPER, {}, mig("3g.40gb", "1g.10gb"), None),
    "off": (HOPPER, {"more": "mig: [3g.40gb, 1g.10gb]"}, OFF, None),
    "warm": (HOPPER, {"more": "mig: [3g.40gb, 1g.10gb]"}, mig("4g.40gb", "1g.10gb"), None),
    "reset": (AMPERE, {"faults": '{on: nvml-set-mig, match: "*", kind: pending}'}, mig("3g.20gb"), None),
    "mixed": (HOPPER, {}, None, True),
}
"""The model, what is special about its host, and what is asked for."""


def prepared(directory: Path, kind: str) -> SimulatedHost:
    """Return a host before a change; with a VM, where its vGPU is suspended and restored."""
    model, more, _, mixed = CHANGES[kind]
    host = small(directory, model, **more)
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\n")
    if kind == "warm":
        create(host.ports, request("H100-1-10C", name="vm"))
    if mixed:
        create(host.ports, request("H100-10C", name="vm"))
    return host.again()


def change(ports: Host, kind: str) -> object:
    """Run the act."""
    _, _, wanted, mixed = CHANGES[kind]
    return act(ports, FIRST, wanted, mixed, drain=True)


@pytest.mark.parametrize("kind", CHANGES)
def test_whatever_call_fails_it_is_undone_or_the_error_says_what_is_left(tmp_path, kind):
    made = prepared(tmp_path / "made", kind)
    calls = counted(copied(made, tmp_path / "dry").ports, partial(change, kind=kind))
    assert any(call.startswith("nvml.") and call in CHANGING for call in calls)
    refused = 0
    for number, done, for_good in fault_points(calls, every_read=False):
        where = f"call {number} {calls[number - 1]}, done={done}, for good={for_good}"
        host = copied(made, tmp_path / f"{number}{done}{for_good}")
        before = everything(host)
        error = outcome(lambda: change(failing(host.ports, number, done=done, for_good=for_good), kind))  # noqa: B023
        now = everything(host)
        host.sim.close()
        if error is None:
            assert now != before, where
            continue
        refused += 1
        if now == before:
            continue
        assert (
            error.left or error.code in ("partly-applied", "verify-failed") or calls[number - 1].startswith("claims.")
        ), (
            where,
            error,
        )
        later = host.again()
        run_reconcile(later.ports)
        change(later.ports, kind)
        if before[3].running and not picture(later).running:
            start(later.ports, "vm")
    assert refused >= 2


@pytest.mark.parametrize("kind", CHANGES)
def test_a_signal_undoes_everything(tmp_path, kind):
    host, signals = prepared(tmp_path, kind), Signals()
    before = everything(host)
    changes = ("set_mig", "create_gpu_instance", "set_mixed_size")
    once = Struck(host.ports.nvml, signals, lambda name, _: name in changes and not signals.received)
    struck = replace(host.ports, nvml=once)
    with pytest.raises(Interrupted) as raised:
        act(struck, FIRST, *CHANGES[kind][2:], drain=True, progress=signals)
    assert (everything(host), raised.value.left) == (before, [])


def test_instances_and_mixed_sizes_that_went_with_the_vfs_come_back_when_it_fails(tmp_path):
    """The last step fails for good: the undo sets the former state again, with the VFs off and on in between."""
    host = small(tmp_path / "mig", more="mig: [3g.40gb, 1g.10gb]")
    before = everything(host)

    class Full:
        def __getattr__(self, name):
            return getattr(host.ports.host_file, name)

        def replace(self, text, expected, *, is_undo=False):
            raise OSError(28, "no space left on device")

    full = replace(host.ports, host_file=Full())
    error = outcome(lambda: act(full, FIRST, OFF))
    assert error is not None
    assert (everything(host), error.left) == (before, [])
    assert names(host) == ["3g.40gb", "1g.10gb"]
    mixed = small(tmp_path / "mixed")
    act(mixed.ports, FIRST, mixed=True)
    before = everything(mixed)
    error = outcome(lambda: act(replace(mixed.ports, host_file=Full()), FIRST, mig("1g.10gb"), mixed=False))
    assert error is not None
    assert (everything(mixed), error.left) == (before, [])

# SPDX-License-Identifier: Apache-2.0
"""What export prints is the host: diff finds nothing, on every simulated host, and after changes."""

from __future__ import annotations

import pytest

from tests.layouts import A100, FLEX, do
from tests.worlds import Silent, open_host, yes
from vgpuctl.engine.apply import apply_host, diff_host
from vgpuctl.engine.export import export_host
from vgpuctl.engine.host_plan import How
from vgpuctl.engine.host_wish import File, ask
from vgpuctl.host.nvml import NoNvml
from vgpuctl.model.partition import MigSpec
from vgpuctl.sim.world import SCENARIOS
from vgpuctl.spec.host import parse_host_spec
from vgpuctl.value import replace


def same(world):
    text = export_host(world).data["text"]
    found = diff_host(world, ask(world, File(text, "exported"), ()), How())
    assert (found.changed, found.data["settings"]) == (False, [])
    assert [line for line in found.steps if not line.startswith("put exported")] == []
    return text


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_diff_finds_nothing_on_any_simulated_host(tmp_path, scenario):
    same(open_host(tmp_path, scenario).world)


def test_what_the_file_says_and_the_host_cannot_show_is_kept(tmp_path):
    host = open_host(tmp_path, "mixed")
    host.sim.host_file.write_text(
        "version: 1\ndefaults: {memory: 8GiB}\nboot: {deadline_seconds: 60}\n"
        "gpus:\n  all: {reserved_for: vdi-*}\n  A100: {cordoned: true, profiles: A100-4C}\n"
    )
    do(host.world, FLEX, "sriov", 4)
    spec = parse_host_spec(same(host.world), "x")
    assert (spec.defaults.memory, spec.boot.deadline_seconds) == ("8GiB", 60)
    assert spec.gpus["0000:3b:00.0"].profiles == ("A100-4C",)
    assert (spec.gpus[FLEX].mode, spec.gpus[FLEX].vfs) == ("sriov", 4)
    assert all(one.reserved_for == ("vdi-*",) for one in spec.gpus.values())


def test_an_exported_file_brings_a_host_back(tmp_path):
    host = open_host(tmp_path, "mixed")
    text = export_host(host.world).data["text"]
    do(host.world, FLEX, "sriov", 2)
    asked = ask(host.world, File(text, "exported"), ())
    apply_host(host.world, asked, How(), dry_run=False, confirm=yes, progress=Silent())
    assert export_host(host.world).data["text"] == text


SAID = """version: 1
gpus:
  A100: {mode: vgpu, scheduler: {policy: fixed_share}, mig: off, cordoned: true}
  "0000:99:00.0": {mode: sriov, vfs: 2}
  H100: {mode: vgpu}
"""


def test_what_is_gone_or_dark_is_not_told_as_absent(tmp_path):
    host = open_host(tmp_path, "mixed")
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text(SAID)
    dark = replace(host.world, nvml=NoNvml("the driver is down"))
    found = export_host(dark)
    spec = parse_host_spec(found.data["text"], "x")
    assert (spec.gpus[A100].mig, str(spec.gpus[A100].scheduler.policy)) == (MigSpec(), "fixed_share")
    assert (spec.gpus["0000:99:00.0"].vfs, spec.gpus["H100"].mode) == (2, "vgpu")
    assert [w.partition(";")[0] for w in found.warnings if "no GPU here is" in w] == [
        "no GPU here is 0000:99:00.0",
        "no GPU here is H100",
    ]
    assert any(w.startswith(f"{A100}: NVML does not answer") for w in found.warnings)


def test_a_gpu_without_its_driver_keeps_what_host_yaml_says(tmp_path):
    host = open_host(tmp_path, "mixed")
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text(SAID.replace("A100:", f'"{A100}":'))

    class Unbound:
        """A sysfs in which no driver has the A100, as after a failed load of the module."""

        def __getattr__(self, name):
            return getattr(host.world.sysfs, name)

        def readlink(self, path):
            if path.endswith(f"{A100}/driver"):
                raise FileNotFoundError(2, "no such file", path)
            return host.world.sysfs.readlink(path)

        def listdir(self, path):
            names = host.world.sysfs.listdir(path)
            return tuple(n for n in names if not (path.endswith(A100) and n.startswith(("driver", "virtfn"))))

    found = export_host(replace(host.world, sysfs=Unbound(), nvml=NoNvml("the driver is down")))
    assert any(w.startswith(f"{A100}: no driver has it") for w in found.warnings)
    entry = parse_host_spec(found.data["text"], "x").gpus[A100]
    assert (entry.mode, entry.cordoned, entry.mig, str(entry.scheduler.policy)) == (
        "vgpu",
        True,
        MigSpec(),
        "fixed_share",
    )

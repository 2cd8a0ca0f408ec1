# SPDX-License-Identifier: Apache-2.0
"""What export prints is the host: diff finds nothing, on every simulated host, and after changes."""

from __future__ import annotations

import pytest

from tests.layouts import FLEX, do
from tests.worlds import Silent, open_host
from vgpuctl.engine.apply import apply_host, diff_host
from vgpuctl.engine.export import export_host
from vgpuctl.engine.host_plan import How
from vgpuctl.engine.host_wish import File, ask
from vgpuctl.sim.world import SCENARIOS
from vgpuctl.spec.host import parse_host_spec


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
    apply_host(host.world, asked, How(), dry_run=False, progress=Silent())
    assert export_host(host.world).data["text"] == text

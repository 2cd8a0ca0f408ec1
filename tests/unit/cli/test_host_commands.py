# SPDX-License-Identifier: Apache-2.0
"""The commands apply, diff, assert, export and import, with every option and their documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

A16, FLEX = "0000:17:00.0", "0000:86:00.0"
WANTED = f'version: 1\ngpus: {{"{A16}": {{mode: vgpu}}, "{FLEX}": {{mode: sriov, vfs: 4}}}}\n'


@pytest.fixture
def mixed(sim: Run) -> Run:
    """Run a line, with this text as standard input, on the simulated host with every backend."""
    return lambda line, text="": sim(line, "mixed", text)


def test_a_file_is_compared_applied_and_then_right(mixed: Run, tmp_path: Path) -> None:
    file = tmp_path / "host.yaml"
    file.write_text(WANTED)
    ran = mixed(f"diff -f {file}")
    assert (ran.status, [line.split() for line in ran.out.splitlines()[:3]]) == (
        7,
        [["GPU", "KEY", "IS", "WANTED"], [A16, "mode", "unmanaged", "vgpu"], [FLEX, "vfs", "8", "4"]],
    )
    document = mixed(f"diff -f {file} --json").document
    gpu = document["data"]["gpus"][0]
    assert (document["changed"], gpu["before"]["mode"], gpu["after"]["mode"]) == (True, None, "vgpu")
    assert gpu["differences"] == [{"key": "mode", "wanted": "vgpu", "is": "unmanaged"}]
    ran = mixed(f"diff --quiet --file {file}")
    assert (ran.status, ran.out, ran.err) == (7, "", "")
    assert mixed(f"diff --quiet -f {file} --json").document["data"]["gpus"] == document["data"]["gpus"]
    assert mixed(f"apply -f {file} --dry-run").out.startswith("would do:\n")
    ran = mixed(f"apply -f {file}")
    assert (ran.status, ran.out.splitlines()[0]) == (0, f"{A16}: mode vgpu")
    assert mixed("diff").out == "no differences: nothing to apply\n"
    assert (mixed("diff --quiet").status, mixed(f"apply -f {file}").out) == (
        0,
        "the host is as host.yaml says; nothing to do\n",
    )


def test_set_is_typed_and_its_errors_name_it(mixed: Run) -> None:
    line = f"apply --set gpus[{FLEX}].mode=sriov --set gpus[{FLEX}].vfs=4 --json"
    document = mixed(line).document
    assert (document["changed"], document["data"]["gpus"][0]["after"]["vfs"]) == (True, 4)
    assert mixed(line).document["changed"] is False
    assert mixed("apply --set gpus[A100].reserved_for=[a,b-*] --set gpus[A100].profiles=A100-4C").status == 0
    assert "vgpu, for a or b-*" in mixed("list-gpus").out
    gpu = next(g for g in mixed("list-gpus --json").document["data"] if g["reserved_for"])
    assert (gpu["allowed_profiles"], gpu["reserved_for"]) == (["A100-4C"], ["a", "b-*"])
    assert mixed("apply --set gpus[A16].mode=unmanaged --set 'gpus[A16].reason=OrionX has it'").status == 0
    assert "reason:      OrionX has it\n" in mixed("show-gpu 0000:17:00.0").out
    assert mixed("show-gpu 0000:17:00.0 --json").document["data"]["reason"] == "OrionX has it"
    assert mixed("apply --set gpus[A16].reason=null").status == 0
    assert "reason" not in mixed("show-gpu 0000:17:00.0").out
    ran = mixed("apply --set gpus[A16].vfs=x")
    assert (ran.status, "--set gpus[A16].vfs=x: vfs: 'x' is" in ran.err) == (2, True)


def test_vms_in_the_way_are_named_before_they_are_drained(mixed: Run) -> None:
    assert mixed(f"create-vm one --mode sriov --gpu {FLEX}").status == 0
    sets = f"--set gpus[{FLEX}].mode=sriov --set gpus[{FLEX}].vfs=4"
    assert "in use by one" in mixed(f"diff {sets}").err
    assert mixed(f"diff {sets} --drain").err == ""
    for line in (f"apply {sets}", f"set-mode {FLEX} sriov --vfs 4"):
        asked = mixed(f"{line} --drain --json").document["error"]
        assert (asked["code"], asked["facts"]["vms"]) == ("needs-confirmation", ["one"])
    assert mixed(f"show-gpu {FLEX} --json").document["data"]["vfs"]["enabled"] == 8


def test_what_export_prints_is_no_difference(mixed: Run) -> None:
    assert mixed("cordon A100").status == 0
    text = mixed("export").out
    assert (mixed("export --json").document["data"]["text"], "cordoned: true" in text) == (text, True)
    assert mixed("diff -f -", text).status == 0
    assert mixed("diff --quiet -f -", text.replace("cordoned: true", "cordoned: false")).status == 7
    assert "standard input:1:1" in mixed("apply -f -", "gpus: {}\n").err


def test_other_programs_files_are_printed_as_host_yaml(mixed: Run, tmp_path: Path) -> None:
    uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    parent = tmp_path / "mdevctl.d" / "0000:5e:00.0"
    parent.mkdir(parents=True)
    (parent.parent / "scripts.d").mkdir()
    assert "has no mdevctl definitions" in mixed(f"import {parent.parent}").err
    (parent / uuid).write_text('{"mdev_type": "nvidia-230", "start": "auto"}')
    ran = mixed(f"import {parent.parent}")
    assert (ran.status, f"carrier: {uuid}" in ran.out) == (0, True)
    text = 'vgpu-configs:\n  a: ["T4-1Q"]\n  b: ["T4-2Q"]\n'
    assert mixed("import -", text).status == 2
    document = mixed("import - --config b --json", text).document
    assert "profiles: [T4-2Q]" in document["data"]["text"]
    assert document["data"]["left_out"] == [w.removeprefix("ignored: ") for w in document["warnings"]]
    assert "not one of the known formats" in mixed("import -", "version: 1\n").err


def test_what_mdevctl_prints_becomes_vgpus_through_import_and_apply(mixed: Run) -> None:
    uuid, card = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", "0000:5e:00.0"
    dump = f'[{{"{card}": [{{"{uuid}": {{"mdev_type": "nvidia-232", "start": "auto"}}}}]}}]'
    text = mixed("import -", dump).out
    assert mixed("diff --quiet -f -", text).status == 7
    ran = mixed("diff -f -", text)
    assert (ran.status, f"create vGPU mdev-{uuid[:8]} (T4-4Q on GPU {card})" in ran.out) == (7, True)
    ran = mixed("apply -f -", text)
    assert (ran.status, f"vgpus.mdev-{uuid[:8]}: profile T4-4Q" in ran.out) == (0, True)
    assert uuid in mixed("list-vgpus -o wide").out
    assert mixed("diff --quiet").status == 0

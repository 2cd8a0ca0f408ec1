# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each module hands to vgpuctl: a program in its place writes down its words and what it reads."""

from __future__ import annotations

import importlib
import json

import pytest
from ansible.module_utils.testing import patch_module_args

PROGRAM = """#!/bin/sh
printf '%s\\n' "$@" > "$0.words"
cat > "$0.data"
echo '{"schema": "vgpuctl/1", "ok": true, "changed": false, "warnings": [], "data": {"steps": [], "notes": []}}'
"""
GPU = "0000:3b:00.0"


@pytest.mark.parametrize(
    ("name", "params", "words", "data"),
    [
        ("gpu_mode", {"gpu": GPU, "mode": "sriov", "vfs": 4}, f"set-mode --vfs 4 -- {GPU} sriov", None),
        ("gpu_mode", {"gpu": "A100", "mode": "vgpu", "drain": True}, "set-mode --drain -- A100 vgpu", None),
        (
            "scheduler",
            {"gpu": GPU, "policy": "fixed_share", "time_slice": 2, "wait": 5},
            f"set-scheduler --wait 5.0 --policy fixed_share --time-slice 2 -- {GPU}",
            None,
        ),
        ("gpu_mode", {"all": True, "mode": "vgpu"}, "set-mode --all vgpu", None),
        ("adopt", {"name": "-old"}, "adopt -- -old", None),
        ("adopt", {"name": "old-*", "state": "released", "wait": 5}, "adopt --wait 5.0 --release -- old-*", None),
        ("adopt", {"all": True}, "adopt --all", None),
        (
            "scheduler",
            {"all": True, "policy": "equal_share"},
            "set-scheduler --policy equal_share --all",
            None,
        ),
        (
            "vm",
            {"name": "vdi-{}", "count": 3, "state": "absent"},
            "ensure-vm --file - --state absent --count 3",
            {"name": "vdi-{}"},
        ),
        (
            "vgpu",
            {"name": "-lab", "profile": "A100-4C", "not_gpu": ["A16"], "vgpu_params": {"frame_rate_limiter": 0}},
            "ensure-vgpu --profile A100-4C --not-gpu A16 --state present --vgpu-param frame_rate_limiter=0 -- -lab",
            None,
        ),
        (
            "vm",
            {"name": "vdi-{}", "count": 3, "profile": "A100-4C", "gpu": "A100"},
            "ensure-vm --file - --state present --count 3",
            {"name": "vdi-{}", "profile": ["A100-4C"], "gpu": "A100"},
        ),
        ("host", {"spec": {"version": 1}, "drain": True}, "apply --file - --drain", {"version": 1}),
        ("host", {"spec": {"version": 1}, "prune": True}, "apply --file -", {"version": 1}),
        (
            "host",
            {"gpus": {GPU: {"mode": "vgpu", "reserved_for": ["a b"]}}},
            f'apply --set gpus[{GPU}].mode="vgpu" --set|gpus[{GPU}].reserved_for=["a b"]',
            None,
        ),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_a_module_hands_its_options_on(tmp_path, capsys, name, params, words, data, check):
    program = tmp_path / "vgpuctl"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    module = importlib.import_module(f"ansible_collections.vgpuctl.vgpuctl.plugins.modules.{name}")
    given = {**params, "executable": str(program), "_ansible_check_mode": check}
    with patch_module_args(given), pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0, capsys.readouterr().out
    front, _, rest = words.partition("|")
    due = [*front.split(), *([rest] if rest else [])]
    typed = (tmp_path / "vgpuctl.words").read_text().splitlines()
    yes = [] if name == "host" and not params.get("prune") else ["--yes"]
    assert [word for word in typed if word != "--dry-run"] == ["--json", *yes, *due]
    assert ("--dry-run" in typed) is check
    read = (tmp_path / "vgpuctl.data").read_text()
    assert (json.loads(read) if read else None) == data

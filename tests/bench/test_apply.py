# SPDX-License-Identifier: Apache-2.0
"""`apply` on a host that is as host.yaml says, beside `list-gpus`: it looks once, changes nothing, and says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.bench.conftest import Tell
from tests.bench.paired import environment, paired, runs, seconds, vgpuctl

LIMIT = 1.5
HOST = ("--host", "sim:mixed", "--json")


def test_apply_on_a_host_that_is_right(bench: Tell, tmp_path: Path) -> None:
    env = environment(tmp_path / "cache", XDG_STATE_HOME=str(tmp_path / "state"))
    text = document(["export"], env)["data"]["text"]
    file = tmp_path / "host.yaml"
    file.write_text(text)
    assert document(["apply", "-f", str(file)], env)["changed"] is True
    assert document(["apply"], env)["changed"] is False
    gpus = document(["list-gpus"], env)["data"]
    assert len(document(["apply"], env)["data"]["gpus"]) == len([g for g in gpus if g["desired_mode"]]) > 3
    ours, theirs = vgpuctl(*HOST, "apply"), vgpuctl(*HOST, "list-gpus")
    pair = paired(lambda: seconds(ours, env), lambda: seconds(theirs, env), runs(3, 21))
    bench("apply, nothing to do", pair.ratio, LIMIT, f"{pair.medians()} of list-gpus, {len(gpus)} GPUs")


def document(words: list[str], env: Mapping[str, str]) -> dict:
    """Return what a command prints."""
    ran = subprocess.run(vgpuctl(*HOST, *words), env=env, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)

# SPDX-License-Identifier: Apache-2.0
"""Compares `apply` with `list-gpus` on a host that already matches host.yaml.

`apply` then reads the host once and changes nothing. One test uses a host with GPUs of several vendors. The other uses
eight NVIDIA GPUs with MIG, mixed sizes and schedulers in host.yaml.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.bench.conftest import Tell
from tests.bench.paired import environment, paired, runs, seconds, vgpuctl
from tests.bench.test_restore_partitions import GPUS, HOST, SPEC

LIMIT = 1.5


def test_apply_without_changes(bench: Tell, tmp_path: Path) -> None:
    env = environment(tmp_path / "cache", XDG_STATE_HOME=str(tmp_path / "state"))
    host = ("--host", "sim:mixed", "--json")
    file = tmp_path / "host.yaml"
    file.write_text(document([*host, "export"], env)["data"]["text"])
    compare("apply, nothing to do", host, file, env, bench)


def test_apply_without_changes_on_a_host_with_mig_and_mixed_sizes(bench: Tell, tmp_path: Path) -> None:
    env = environment(tmp_path / "cache", XDG_STATE_HOME=str(tmp_path / "state"))
    scenario, file = tmp_path / "eight.yaml", tmp_path / "host.yaml"
    scenario.write_text(HOST)
    file.write_text(SPEC)
    host = ("--host", f"sim:{scenario}", "--json")
    compare("apply, nothing to do, MIG, mixed sizes and schedulers", host, file, env, bench)
    assert len(document([*host, "apply"], env)["data"]["gpus"]) == GPUS


def compare(name: str, host: tuple[str, ...], file: Path, env: Mapping[str, str], bench: Tell) -> None:
    """Apply the file; then time a second `apply`, which changes nothing, against `list-gpus`."""
    assert document([*host, "apply", "-f", str(file)], env)["changed"] is True
    assert document([*host, "apply"], env)["changed"] is False
    gpus = document([*host, "list-gpus"], env)["data"]
    assert len(document([*host, "apply"], env)["data"]["gpus"]) == len([g for g in gpus if g["desired_mode"]]) > 3
    ours, theirs = vgpuctl(*host, "apply"), vgpuctl(*host, "list-gpus")
    pair = paired(lambda: seconds(ours, env), lambda: seconds(theirs, env), runs(3, 21))
    bench(name, pair.ratio, LIMIT, f"{pair.medians()} of list-gpus, {len(gpus)} GPUs")


def document(words: list[str], env: Mapping[str, str]) -> dict:
    """Return the JSON document that a command prints."""
    completed = subprocess.run(vgpuctl(*words), env=env, capture_output=True, text=True, check=True)
    return json.loads(completed.stdout)

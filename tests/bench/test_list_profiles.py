"""Compares `vgpuctl list-profiles` with `mdevctl types`, on the same /sys with 20,480 type directories.

The tree is mounted over /sys in a private mount namespace, because Debian 12's mdevctl reads no other path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import big_host
from tests.bench.conftest import Tell
from tests.bench.paired import environment, paired, runs, seconds, vgpuctl
from tests.namespaces import expect, unshare

LIMIT = 0.8
_HOLD = 'mount -t tmpfs -o size=1g,nr_inodes=1m tmpfs "$0" && echo mounted && read -r _ && mount --bind "$0" /sys && '
_HOLD += "echo ready && exec cat"


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[list[str]]:
    """Yield the prefix that runs a command with the big host's tree as /sys. A child keeps the namespace alive."""
    tree = tmp_path / "sys"
    tree.mkdir()
    pipe = subprocess.PIPE
    argv = [*unshare(), "sh", "-c", _HOLD, str(tree)]
    errors = (tmp_path / "stderr").open("w+")
    with errors, subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=errors, text=True) as child:
        assert child.stdin is not None
        try:
            expect(child, "mounted", errors)
            big_host.build(Path(f"/proc/{child.pid}/root{tree}"))
            child.stdin.write("\n")
            child.stdin.flush()
            expect(child, "ready", errors)
            # --root is needed because entering a mount namespace leaves a chroot.
            yield ["nsenter", f"--mount=/proc/{child.pid}/ns/mnt", f"--root=/proc/{child.pid}/root", "--"]
        finally:
            child.stdin.close()


def test_list_profiles(inside: list[str], bench: Tell, tmp_path: Path) -> None:
    mdevctl = shutil.which("mdevctl", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert mdevctl, "mdevctl is not installed: apt-get install mdevctl"
    env = environment(tmp_path / "cache")
    ours = [*inside, *vgpuctl("--json", "list-profiles")]
    theirs = [*inside, mdevctl, "types"]
    _check_ours(ours, env)
    _check_theirs(theirs, env)
    pair = paired(lambda: seconds(ours, env), lambda: seconds(theirs, env), runs(3, 21))
    bench("list-profiles", pair.ratio, LIMIT, f"{pair.medians()} of 'mdevctl types', {big_host.DIRECTORIES:,} types")


def _check_ours(argv: list[str], env: dict[str, str]) -> None:
    profiles = json.loads(_output_of(argv, env))["data"]
    assert {p["profile"]: p["free"] for p in profiles} == big_host.expected_free()
    assert {p["max_per_gpu"] for p in profiles} == {big_host.largest(s) for s in big_host.SIZES}
    assert all(len(p["gpus"]) == big_host.GPUS for p in profiles)


def _check_theirs(argv: list[str], env: dict[str, str]) -> None:
    lines = _output_of(argv, env).splitlines()
    assert sum(line.startswith("  nvidia-") for line in lines) == big_host.DIRECTORIES
    assert sum(line.startswith("0000:") for line in lines) == big_host.GPUS * big_host.VFS


def _output_of(argv: list[str], env: dict[str, str]) -> str:
    completed = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{argv}: {completed.stderr}{completed.stdout}"
    return completed.stdout

# SPDX-License-Identifier: Apache-2.0
"""The program that is sent to a host, killed midway: a vgpuctl always exists, and the next run repairs the rest."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.remote.test_bootstrap_script import PROGRAM, PYTHON, WORKS, input_for, names, old_one, run, wheel
from vgpuctl.remote import bootstrap_script


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A host's directories, without any vgpuctl."""
    (tmp_path / "opt").mkdir()
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("event", "about", "nth", "counts"),
    [
        ("open", bootstrap_script.MARKER, 2, "0.5"),
        ("os.rename", bootstrap_script.WHEELS_PREFIX, 1, "0.5"),
        ("os.symlink", "", 2, "0.5"),
        ("ctypes.dlopen", "", 1, "0.5"),
        ("shutil.rmtree", bootstrap_script.REPLACED_SUFFIX, 1, "1.0"),
    ],
    ids=["unmarked", "unnamed", "unlinked", "unexchanged", "undropped"],
)
def test_a_killed_run_leaves_a_vgpuctl_and_the_next_run_cleans_up(
    place: Path, event: str, about: str, nth: int, counts: str
) -> None:
    """Killed right before one of its own calls; before the fourth the environment of the role still exists."""
    old_one(place)
    request = input_for(place, "bring", wheel(place, WORKS))
    words = killed_before(event, about, nth)
    done = subprocess.run(words, input=request, env={"PATH": "/bin"}, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout
    text = subprocess.run([place / "opt/vgpuctl/bin/vgpuctl", "--version"], capture_output=True, text=True, check=True)
    assert text.stdout == f"vgpuctl {counts}\n"
    result = run(request)
    assert result["data"]["brought"]["was"] == counts
    (made,) = [name for name in names(place) if name != "vgpuctl"]
    assert (place / "opt/vgpuctl").readlink() == Path(made)
    assert [path.name for path in (place / "bin").iterdir()] == ["vgpuctl"]


def killed_before(event: str, about: str, nth: int) -> list[str]:
    """Return the arguments that run the program and kill it right before its n-th `event` about `about`.

    The calls are those that Python reports to its audit hooks.
    """
    code = f"""
import os, runpy, sys
seen = []
def told(event, words):
    if event == {event!r} and {about!r} in str(words):
        seen.append(event)
        if len(seen) == {nth}:
            os.kill(os.getpid(), 9)
sys.addaudithook(told)
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""
    return [PYTHON, "-I", "-c", code]

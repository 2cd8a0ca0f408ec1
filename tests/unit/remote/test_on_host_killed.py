# SPDX-License-Identifier: Apache-2.0
"""The program that is sent to a host, killed half-way: a vgpuctl is always there, and the next one mends it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.remote.test_on_host import PROGRAM, PYTHON, WORKS, asked, names, old_one, run, wheel
from vgpuctl.remote import on_host


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A host's directories, without any vgpuctl."""
    (tmp_path / "opt").mkdir()
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("event", "about", "nth", "counts"),
    [
        ("open", on_host.MARK, 2, "0.5"),
        ("os.rename", on_host.WHEELS, 1, "0.5"),
        ("os.symlink", "", 2, "0.5"),
        ("ctypes.dlopen", "", 1, "0.5"),
        ("shutil.rmtree", on_host.BEFORE, 1, "1.0"),
    ],
    ids=["unmarked", "unnamed", "unlinked", "unexchanged", "undropped"],
)
def test_one_that_is_killed_leaves_a_vgpuctl_and_the_next_one_leaves_nothing_else(
    place: Path, event: str, about: str, nth: int, counts: str
) -> None:
    """Killed right before a call of its own; before the fourth the environment of the role is still there."""
    old_one(place)
    request = asked(place, "bring", wheel(place, WORKS))
    words = killed_before(event, about, nth)
    done = subprocess.run(words, input=request, env={"PATH": "/bin"}, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout
    said = subprocess.run([place / "opt/vgpuctl/bin/vgpuctl", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"vgpuctl {counts}\n"
    found = run(request)
    assert found["data"]["brought"]["was"] == counts
    (made,) = [name for name in names(place) if name != "vgpuctl"]
    assert (place / "opt/vgpuctl").readlink() == Path(made)
    assert [path.name for path in (place / "bin").iterdir()] == ["vgpuctl"]


def killed_before(event: str, about: str, nth: int) -> list[str]:
    """Return the words that run the program until right before its n-th call of a kind that names something.

    The calls are those of which Python tells its audit hooks.
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

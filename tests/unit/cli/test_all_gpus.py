# SPDX-License-Identifier: Apache-2.0
"""--all skips GPUs that cannot have a setting and says so; vfio-pci is named where it has a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
FIRST, SECOND, THIRD = "0000:3b:00.0", "0000:3f:00.0", "0000:43:00.0"
TEXT = "version: 1\ngpus:\n  - {model: %s}\n  - {model: A40, driver: vfio-pci}\n  - {model: Flex 170}\n"


@pytest.fixture
def open_with(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that makes a host whose first GPU is of a model, and returns its name."""

    def make(model: str) -> str:
        path = tmp_path / "three.yaml"
        path.write_text(TEXT % model)
        return f"sim:{path}"

    return make


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("A40", ("set-scheduler", "--policy", "fixed_share")),
        ("RTX PRO 6000 Blackwell SE", ("set-mixed-size", "on")),
        ("A100", ("set-mig", "1g.5gb")),
        ("A40", ("set-mode", "vgpu", "--dry-run")),
    ],
)
def test_all_skips_what_cannot_have_it_and_says_so(
    vgpuctl: Run, open_with: Callable[[str], str], model: str, words: tuple[str, ...]
) -> None:
    ran = vgpuctl("--host", open_with(model), "--yes", words[0], "--all", *words[1:])
    assert ran.status == 0, ran.err
    for address in (SECOND, THIRD):
        assert f"note: skipped: {address} (" in ran.err
        assert f"{address}: {address}" not in ran.err
    assert "failed" not in ran.err + ran.out


def test_all_fails_where_no_gpu_can_have_it(vgpuctl: Run, open_with: Callable[[str], str]) -> None:
    ran = vgpuctl("--host", open_with("A40"), "--yes", "set-mig", "--all", "1g.5gb")
    assert (ran.status, "3 of 3 failed" in ran.err) == (6, True)


def test_a_named_gpu_that_cannot_have_it_fails(vgpuctl: Run, open_with: Callable[[str], str]) -> None:
    host = open_with("A40")
    ran = vgpuctl("--host", host, "--yes", "set-scheduler", FIRST, SECOND, "--policy", "fixed_share")
    assert (ran.status, "1 of 2 failed" in ran.err) == (6, True)


def test_a_gpu_on_vfio_pci_is_named_and_how_to_give_it_to_its_driver(
    vgpuctl: Run, open_with: Callable[[str], str]
) -> None:
    host = open_with("A40")
    for words in (
        ("set-mode", SECOND, "vgpu"),
        ("create-vm", "one", "--profile", "A40-8Q", "--gpu", SECOND),
        ("set-scheduler", SECOND, "--policy", "fixed_share"),
    ):
        ran = vgpuctl("--host", host, "--yes", *words)
        assert "hint: vfio-pci has it; give it to nvidia now: virsh nodedev-reattach pci_0000_3f_00_0" in ran.err
        assert "install the" not in ran.err


def test_warnings_of_diff_say_an_address_once(vgpuctl: Run, open_with: Callable[[str], str], tmp_path: Path) -> None:
    host = open_with("A40")
    assert vgpuctl("--host", host, "create-vm", "one", "--profile", "A40-8Q").status == 0
    desired = tmp_path / "desired.yaml"
    desired.write_text(f"version: 1\ngpus:\n  '{FIRST}': {{mode: passthrough}}\n")
    ran = vgpuctl("--host", host, "diff", "-f", str(desired))
    assert f"warning: {FIRST} is in use" in ran.err
    assert f"{FIRST}: {FIRST}" not in ran.err

# SPDX-License-Identifier: Apache-2.0
"""list-gpus --plot: each vGPU is drawn once, where it is, and text stays in its box."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran
from vgpuctl.cli import gpu_plot
from vgpuctl.library import open_host

Sim = Callable[..., Ran]

_TEXT = "{http://www.w3.org/2000/svg}text"


def texts(picture: bytes | str) -> list[str | None]:
    return [element.text for element in ET.fromstring(picture).iter(_TEXT)]


def test_a_picture_names_each_vgpu_once_and_the_command_says_where_it_is(sim: Sim, tmp_path: Path) -> None:
    assert sim("create-vm cad-1 --profile A100-20C").status == 0
    assert sim("create-vm off-1 --profile A100-20C --no-start").status == 0
    picture = tmp_path / "gpus.svg"
    ran = sim(f"list-gpus --plot {picture}")
    assert (ran.status, ran.err) == (0, f"note: picture: {picture}\n")
    drawn = texts(picture.read_text())
    assert [drawn.count(name) for name in ("cad-1", "off-1", "free")] == [1, 1, 1]
    assert any("0000:3b:00.0" in (text or "") and "40 of 40 GiB" in (text or "") for text in drawn)
    assert sim(f"list-gpus --plot {picture}").status == 3, "a file is never replaced"


@pytest.mark.parametrize(
    ("file", "says"), [("x.pdf", "no known picture format"), ("no/x.svg", "there is no directory")]
)
def test_a_wrong_name_is_refused_before_the_look(sim: Sim, tmp_path: Path, file: str, says: str) -> None:
    ran = sim(f"list-gpus --plot {tmp_path / file}")
    assert ran.status == 2
    assert says in ran.err


def test_a_box_is_at_the_placement_of_its_vgpu(sim: Sim) -> None:
    assert sim("set-mixed-size 0000:3b:00.0 on --yes", "rtx-pro-6000").status == 0
    for profile in ("DC-24Q", "DC-4Q", "DC-48Q"):
        assert sim(f"create-vm v-{profile[3:].lower()} --profile {profile}", "rtx-pro-6000").status == 0
    (gpu,) = open_host("sim:rtx-pro-6000").list_gpus().data
    boxes = {box.vgpu.vm: (box.start_gib, box.size_gib) for box in gpu_plot.place_boxes(gpu)}
    assert {vm: start for vm, (start, _) in boxes.items()} == {vgpu.vm: vgpu.placement_id for vgpu in gpu.vgpus}
    ends = sorted((start, start + size) for start, size in boxes.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))


def test_unknown_placements_are_said_to_be_unknown(sim: Sim, tmp_path: Path) -> None:
    assert sim("set-mixed-size 0000:3b:00.0 on --yes", "l40s-x4").status == 0
    for profile in ("L40S-16Q", "L40S-4Q"):
        assert sim(f"create-vm v-{profile[5:].lower()} --profile {profile} --gpu 0000:3b:00.0", "l40s-x4").status == 0
    assert sim(f"list-gpus --plot {tmp_path / 'x.svg'}", "l40s-x4").status == 0
    titles = [text or "" for text in texts((tmp_path / "x.svg").read_text()) if " of " in (text or "")]
    assert ["places unknown" in title for title in titles] == [True, False, False, False]

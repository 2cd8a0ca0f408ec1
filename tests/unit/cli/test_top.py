# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl top`: its tables and documents, and its live screen, driven by keys without a terminal."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.callers import BOB, host_of
from tests.hosts import EagerClock, open_sim_host
from tests.top_host import (
    CORDONED,
    FIRST,
    LOST,
    busy_host,
    look_with_events,
    picture_text,
    screen,
    settle,
    shown,
    take_picture,
)
from tests.unit.cli.conftest import ROOT, Run
from vgpuctl.agent.client import connect
from vgpuctl.cli.listings import View
from vgpuctl.cli.live.app import TopApp
from vgpuctl.cli.live.layout import LineMaker, cut, place
from vgpuctl.cli.live.state import GPU_FIELDS, VGPU_FIELDS
from vgpuctl.cli.top_source import Reading, UsageSource
from vgpuctl.errors import NotYours
from vgpuctl.library import GpuHost

PICTURE = ROOT / "docs" / "top.svg"
EVIL = "[red]web[/] \N{WARNING SIGN}"
WIDE, NARROW = (150, 40), (80, 24)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> GpuHost:
    return busy_host(tmp_path_factory.mktemp("busy"))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def app_of(host: GpuHost, sample: Callable[[], Reading] | None = None, **options: Any) -> TopApp:
    source = UsageSource(None, lambda: host)
    return TopApp(sample or (lambda: look_with_events(host)), source.read_processes, View(), interval=5.0, **options)


def vms(lines: list[str]) -> list[str]:
    """Return the first word of each row of the table of VMs."""
    begin = next(n for n, line in enumerate(lines) if line.startswith("VM"))
    end = lines.index("EVENTS") if "EVENTS" in lines else len(lines) - 1
    return [line.split()[0] for line in lines[begin + 1 : end] if line]


def test_once_prints_the_gpus_and_the_vms(sim: Run) -> None:
    sim("create-vm vdi-001 --profile A100-4C")
    ran = sim("top --once")
    assert ran.status == 0
    head, _, gpu_header, gpu, _, header, vm = ran.out.splitlines()
    assert head.startswith("sim:a100-40: 1 GPU, 1 vGPU, 1 running, driver 550.90.05, read 0 s ago")
    assert gpu_header.split()[0] == "GPU"
    assert gpu.split()[0] == FIRST
    assert header.split()[:4] == ["VM", "PROFILE", "GPU", "STATE"]
    assert vm.split()[:5] == ["vdi-001", "A100-4C", FIRST, "running", "?"], "no driver runs in the guest"
    assert sim("top").out.splitlines()[1:] == ran.out.splitlines()[1:], "stdout is no terminal"


def test_rows_are_filtered_and_sorted_in_every_form(sim: Run) -> None:
    sim("create-vm 'vdi-{:03}' --count 3 --profile A100-4C")
    sim("stop-vm vdi-002 --force")
    assert sim("top -o name --sort-by -vm").out.split() == ["vdi-003", "vdi-002", "vdi-001"]
    rows = sim("top --json --filter state=running --sort-by -vm").document["data"]["vgpus"]
    assert [row["vm"] for row in rows] == ["vdi-003", "vdi-001"]
    assert sim("top -o csv --columns vm,state --filter vm=vdi-002").out.splitlines() == ["vm,state", "vdi-002,stopped"]
    assert "have no column 'nothing'" in sim("top --sort-by nothing").err
    assert sim("top --interval 0.5").status == 2


def test_a_value_that_a_vm_cannot_have_is_none_and_one_that_is_not_known_is_unknown(sim: Run) -> None:
    sim("create-vm vdi-001 --profile A100-4C --no-start")
    *_, row = sim("top --once").out.splitlines()
    assert row.split()[3:9] == ["stopped", "-", "-", "-/4G", "-", "?"]


def test_once_and_json_do_not_import_the_library_of_the_screen(tmp_path: Path) -> None:
    code = "import sys; from vgpuctl.cli import entry; s = entry.main(sys.argv[1:]); print(s, 'textual' in sys.modules)"
    for words in (("--once",), ("--json",), ("--help",)):
        ran = subprocess.run(
            [sys.executable, "-c", code, "--host", "sim:t4", "top", *words],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stdout.splitlines()[-1] == "0 False"


def test_the_processes_in_a_vm_are_shown_to_those_who_may_change_it(tmp_path: Path) -> None:
    simulated = open_sim_host(tmp_path, "l40s-x4", clock=EagerClock())
    root = host_of(simulated, None)
    root.create_vm("web", profile="L40S-4Q")
    (process,) = root.guest_processes("web").data
    assert (process.name, process.vm_uuid) == ("python3", root.show_vm("web").data.uuid)
    with pytest.raises(NotYours):
        host_of(simulated, BOB).guest_processes("web")


async def _open_wide(host: GpuHost) -> list[str]:
    async with screen(app_of(host), WIDE) as pilot:
        return shown(pilot)


def test_the_wide_screen_has_every_column(host: GpuHost) -> None:
    lines = asyncio.run(_open_wide(host))
    assert lines[0].split("   ") == [
        "vgpuctl top", "gpu-host-07", "21:14:03", "every 5 s", "4 GPUs (1 lost)", "24 vGPUs, 23 running",
        "driver 580.65.06", lines[0].split("   ")[-1],
    ]  # fmt: skip
    assert lines[1].split() == [
        "GPU",
        "MODEL",
        "MODE",
        "SCHEDULER",
        "SM",
        "MEM",
        "GIVEN",
        "°C",
        "POWER",
        "VGPUS",
        "NOTE",
    ]
    assert [line.split()[-1] for line in lines[2:6]] == ["10", "7", "cordoned", "lost"]
    assert lines[5].split() == [LOST, "L40S", "vgpu", "best_effort", "?", "█" * 7 + "▌··", "75%", "?", "?", "3", "lost"]
    assert " ".join(lines[7].split()) == "VM▲ PROFILE GPU STATE SM OF SHARE FB USED FB PEAK ENC FPS LICENCE HINT"
    assert max(map(len, lines)) <= WIDE[0]
    assert "gpu-lost" in " ".join(lines[-6:])
    assert lines[-1].startswith("q quit  ? help")


@pytest.mark.parametrize("size", [NARROW, (60, 20), (40, 10)])
def test_a_narrow_screen_has_fewer_columns_and_nothing_wraps(host: GpuHost, size: tuple[int, int]) -> None:
    async def run() -> list[str]:
        async with screen(app_of(host), size) as pilot:
            return shown(pilot)

    lines = asyncio.run(run())
    assert len(lines) == size[1]
    assert max(map(len, lines)) <= size[0]
    headers = next(line for line in lines if line.startswith("VM")).split()
    assert {"VM▲", "SM"} <= set(headers)
    assert "PEAK" not in headers


def test_a_tiny_screen_says_what_it_needs_until_it_is_larger(host: GpuHost) -> None:
    async def run() -> tuple[list[str], list[str], list[str]]:
        async with screen(app_of(host), (20, 5)) as pilot:
            tiny = shown(pilot)
            await pilot.resize_terminal(*WIDE)
            await settle(pilot)
            large = shown(pilot)
            await pilot.resize_terminal(*NARROW)
            await settle(pilot)
            return tiny, large, shown(pilot)

    tiny, large, narrow = asyncio.run(run())
    assert tiny[0] == "This needs 40x10."
    assert "PEAK" in large[7]
    assert len(large) == WIDE[1]
    assert not any("PEAK" in line for line in narrow)


def test_keys_sort_filter_and_group(host: GpuHost) -> None:
    async def run() -> dict[str, list[str]]:
        seen = {}
        async with screen(app_of(host), WIDE) as pilot:
            seen["first"] = shown(pilot)
            for name, keys in {
                "reversed": ("S",),
                "by profile": ("s",),
                "grouped": ("s", "s", "s", "s", "g"),
                "word": ("slash", *"eng-0", "enter"),
                "wrong": ("slash", "home", *"colour=red,", "enter"),
                "left": ("escape",),
                "cleared": ("escape",),
                "condition": ("slash", *"state=stopped", "enter"),
            }.items():
                await settle(pilot, *keys)
                seen[name] = shown(pilot)
        return seen

    seen = asyncio.run(run())
    assert vms(seen["first"]) == sorted(vms(seen["first"]))
    assert vms(seen["reversed"]) == sorted(vms(seen["reversed"]), reverse=True)
    assert "PROFILE▲" in seen["by profile"][7]
    assert {name[:3] for name in vms(seen["by profile"])[:3]} == {"lab"}, "L40S-12Q"
    assert [name[:3] for name in vms(seen["grouped"])] == [*["vdi"] * 10, *["eng"] * 7, *["cad"] * 4, *["lab"] * 3]
    assert "by GPU" in seen["grouped"][-1]
    assert {name[:3] for name in vms(seen["word"])} == {"eng"}
    assert "filter: eng-0" in seen["word"][-1]
    assert "have no column 'colour'" in seen["wrong"][-1]
    assert {name[:3] for name in vms(seen["left"])} == {"eng"}
    assert len(vms(seen["cleared"])) == 24
    assert vms(seen["condition"]) == ["eng-03"]


def test_enter_shows_all_about_a_vm_and_its_processes(host: GpuHost) -> None:
    async def run() -> tuple[list[str], list[str], list[str]]:
        async with screen(app_of(host), WIDE) as pilot:
            await settle(pilot, "down", "enter")
            detail = shown(pilot)
            await settle(pilot, "escape", "question_mark")
            keys = shown(pilot)
            await settle(pilot, "q", "tab", "down", "down", "enter")
            return detail, keys, shown(pilot)

    detail, keys, one_gpu = asyncio.run(run())
    text = "\n".join(detail)
    assert detail[0] == "cad-02"
    assert "owner:               ada" in detail
    assert "labels:              site=ghent" in detail
    assert f"vGPU:                L40S-8Q on {CORDONED}, " in text
    assert "on the same GPU:     cad-01, cad-03, cad-04" in detail
    assert any(re.fullmatch(r"highest in 35 days:  [0-9.]+ GiB", line) for line in detail)
    assert "licence:             licensed" in detail
    assert "  python3  " in text
    assert keys[0] == "vgpuctl top: keys"
    assert any(line.startswith("s, S ") for line in keys)
    assert {name[:3] for name in vms(one_gpu)} == {"cad"}


def test_the_strip_of_events_grows_and_goes_and_the_interval_changes(host: GpuHost) -> None:
    async def run() -> list[tuple[int, str]]:
        seen = []
        async with screen(app_of(host), WIDE) as pilot:
            for key in ("e", "e", "e", "plus", "minus", "minus", "p"):
                await settle(pilot, key)
                lines = shown(pilot)
                seen.append((len(lines) - lines.index("EVENTS") if "EVENTS" in lines else 0, lines[0]))
        return seen

    seen = asyncio.run(run())
    assert [height for height, _ in seen[:3]] == [22, 0, 6]
    assert [line.split("   ")[3] for _, line in seen[3:6]] == ["every 2 s", "every 5 s", "every 10 s"]
    assert seen[-1][1].endswith("PAUSED")


def test_a_pause_keeps_the_values_and_a_slow_look_never_holds_up_keys(host: GpuHost) -> None:
    goes_on, samples = Event(), []

    def sample() -> Reading:
        samples.append(1)
        if len(samples) > 1:
            goes_on.wait()
        return look_with_events(host)

    async def run() -> tuple[list[str], list[str]]:
        app = app_of(host, sample)
        async with screen(app, WIDE) as pilot:
            await pilot.press("p", "p", "S")  # the end of a pause samples at once
            await pilot.pause()
            during = shown(pilot)
            await pilot.press("p")
            goes_on.set()
            await settle(pilot)
            return during, shown(pilot)

    during, after = asyncio.run(run())
    assert len(samples) == 2
    assert vms(during)[0] == "vdi-010", "it is sorted the other way round while the host is read"
    assert after[0].endswith("PAUSED")


def test_a_host_that_cannot_be_read_keeps_the_old_values_and_says_why(host: GpuHost) -> None:
    answers: list[Callable[[], Reading]] = [lambda: look_with_events(host)]
    agent = UsageSource(connect("agent:/nonexistent/agent.sock"), None)

    async def run() -> tuple[list[str], list[str], list[str]]:
        app = app_of(host, lambda: answers[0]())
        async with screen(app, WIDE) as pilot:
            answers[0] = agent.sample
            await settle(pilot, "p", "p")
            old = shown(pilot)
            answers[0] = lambda: look_with_events(host)
            await settle(pilot, "p", "p")
            new = shown(pilot)
        async with screen(app_of(host, agent.sample), NARROW) as pilot:
            return old, new, shown(pilot)

    old, new, never = asyncio.run(run())
    assert old[0].endswith("OLD")
    assert old[-1].startswith("values are old; the host agent")
    assert "trying again every 5 s" in old[-1]
    assert len(vms(old)) == 24
    assert not new[0].endswith("OLD")
    assert new[-1].startswith("q quit")
    assert never[0] == "vgpuctl top   no values yet"
    assert "agent" in never[-1]


def test_names_of_guests_are_no_markup_and_do_not_control_the_terminal(tmp_path: Path) -> None:
    text = f"""
version: 1
gpus:
  - {{model: T4, vgpus: [{{profile: T4-4Q, vm: "{EVIL}", running: true}}]}}
"""
    evil = host_of(open_sim_host(tmp_path, text=text, clock=EagerClock()), None)

    async def run() -> tuple[list[str], list[str]]:
        async with screen(app_of(evil), WIDE) as pilot:
            table = shown(pilot)
            await settle(pilot, "enter")
            return table, shown(pilot)

    table, detail = asyncio.run(run())
    assert any(line.startswith(EVIL) for line in table)
    assert detail[0] == EVIL
    row = Named("a\x1b[31mb\n\u202ec")
    words = LineMaker(has_unicode=True).row(place(VGPU_FIELDS[:1], (row,), 30), row)
    assert words[0][0].rstrip() == "a\N{REPLACEMENT CHARACTER}[31mb \N{REPLACEMENT CHARACTER}c"


class Named:
    """A row with a name."""

    def __init__(self, name: str) -> None:
        self.vm = name
        self.index = None


def test_a_bar_has_a_shape_that_says_what_its_colour_says() -> None:
    blocks, ascii_only = LineMaker(has_unicode=True), LineMaker(has_unicode=False)
    assert [blocks.filled(ratio, 4) for ratio in (0.0, 0.001, 0.5, 1.0, 1.7)] == ["", "▏", "██", "████", "████"]
    header = ascii_only.header(place(GPU_FIELDS, (), 150), "gpu", descending=True)
    assert " ".join("".join(word for word, _ in header).split()[:6]) == "GPUv MODEL MODE SCHEDULER SM MEM"
    assert all(word.isascii() for word, _ in header)
    assert [ascii_only.filled(ratio, 4) for ratio in (0.0, 0.001, 0.5, 1.2)] == ["", "#", "##", "####"]
    assert [cut(text, 5) for text in ("ab", "abcdefg", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 4)] == [
        "ab   ", "abcd~", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 2 + "~",
    ]  # fmt: skip


@pytest.mark.parametrize("has_colours", [True, False])
def test_without_colours_there_are_none(host: GpuHost, has_colours: bool) -> None:
    async def run() -> set[str]:
        async with screen(app_of(host, has_colours=has_colours), WIDE) as pilot:
            compositor: Any = pilot.app.screen._compositor
            styles = [segment.style for strip in compositor.render_strips() for segment in strip if segment.style]
            return {
                color.name
                for style in styles
                for color in (style.color, style.bgcolor)
                if color and not color.is_default
            }

    assert ({"green", "yellow", "red"} <= asyncio.run(run())) is has_colours


def test_an_answer_that_comes_when_the_screen_ends_is_dropped(host: GpuHost) -> None:
    app = app_of(host)

    async def run() -> None:
        async with screen(app, WIDE):
            await app.screen.remove_children()
            app.on_top_app_answered(TopApp.Answered(app.paint))

    asyncio.run(run())


def test_the_picture_in_the_readme_shows_this_screen(tmp_path: Path) -> None:
    svg = asyncio.run(take_picture(tmp_path))
    if os.environ.get("VGPUCTL_REGENERATE"):
        PICTURE.write_text(svg, encoding="utf-8")
    wanted = picture_text(PICTURE.read_text(encoding="utf-8"))
    assert picture_text(svg) == wanted, "run the tests with VGPUCTL_REGENERATE=1"

# SPDX-License-Identifier: Apache-2.0
"""The makers' own programs that tell the use of their cards: stand-ins print what the real ones printed."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from vgpuctl.host.usage.child import UsageProcess
from vgpuctl.host.usage.maker_tools import TOOLS, ToolRunner, amd_smi, hy_smi
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.host.usage.nvml_locks import changing
from vgpuctl.host.usage.processes import LateProgram
from vgpuctl.makers import MAKERS
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.result_reader import read_value
from vgpuctl.model.usage import MAX_VALUE, SYSFS_SOURCE, EngineUse, GpuUse, UsageSample, VgpuUse
from vgpuctl.value import replace

DATA = Path(__file__).resolve().parents[2] / "data/usage_tools"
GIB, MIB = 1 << 30, 1 << 20
BY_NAME = {tool.name: tool for tool in TOOLS}
PRINTS: dict[str, dict[str, str]] = {
    "amd-smi": {
        "list --json": "amd-smi-list.json",
        "metric --vf=0000:0c:02.0 --guest-data --json": "amd-smi-guest-data.json",
        "metric --usage --power --temperature --energy --ecc --json": "amd-smi-metric.json",
    },
    "cnmon": {"": "cnmon.txt"},
    "efsmi": {"-q": "efsmi.txt"},
    "hy-smi": {"--showuse --showmeminfo vram --showpower --showtemp --showbus --json": "hy-smi.json"},
    "ixsmi": {"": "ixsmi.txt"},
    "kunlun-xpu-smi": {"-q": "kunlun-xpu-smi.txt"},
    "mthreads-gmi": {"--query --json": "mthreads-gmi.json"},
    "mx-smi": {"": "mx-smi.txt"},
    "npu-smi": {"info": "npu-smi-910b.txt"},
}
IDLE = EngineUse(sm=0.0)
USES: dict[str, tuple[GpuUse, ...]] = {
    "amd-smi": (
        GpuUse(
            "0000:0c:00.0",
            "amd-smi",
            engines=EngineUse(sm=0.37, memory=0.05),
            power_watts=140.0,
            energy_joules=5000.0,
            temperatures={"hotspot": 41.0, "memory": 36.0},
            ecc_errors={"corrected": 2, "uncorrected": 0},
        ),
    ),
    "cnmon": tuple(
        GpuUse(
            address,
            "cnmon",
            memory_size_bytes=20638 * MIB,
            memory_used_bytes=0,
            engines=IDLE,
            power_watts=107.0,
            power_limit_watts=250.0,
            temperatures={"gpu": celsius},
        )
        for address, celsius in (("0000:13:00.0", 28.0), ("0000:16:00.0", 32.0))
    ),
    "efsmi": (
        GpuUse(
            "0000:17:00.0",
            "efsmi",
            serial="SERIAL1",
            memory_size_bytes=42976 * MIB,
            memory_used_bytes=0,
            memory_reserved_bytes=1129 * MIB,
            engines=EngineUse(sm=0.0, encoder=0.0, decoder=0.0),
            power_watts=96.0,
            power_limit_watts=300.0,
            temperatures={"gpu": 35.0},
        ),
    ),
    "hy-smi": (
        GpuUse(
            "0000:09:00.0",
            "hy-smi",
            memory_size_bytes=65520 * MIB,
            memory_used_bytes=64169 * MIB,
            engines=IDLE,
            power_watts=91.0,
            temperatures={"gpu": 54.0, "hotspot": 57.0, "memory": 51.0},
        ),
    ),
    "ixsmi": tuple(
        GpuUse(
            address,
            "ixsmi",
            memory_size_bytes=32 * GIB,
            memory_used_bytes=116 * MIB,
            engines=IDLE,
            power_watts=watts,
            power_limit_watts=limit,
            temperatures={"gpu": celsius},
        )
        for address, watts, limit, celsius in (("0000:13:00.0", None, None, 32.0), ("0000:16:00.0", 93.0, 350.0, 30.0))
    ),
    "kunlun-xpu-smi": (
        GpuUse(
            "0000:01:00.0",
            "kunlun-xpu-smi",
            uuid="GPU-00000000-0000-4000-8000-000000000001",
            serial="SERIAL1",
            memory_size_bytes=96 * GIB,
            memory_used_bytes=0,
            memory_reserved_bytes=0,
            engines=IDLE,
            power_watts=76.0,
            power_limit_watts=350.0,
            temperatures={"gpu": 46.0},
        ),
    ),
    "mthreads-gmi": (
        GpuUse(
            "0000:2a:00.0",
            "mthreads-gmi",
            uuid="00000000-0000-4000-8000-000000000001",
            serial="SERIAL1",
            vbios="4.3.41",
            memory_size_bytes=80 * GIB,
            memory_used_bytes=0,
            engines=EngineUse(sm=0.0, memory=0.0),
            power_watts=96.66,
            power_limit_watts=950.0,
            temperatures={"gpu": 27.0},
        ),
    ),
    "mx-smi": (
        GpuUse(
            "0000:01:00.0",
            "mx-smi",
            memory_size_bytes=64 * GIB,
            memory_used_bytes=858 * MIB,
            engines=IDLE,
            power_watts=48.0,
            power_limit_watts=350.0,
            temperatures={"gpu": 45.0},
        ),
    ),
    "npu-smi": tuple(
        GpuUse(
            address,
            "npu-smi",
            memory_size_bytes=64 * GIB,
            memory_used_bytes=used * MIB,
            engines=IDLE,
            power_watts=watts,
            temperatures={"gpu": celsius},
        )
        for address, used, watts, celsius in (("0000:66:00.0", 3412, 94.4, 42.0), ("0000:d0:00.0", 3404, 96.4, 43.0))
    ),
}


def stand_in(directory: Path, name: str, text: str, deadline_seconds: float = 30.0) -> ToolRunner:
    """Return what runs a shell script as a maker's program."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    tool = replace(BY_NAME[name], paths=(str(directory / "missing"), str(path)))
    return ToolRunner([tool], require_trusted=lambda _: None, deadline_seconds=deadline_seconds)


def prints(files: dict[str, str]) -> str:
    """Return a script that prints a file for each command."""
    cases = [f"{shlex.quote(words)}) cat {shlex.quote(str(DATA / name))};;" for words, name in files.items()]
    return "\n".join(['case "$*" in', *cases, "*) exit 64;;", "esac"])


def reading(directory: Path, name: str, *files: str) -> ToolReading:
    """Return what one program tells that prints these files instead of the usual ones."""
    usual = PRINTS[name]
    runner = stand_in(directory, name, prints(dict(zip(usual, files or usual.values(), strict=False))))
    result, failed = runner.read([name])
    assert failed == {}
    return result


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_program_printed(tmp_path: Path, name: str) -> None:
    assert reading(tmp_path, name).gpus == USES[name]


def test_the_framebuffer_that_guests_of_amd_use(tmp_path: Path) -> None:
    assert reading(tmp_path, "amd-smi").vgpus == (
        VgpuUse("0000:0c:00.0", ("0000:0c:02.0",), memory_used_bytes=512 * MIB),
    )


def test_other_versions(tmp_path: Path) -> None:
    (pro,) = reading(tmp_path, "npu-smi", "npu-smi-310p.txt").gpus
    assert (pro.address, pro.memory_used_bytes, pro.power_watts) == ("0000:84:00.0", 1839 * MIB, None)
    (old,) = reading(tmp_path, "npu-smi", "npu-smi-910a.txt").gpus
    assert (old.memory_used_bytes, old.memory_size_bytes) == (1365 * MIB, 32 * GIB), "HBM, and not DDR"
    (metax,) = reading(tmp_path, "mx-smi", "mx-smi-2.1.txt").gpus
    assert (metax.power_watts, metax.power_limit_watts) == (97.0, None)


def test_a_card_without_an_address_is_no_use(tmp_path: Path) -> None:
    runner = stand_in(tmp_path, "cnmon", prints({"": "cnmon-old.txt"}))
    result, failed = runner.read(["cnmon"])
    assert result == ToolReading()
    assert "no card with its PCI address" in failed["cnmon"]


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize(
    "text", ["exit 3", "echo '[]'", "echo '{\"GPU\": 3}'", "head -c 9000 /dev/urandom", "yes '|' | head -c 9000000"]
)
def test_a_program_that_fails_is_named(tmp_path: Path, name: str, text: str) -> None:
    result, failed = stand_in(tmp_path, name, text).read([name])
    assert result == ToolReading()
    assert str(tmp_path / name) in failed[name]


def test_a_program_that_is_not_installed_is_no_failure() -> None:
    runner = ToolRunner([replace(tool, paths=("/none",)) for tool in TOOLS])
    assert runner.read(BY_NAME) == (ToolReading(), {})


def test_a_program_that_others_can_change_is_not_started(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "cnmon"
    path.write_text(f"#!/bin/sh\ntouch {mark}\n")
    path.chmod(0o777)
    _, failed = ToolRunner([replace(BY_NAME["cnmon"], paths=(str(path),))]).read(["cnmon"])
    assert "must belong to root" in failed["cnmon"]
    assert not mark.exists()


def test_a_program_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    _, failed = stand_in(tmp_path, "cnmon", "sleep 60", 0.2).read(["cnmon"])
    assert "did not end within 0.2 s" in failed["cnmon"]


def test_the_rest_comes_from_sysfs(tmp_path: Path) -> None:
    card = tmp_path / "card"
    card.mkdir()
    (card / "current_link_width").write_text("16\n")
    (card / "unique_id").write_text("sysfs\n")
    (card / "config").write_bytes(b"\x36\x1e\xff\xff")
    process = UsageProcess(tmp_path, stand_in(tmp_path, "efsmi", prints(PRINTS["efsmi"])))
    sample = process.read([("0000:17:00.0", str(card), "efsmi"), ("0000:18:00.0", str(card), "efsmi")])
    first, second = sample.gpus
    assert (first.source, first.up, first.pcie_link_width_lanes) == ("efsmi", True, 16)
    assert (first.serial, first.power_watts) == ("SERIAL1", 96.0), "what the program tells counts"
    assert (second.source, second.serial) == (SYSFS_SOURCE, "sysfs"), "of this card it tells nothing"


class Printed:
    """Stands for the runs of a program: it prints its usual texts, of which something is changed."""

    seconds_left = 60.0

    def __init__(self, name: str, rng: Random) -> None:
        self._texts = {words: (DATA / file).read_text(encoding="utf-8") for words, file in PRINTS[name].items()}
        self._rng = rng

    def __call__(self, *words: str) -> str:
        """Return a text with something cut out, doubled, or replaced; in JSON mostly a value."""
        text = self._texts.get(" ".join(words), "")
        if text.startswith(("{", "[")) and self._rng.random() < 0.8:
            with suppress(ValueError):  # hy-smi's is no JSON
                return json.dumps(self._change(json.loads(text)))
        for _ in range(self._rng.randint(0, 4)):
            begin = self._rng.randint(0, len(text))
            end = begin + self._rng.choice([1, 3, 20, 200])
            inside = self._rng.choice(["", text[begin:end] * 2, *ODD])
            text = text[:begin] + inside + text[end:]
        return text

    def _change(self, value: object) -> object:
        if self._rng.random() < 0.05:
            return self._rng.choice(ODD_VALUES)
        if isinstance(value, dict):
            return {key: self._change(item) for key, item in value.items()}
        return [self._change(item) for item in value] if isinstance(value, list) else value


ODD_VALUES = (
    None,
    True,
    -1,
    1 << 60,
    1 << 70,
    1e300,
    math.inf,
    [[[[{}]]]],
    {"gpu": []},
    -math.inf,
    math.nan,
    "",
    "x",
    "1e999",
    [],
    {},
    [1],
    {"value": 1},
    "9" * 400,
)
ODD = ("9" * 400, "-1", "1e999", "NaN", "null", "[]", "{}", '"', "|", "\x00", "℃", "٣", ": ", "0000:zz:00.0", "true")


@pytest.mark.parametrize("name", BY_NAME)
def test_no_text_is_an_error_of_a_reader(name: str) -> None:
    """Only what is possible comes out of a damaged text, and the process that asked reads it."""
    for seed in range(300):
        result = BY_NAME[name].read(Printed(name, Random(seed)))  # type: ignore[arg-type]
        sent = json.dumps(to_json_value(UsageSample(0.0, 0.0, result.gpus, result.vgpus)), allow_nan=False)
        assert read_value(UsageSample, json.loads(sent)).gpus == result.gpus, seed
        for use in (*result.gpus, *result.vgpus):
            memory = (use.memory_size_bytes, use.memory_used_bytes, use.memory_reserved_bytes)
            own = (use.power_watts, *use.temperatures.values()) if isinstance(use, GpuUse) else ()
            values = (*memory, use.engines.sm, *own)
            assert all(value is None or 0 <= value < MAX_VALUE for value in values), (seed, use)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TypeError("unhashable"), "unhashable"),
        (OverflowError(), "OverflowError"),
        (RecursionError("too\ndeep"), "too deep"),
        (KeyError("gpu"), "'gpu'"),
    ],
)
def test_an_error_of_one_reader_costs_only_its_own_values(tmp_path: Path, error: Exception, text: str) -> None:
    def fail(_run: ProgramRuns) -> ToolReading:
        raise error

    odd, other = tmp_path / "odd", tmp_path / "efsmi"
    for path, script in ((odd, ""), (other, prints(PRINTS["efsmi"]))):
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    tools = [UsageTool("odd", (str(odd),), fail), replace(BY_NAME["efsmi"], paths=(str(other),))]
    result, failed = ToolRunner(tools, require_trusted=lambda _: None, deadline_seconds=30.0).read(["odd", "efsmi"])
    assert (result.gpus, failed) == (USES["efsmi"], {"odd": f"{odd}: {text}"})


def test_memory_that_no_card_has_is_unknown() -> None:
    guest = json.dumps([{"guest_data": {"fb_usage": {"value": 1 << 45, "unit": "MB"}}}])
    assert amd_smi.parse_guest_data(guest, "0000:3b:00.0", "0000:3b:02.0").memory_used_bytes is None
    (card,) = hy_smi.parse(json.dumps({"c": {"PCI Bus": "0000:3b:00.0", "vram Total Memory (GiB)": "9" * 12}}))
    assert card.memory_size_bytes is None


class Widened:
    """Stands for the runs of a program: it prints its usual texts, with many spaces after each number."""

    seconds_left = 60.0

    def __init__(self, name: str, spaces: int) -> None:
        texts = {words: (DATA / file).read_text(encoding="utf-8") for words, file in PRINTS[name].items()}
        number_end = re.compile("(?<=[0-9])(?=[ /%CW\u2103M])")
        self._texts = {words: number_end.sub(" " * spaces, text) for words, text in texts.items()}

    def __call__(self, *words: str) -> str:
        """Return the text of a command."""
        return self._texts[" ".join(words)]


@pytest.mark.parametrize("spaces", [300, 1 << 20])
@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_far_longer_than_a_cell_is_unknown(name: str, spaces: int) -> None:
    """A pattern that tries all ways to divide a million spaces would not end."""
    result = BY_NAME[name].read(Widened(name, spaces))  # type: ignore[arg-type]
    assert result.gpus
    if name in ("amd-smi", "hy-smi"):
        assert result.gpus == USES[name], "spaces between the values of JSON"
        return
    for use in result.gpus:
        values = (use.memory_used_bytes, use.power_watts, use.temperatures.get("gpu"))
        assert values == (None, None, None)


def test_none_runs_while_a_layout_is_changed(tmp_path: Path) -> None:
    """Gim cannot be unloaded while amd-smi has it open."""
    mark, card = tmp_path / "ran", tmp_path / "card"
    card.mkdir()
    process = UsageProcess(tmp_path, stand_in(tmp_path, "amd-smi", f"touch {mark}; exit 1"))
    targets = [("0000:0c:00.0", str(card), "amd-smi")]
    with changing(tmp_path):
        sample = process.read(targets)
    assert (sample.gpus[0].source, sample.failed_sources, mark.exists()) == (SYSFS_SOURCE, {}, False)
    assert "amd-smi" in process.read(targets).failed_sources
    assert mark.exists()


def test_every_maker_names_a_program_that_there_is() -> None:
    assert {maker.usage_tool for maker in MAKERS} - {None} == set(BY_NAME)
    assert set(PRINTS) == set(USES) == set(BY_NAME)


def test_one_that_hangs_is_not_started_again(tmp_path: Path) -> None:
    """What has been killed, and does not end, waits in the kernel: here a process that the test ends."""
    runner = stand_in(tmp_path, "cnmon", prints(PRINTS["cnmon"]))
    with subprocess.Popen(["sleep", "60"]) as child:
        runner._late["cnmon"] = LateProgram("late", child)
        _, failed = runner.read(["cnmon"])
        child.kill()
        child.wait()
    assert f"it still hangs: process {child.pid}" in failed["cnmon"]
    assert runner.read(["cnmon"])[1] == {}, "it has ended"

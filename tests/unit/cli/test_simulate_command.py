# SPDX-License-Identifier: Apache-2.0
"""The command simulate: every option, its output, the files it creates and the input it refuses."""

from __future__ import annotations

import os
import resource
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, child, child_environment
from vgpuctl.config.vm_fields import PLACEMENT_POLICIES

Sim = Callable[..., Ran]
CSV = "arrival_seconds,departure_seconds,profile\n0,60,L40S-2B\n30,,8Q\n30,,8Q\n"
DAY = "simulate --generate vdi-day"


@pytest.fixture
def requests(tmp_path: Path) -> str:
    path = tmp_path / "requests.csv"
    path.write_text(CSV)
    return str(path)


def test_the_page_has_profiles_and_the_line_over_time(sim: Sim, requests: str) -> None:
    ran = sim(f"simulate --requests {requests} --placement depth", "l40s-x4")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[:2] == ["on 4 x NVIDIA L40S (48 GiB): 192 GiB", "3 requests from 00:00 to 00:01"]
    assert lines[4].split() == ["depth", "3", "0", "0", "5.2", "%", "9.4", "%", "1.5"]
    assert [line.split()[:3] for line in lines[7:9]] == [["L40S-2B", "2", "GiB"], ["L40S-8Q", "8", "GiB"]]
    assert sum(line.startswith("00:0") for line in lines) == 12


def test_the_document_fits_its_schema_and_names_the_files(sim: Sim, tmp_path: Path) -> None:
    csv, picture = tmp_path / "kept.csv", tmp_path / "day.svg"
    ran = sim(f"{DAY} --write {csv} --plot {picture} --json", "l40s-x4")
    data = ran.document["data"]
    assert (ran.status, data["written"], data["plot"]) == (0, str(csv), str(picture))
    assert ran.document["changed"] is False
    (policy,) = data["policies"]
    assert policy["policy"] == PLACEMENT_POLICIES[0]
    assert len(policy["timeline"]) == 240
    assert ET.parse(picture).getroot().tag.endswith("svg")
    again = sim(f"simulate --requests {csv} --json", "l40s-x4").document["data"]
    assert again["policies"] == data["policies"]


def test_compare_has_one_line_for_each_policy(sim: Sim, tmp_path: Path) -> None:
    picture = tmp_path / "all.png"
    ran = sim(
        f"simulate --generate churn --days 2 --count 70 --seed 3 --host-count 2 --compare --plot {picture}", "l40s-x4"
    )
    assert [line.split()[0] for line in ran.out.splitlines()[4:]] == list(PLACEMENT_POLICIES)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert ran.err == f"picture: {picture}\n"


def test_the_same_data_is_the_same_picture(sim: Sim, tmp_path: Path, requests: str) -> None:
    for name in ("a.svg", "b.svg"):
        assert sim(f"simulate --requests {requests} --plot {tmp_path / name}", "l40s-x4").status == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_keep_counts_vgpus(sim: Sim) -> None:
    ran = sim("simulate --generate churn --count 20 --mix 4Q:1 --keep --json", "mixed")
    assert ran.document["data"]["kept_mib"] == 4096
    (policy,) = ran.document["data"]["policies"]
    assert policy["timeline"][0]["allocated_mib"] == 4096 + 4096


def test_new_cards_have_all_their_gpus(sim: Sim) -> None:
    ran = sim("simulate --add-cards a16:3 --add-cards L40S:1 --count 20 --json", "empty")
    gpus = {gpu["model"]: gpu["count"] for gpu in ran.document["data"]["gpus"]}
    assert gpus == {"NVIDIA A16": 12, "NVIDIA L40S": 1}
    (policy,) = ran.document["data"]["policies"]
    assert (policy["admitted"], policy["refused"]) == (ran.document["data"]["requests"], 0)
    mixed = sim("simulate --add-cards L40S:2 --host-count 3 --json", "l40s-x4").document["data"]
    assert [gpu["count"] for gpu in mixed["gpus"]] == [3 * (4 + 2)]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("--requests CSV --generate churn", 2, "--generate applies to generated requests"),
        ("--requests CSV --seed 2", 2, "--seed applies to generated requests"),
        ("--requests CSV --write x.csv", 2, "--write saves generated requests"),
        ("--requests missing.csv", 2, "there is no CSV file missing.csv"),
        ("--requests /", 2, "/ cannot be read: it is a directory"),
        ("--requests FIFO", 2, "it is a pipe, not a regular file"),
        ("--requests EMPTY", 2, "is empty"),
        ("--requests LATIN", 2, "is not UTF-8 text"),
        ("--requests BAD", 2, "bad.csv:3: no GPU here offers L40S-2X; did you mean L40S-2"),
        ("--compare --placement depth", 2, "--compare runs every policy"),
        ("--mix 2B", 2, "--mix 2B: expected PROFILE:WEIGHT"),
        ("--mix 2B:0", 2, "--mix 2B:0: expected PROFILE:WEIGHT"),
        ("--add-cards A16", 2, "--add-cards A16: expected MODEL:N"),
        ("--add-cards A16:0", 2, "--add-cards A16:0: expected MODEL:N"),
        ("--add-cards A17:3", 2, "the simulator has no card 'A17'"),
        ("--add-cards mtty:1", 2, "the simulator has no card 'mtty'"),
        ("--add-cards 'RTX 4090:1'", 2, "this card has no vGPU types"),
        ("--generate churn --mix 2X:1", 2, "no GPU of NVIDIA L40S offers 2X"),
        ("--generate churn --count 999999 --days 366", 2, "the maximum is 1000000 requests"),
        ("--plot x.pdf", 2, "--plot x.pdf: the name has no known picture format"),
        ("--plot nowhere/x.svg", 2, "--plot nowhere/x.svg: there is no directory nowhere"),
        ("--plot x.svg --write x.svg", 2, "--plot and --write name the same file"),
        ("--write CSV", 3, "--write requests.csv: the file already exists"),
        ("--plot FIFO", 3, "the file already exists"),
    ],
)
def test_invalid_input_is_refused_before_anything_is_written(
    sim: Sim, requests: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, status: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.svg")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "latin.csv").write_bytes(CSV.encode() + b"1,,\xfc\n")
    (tmp_path / "bad.csv").write_text(CSV.replace("30,,8Q", "30,,L40S-2X", 1))
    before = {p.name for p in tmp_path.iterdir() if p.name != "state"}
    for word, name in {"CSV": Path(requests).name, "FIFO": "fifo.svg", "EMPTY": "empty.csv"}.items():
        words = words.replace(f" {word}", f" {name}")
    words = words.replace("LATIN", "latin.csv").replace("BAD", "bad.csv")
    ran = sim(f"simulate {words}", "l40s-x4")
    assert ran.status == status, ran.err
    assert says in ran.err
    assert {p.name for p in tmp_path.iterdir() if p.name != "state"} == before
    assert Path(requests).read_text() == CSV


def test_a_partly_written_picture_is_removed(tmp_path: Path, requests: str) -> None:
    picture = tmp_path / "day.png"
    limits = (4096, 4096)
    ran = child(
        "--host", "sim:l40s-x4", "simulate", "--requests", requests, "--plot", str(picture),
        env=child_environment(MPLCONFIGDIR=str(tmp_path), XDG_STATE_HOME=str(tmp_path / "state")),
        preexec_fn=lambda: None,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    picture.unlink()
    full = child(
        "--host", "sim:l40s-x4", "simulate", "--requests", requests, "--plot", str(picture),
        env=child_environment(MPLCONFIGDIR=str(tmp_path), XDG_STATE_HOME=str(tmp_path / "state")),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
    )  # fmt: skip
    assert full.returncode == 1
    assert "cannot be written: File too large   [os-error]" in full.stderr
    assert not picture.exists()


def test_missing_matplotlib_is_reported_before_the_work(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "matplotlib"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('No module named matplotlib')\n")
    env = child_environment(XDG_STATE_HOME=str(tmp_path / "state"))
    env["PYTHONPATH"] = f"{broken.parent}:{env['PYTHONPATH']}"
    ran = child("--host", "sim:l40s-x4", "simulate", "--plot", str(tmp_path / "a.svg"), env=env)
    assert ran.returncode == 6
    assert "--plot needs matplotlib" in ran.stderr
    assert "-m pip install 'vgpuctl[plot]'; or omit --plot" in ran.stderr
    without = child("--host", "sim:l40s-x4", "simulate", env=env)
    assert without.returncode == 0, without.stderr

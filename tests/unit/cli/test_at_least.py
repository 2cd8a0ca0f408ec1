# SPDX-License-Identifier: Apache-2.0
"""If the placement of a vGPU is unknown, every command shows the same result: a number, or the minimum that fits."""

from __future__ import annotations

import pytest

GPU = "0000:3b:00.0"
TEXT = """version: 1
nvidia: {{driver: "570.90.05"}}
storage: {{pools: [{{name: default}}]}}
gpus:
  - {{model: RTX PRO 6000, address: "0000:3b:00.0", mixed_size: true, vgpus: [{{profile: {}}}]}}
"""


@pytest.fixture
def host(sim, tmp_path):
    def with_one(profile):
        file = tmp_path / "host.yaml"
        file.write_text(TEXT.format(profile))
        return lambda line: sim(line, str(file))

    return with_one


def test_a_small_vgpu_at_an_unknown_placement_gives_a_minimum(host):
    run = host("DC-8Q")
    (row,) = (p for p in run("list-profiles --json").document["data"] if p["profile"] == "DC-12Q")
    assert (row["free"], row["free_at_least"], row["gpus"]) == (
        None, 6, [{"address": GPU, "free": None, "free_at_least": 6}],
    )  # fmt: skip
    assert f"at least 6  {GPU}" in run("list-profiles").out
    assert f"{GPU}: at least 6" in run("list-profiles -o wide").out
    reported = run("explain DC-12Q --json").document["data"]
    assert (reported["free"], reported["free_at_least"], reported["gpus"][0]["free_at_least"]) == (None, 6, 6)
    assert "DC-12Q: at least 6 more on this host" in run("explain DC-12Q").out
    assert "\nat least: the driver does not report where its vGPUs are, so more may fit\n" in run(f"show-gpu {GPU}").out
    (kind,) = (t for t in run(f"show-gpu {GPU} --json").document["data"]["types"] if t["profile"] == "DC-12Q")
    assert (kind["free"], kind["free_at_least"]) == (None, 6)
    assert run("fits --profile DC-12Q:6").out.startswith("yes: 6 x DC-12Q")
    more = run("fits --profile DC-12Q:7")
    assert "at least 6 fit; whether more fit on 0000:3b:00.0 is not known" in more.out
    refused = run("create-vm vm --profile DC-12Q:7 --json")
    (seen,) = refused.document["error"]["facts"]["gpus"]
    assert (refused.status, seen["free"], seen["free_at_least"]) == (4, None, 6)
    assert "at least 6" in run("create-vm vm --profile DC-12Q:7").err
    assert run("create-vm vm --profile DC-12Q:6 --dry-run").status == 0


def test_a_large_vgpu_at_an_unknown_placement_gives_an_exact_count(host):
    run = host("DC-48Q")
    (row,) = (p for p in run("list-profiles --json").document["data"] if p["profile"] == "DC-8Q")
    assert (row["free"], row["free_at_least"]) == (6, 6)
    assert run("explain DC-8Q --json").document["data"]["free"] == 6
    assert run("fits --profile DC-8Q:6").out.startswith("yes: 6 x DC-8Q")
    no = run("fits --profile DC-8Q:7")
    assert (no.status, no.out.splitlines()[1:]) == (4, ["  all but 1 x DC-8Q fit", f"  {GPU}  DC-8Q alone: 6 more"])

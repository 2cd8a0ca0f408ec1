# SPDX-License-Identifier: Apache-2.0
"""simulate reads a host once, changes nothing, and replays on its GPUs."""

from __future__ import annotations

from random import Random

import pytest

from tests.hosts import create, open_sim_host, picture, request
from vgpuctl.config.vm_fields import PLACEMENT_POLICIES
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.simulate import Simulation, SimulationInputs, SimulationRequest, simulate
from vgpuctl.simulate.trace import parse_trace
from vgpuctl.value import replace

HEADER = "arrival_seconds,departure_seconds,profile,number,name\n"
TWO_MODELS = """version: 1
gpus:
  - {model: L40S, count: 2}
  - {model: A16, count: 2}
"""


def replay(host, text, placement="depth", **options):
    """Replay recorded requests."""
    request = SimulationRequest(requests="week.csv", placement=placement, **options)
    return simulate(host.ports, request, SimulationInputs(Random(1), parse_trace(HEADER + text, "week.csv")))


def generate(host, pattern, weights=None, **options):
    """Replay generated requests."""
    request = SimulationRequest(generate=pattern, **options)
    return simulate(host.ports, request, SimulationInputs(Random(options.get("seed", 7)), weights=weights or {}))


def only(result: Simulation):
    (policy,) = result.data.policies
    return policy


def test_nothing_is_changed_and_the_gpus_are_taken_as_empty(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-40C", name="vm"))
    before = picture(host)
    text = "0,10,A100-4C,10,\n5,,A100-20C,1,\n10,,A100-20C,2,\n"
    run = only(replay(host, text))
    assert (run.admitted, run.refused, run.refused_though_free) == (2, 1, 0)
    assert (run.admitted_mib, run.peak_allocated_mib) == (10 * 4096 + 2 * 20480, 40960)
    assert picture(host) == before


def test_existing_vms_use_capacity(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    result = replay(host, "0,,A100-20C,1,\n1,,A100-4C,9,\n", keep=True)
    assert result.data.kept_mib == 4096
    run = only(result)
    assert (run.admitted, run.refused_though_free, run.peak_allocated_mib) == (1, 1, 40960)
    assert [row.profile for row in run.profiles] == ["A100-4C", "A100-20C"]


def test_one_name_serves_on_every_model_and_many_hosts_are_one_fleet(tmp_path):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    text = "".join(f"{n},,8Q,1,\n" for n in range(50))
    result = replay(host, text, "first-fit", host_count=3)
    assert [(gpu.model, gpu.count) for gpu in result.data.gpus] == [("NVIDIA L40S", 6), ("NVIDIA A16", 6)]
    run = only(result)
    assert run.admitted == 6 * 6 + 6 * 2
    assert run.profiles[0].profile == "8Q"


def test_an_unknown_profile_shows_its_line_and_a_near_name(tmp_path):
    host = open_sim_host(tmp_path)
    with pytest.raises(InvalidInput, match=r"week.csv:3: no GPU here offers A100-4Q; did you mean A100-4C"):
        replay(host, "0,,A100-4C,1,\n1,,A100-4Q,1,\n")


def test_unusable_gpus_are_excluded_with_a_warning(tmp_path):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    result = replay(host, "0,,A16-2B,1,\n")
    assert result.data.framebuffer_mib == 2 * 16384
    assert result.warnings == ("2 x NVIDIA L40S is not used: it offers none of the requested profiles",)


def test_a_host_without_vgpus_is_refused(tmp_path):
    with pytest.raises(HostCannot, match="no GPU of sim:empty offers a vGPU"):
        replay(open_sim_host(tmp_path, "empty"), "0,,2B,1,\n")


@pytest.mark.parametrize("pattern", ["vdi-day", "churn"])
def test_every_policy_gets_the_same_requests_and_they_can_be_saved(tmp_path, pattern):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    result = generate(host, pattern, days=1, compare=True)
    runs = result.data.policies
    assert [run.policy for run in runs] == list(PLACEMENT_POLICIES)
    assert len({tuple(row.requests for row in run.profiles) for run in runs}) == 1
    assert all(run.admitted + run.refused == result.data.requests > 10 for run in runs)
    saved = parse_trace("".join(result.csv), "saved.csv")
    request = SimulationRequest(requests="saved.csv", compare=True)
    again = simulate(host.ports, request, SimulationInputs(Random(1), saved))
    assert again.data.policies == runs


def test_new_gpus_are_simulated_beside_those_of_each_host(tmp_path):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    bought = tuple(replace(gpu, address=f"new {n}") for n, gpu in enumerate(observe_gpus(tmp_path / "a16", "a16")))
    request = SimulationRequest(requests="week.csv", placement="first-fit", host_count=2)
    inputs = SimulationInputs(
        Random(1), parse_trace(HEADER + "0,,A16-16Q,40,\n1,,A16-16Q,12,\n", "week.csv"), new_gpus=bought
    )
    result = simulate(host.ports, request, inputs)
    assert [(row.model, row.count) for row in result.data.gpus] == [("NVIDIA A16", 2 * (2 + 4))]
    assert (only(result).admitted, only(result).refused) == (1, 1)


def observe_gpus(path, scenario):
    return observe(open_sim_host(path, scenario).ports, ReadScope(types=True)).gpus


def test_a_mix_of_ones_own_and_its_limits(tmp_path):
    host = open_sim_host(tmp_path)
    result = generate(host, "vdi-day", {"4C": 3.0, "A100-20C": 1.0}, days=1, count=30)
    assert [row.profile for row in only(result).profiles] == ["A100-4C", "A100-20C"]
    assert len({line.rpartition(",")[2] for line in result.csv[1:]}) == 30
    with pytest.raises(InvalidInput, match="no request arrives in this time"):
        generate(host, "churn", {"4C": 1.0}, days=1, count=1, seed=15)


def test_without_a_policy_it_is_the_one_that_places_on_this_host(tmp_path):
    host = open_sim_host(tmp_path)
    assert only(replay(host, "0,,A100-4C,1,\n", None)).policy == PLACEMENT_POLICIES[0]
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\nplacement: {policy: breadth}\n")
    assert only(replay(host, "0,,A100-4C,1,\n", None)).policy == "breadth"

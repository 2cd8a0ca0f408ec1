# SPDX-License-Identifier: Apache-2.0
"""simulate reads a host once, changes nothing, and replays on its GPUs."""

from __future__ import annotations

from random import Random

import pytest

from tests.hosts import create, open_sim_host, picture, request
from vgpuctl.config.vm_fields import PLACEMENT_POLICIES
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.operations.simulate import GeneratedRequests, Hardware, RecordedRequests, SimulationResult, simulate
from vgpuctl.placement import trace_csv
from vgpuctl.placement.trace_request import Trace

HEADER = "arrival_seconds,departure_seconds,profile,number,name\n"
TWO_MODELS = """version: 1
gpus:
  - {model: L40S, count: 2}
  - {model: A16, count: 2}
"""


def recorded(text: str) -> RecordedRequests:
    return RecordedRequests("week.csv", trace_csv.parse_trace(HEADER + text, "week.csv"))


def only(result: SimulationResult) -> dict:
    (policy,) = result.data.policies
    return policy


def test_nothing_is_changed_and_the_gpus_are_taken_as_empty(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-40C", name="vm"))
    before = picture(host)
    text = "0,10,A100-4C,10,\n5,,A100-20C,1,\n10,,A100-20C,2,\n"
    run = only(simulate(host.ports, Hardware(), recorded(text), ["depth"]))
    assert (run.admitted, run.refused, run.refused_though_free) == (2, 1, 0)
    assert (run.admitted_mib, run.peak_allocated_mib) == (10 * 4096 + 2 * 20480, 40960)
    assert picture(host) == before


def test_existing_vms_use_capacity(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    result = simulate(host.ports, Hardware(keep=True), recorded("0,,A100-20C,1,\n1,,A100-4C,9,\n"), ["depth"])
    assert result.data.kept_mib == 4096
    run = only(result)
    assert (run.admitted, run.refused_though_free, run.peak_allocated_mib) == (1, 1, 40960)
    assert [row.profile for row in run.profiles] == ["A100-4C", "A100-20C"]


def test_one_name_serves_on_every_model_and_many_hosts_are_one_fleet(tmp_path):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    text = "".join(f"{n},,8Q,1,\n" for n in range(50))
    result = simulate(host.ports, Hardware(hosts=3), recorded(text), ["first-fit"])
    assert [(gpu.model, gpu.count) for gpu in result.data.gpus] == [("NVIDIA L40S", 6), ("NVIDIA A16", 6)]
    run = only(result)
    assert run.admitted == 6 * 6 + 6 * 2
    assert run.profiles[0].profile == "8Q"


def test_an_unknown_profile_shows_its_line_and_a_near_name(tmp_path):
    host = open_sim_host(tmp_path)
    with pytest.raises(InvalidInput, match=r"week.csv:3: no GPU here offers A100-4Q; did you mean A100-4C"):
        simulate(host.ports, Hardware(), recorded("0,,A100-4C,1,\n1,,A100-4Q,1,\n"), ["depth"])


def test_unusable_gpus_are_excluded_with_a_warning(tmp_path):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    result = simulate(host.ports, Hardware(), recorded("0,,A16-2B,1,\n"), ["depth"])
    assert result.data.framebuffer_mib == 2 * 16384
    assert result.warnings == ("2 x NVIDIA L40S offers nothing that is asked for",)


def test_a_host_without_vgpus_is_refused(tmp_path):
    with pytest.raises(HostCannot, match="no GPU of sim:empty offers a vGPU"):
        simulate(open_sim_host(tmp_path, "empty").ports, Hardware(), recorded("0,,2B,1,\n"), ["depth"])


def test_the_columns_of_the_alibaba_trace_are_mapped_to_each_models_profiles(tmp_path):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    rows = ["a,1,1,1,500,,LS,Running,0,9,", "b,1,1,1,500,A16,LS,Running,0,9,", "c,1,1,1,500,P100,LS,Running,0,9,"]
    read: Trace = trace_csv.parse_trace(
        "\n".join([",".join(trace_csv.ALIBABA_COLUMNS), *rows, "d,1,1,0,0,,BE,Failed,0,1,"]), "t"
    )
    result = simulate(host.ports, Hardware(), RecordedRequests("t", read), ["depth"])
    assert (result.data.requests, result.data.requests_without_gpu, result.data.models_not_here) == (3, 1, 1)
    numbers = {row.profile: row.requests for row in only(result).profiles}
    assert numbers == {"A16-8C|L40S-24Q": 2, "A16-8C": 1}


@pytest.mark.parametrize("pattern", ["vdi-day", "ai", "churn"])
def test_every_policy_gets_the_same_requests_and_they_can_be_saved(tmp_path, pattern):
    host = open_sim_host(tmp_path, text=TWO_MODELS)
    wanted = GeneratedRequests(pattern, Random(7), 1)
    result = simulate(host.ports, Hardware(), wanted, PLACEMENT_POLICIES)
    runs = result.data.policies
    assert [run.policy for run in runs] == list(PLACEMENT_POLICIES)
    assert len({tuple(row.requests for row in run.profiles) for run in runs}) == 1
    assert all(run.admitted + run.refused == result.data.requests > 10 for run in runs)
    kept = trace_csv.parse_trace("".join(result.csv), "kept.csv")
    again = simulate(host.ports, Hardware(), RecordedRequests("kept.csv", kept), PLACEMENT_POLICIES)
    assert again.data.policies == runs


def test_mig_instances_on_demand_serve_the_mig_mix(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    result = simulate(
        host.ports, Hardware(instances_on_demand=True, hosts=2), GeneratedRequests("mig", Random(1), 2), ["depth"]
    )
    assert {row.profile for row in only(result).profiles} <= {
        "H100-1-10C", "H100-2-20C", "H100-3-40C", "H100-4-40C", "H100-7-80C",
    }  # fmt: skip
    with pytest.raises(NotFound, match="offers a GPU instance"):
        simulate(
            open_sim_host(tmp_path / "t4", "t4").ports, Hardware(), GeneratedRequests("mig", Random(1), 2), ["depth"]
        )


def test_a_mix_of_ones_own_and_its_limits(tmp_path):
    host = open_sim_host(tmp_path)
    wanted = GeneratedRequests("churn", Random(1), 1, 1.0, 30, {"4C": 3.0, "A100-20C": 1.0})
    result = simulate(host.ports, Hardware(), wanted, ["depth"])
    assert [row.profile for row in only(result).profiles] == ["A100-4C", "A100-20C"]
    assert result.data.requests == 30
    with pytest.raises(InvalidInput, match="not one request comes"):
        simulate(host.ports, Hardware(), GeneratedRequests("churn", Random(1), 1, 1e-9, mix={"4C": 1.0}), ["depth"])


def test_without_a_policy_it_is_the_one_that_places_on_this_host(tmp_path):
    host = open_sim_host(tmp_path)
    wanted = recorded("0,,A100-4C,1,\n")
    assert only(simulate(host.ports, Hardware(), wanted, [])).policy == PLACEMENT_POLICIES[0]
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\nplacement: {policy: breadth}\n")
    assert only(simulate(host.ports, Hardware(), wanted, [])).policy == "breadth"

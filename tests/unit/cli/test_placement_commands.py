# SPDX-License-Identifier: Apache-2.0
"""Where vgpuctl places a vGPU, from the command line to the result: each option, each command, and host.yaml.

If the placement of a vGPU is unknown, every command shows the same result: a number, or the minimum that fits.
"""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Ran, Run

FOUR = "l40s-x4"
FIRST, SECOND, THIRD, FOURTH = (f"0000:{n}:00.0" for n in ("3b", "3f", "43", "47"))


def gpus(ran: Ran) -> list[str]:
    assert ran.status == 0, ran.err
    return [v["gpu"] for v in ran.document["data"]["vgpus"]]


def host_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state" / "vgpuctl" / FOUR / "etc" / "vgpuctl" / "host.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_create_vm_takes_the_policy_that_is_typed(sim: Run) -> None:
    assert gpus(sim(f"create-vm a --profile L40S-4Q --gpu {THIRD} --no-start --json", FOUR)) == [THIRD]
    assert gpus(sim("create-vm b --profile L40S-4Q --no-start --json", FOUR)) == [THIRD]
    assert gpus(sim("create-vm c --profile L40S-4Q --placement breadth --no-start --json", FOUR)) == [FIRST]
    assert gpus(sim("create-vm d --profile L40S-4Q --placement depth --no-start --json", FOUR)) == [THIRD]
    assert gpus(sim("create-vm e --profile L40S-4Q --placement first-fit --no-start --json", FOUR)) == [FIRST]
    refused = sim("create-vm f --profile L40S-4Q --placement deep", FOUR)
    assert (refused.status, "'least-waste', 'depth', 'breadth', 'first-fit'" in refused.err) == (2, True)


def test_host_yaml_fills_unset_options_and_a_dry_run_has_the_source(sim: Run, tmp_path: Path) -> None:
    line = "create-vm vm --profile L40S-4Q --dry-run --json"
    assert sim(line, FOUR).document["data"]["sources"]["placement"] == {"value": "least-waste", "source": "default"}
    assert gpus(sim(f"create-vm a --profile L40S-4Q --gpu {THIRD} --no-start --json", FOUR)) == [THIRD]
    host_file(tmp_path, "version: 1\nplacement: {policy: breadth}\n")
    ran = sim(line, FOUR)
    assert (gpus(ran), ran.document["data"]["sources"]["placement"]["source"]) == ([FIRST], "host.yaml")
    typed = sim(f"{line} --placement depth", FOUR)
    assert (gpus(typed), typed.document["data"]["sources"]["placement"]["source"]) == ([THIRD], "given")
    assert "placement:" in sim("export", FOUR).out
    host_file(tmp_path, "version: 1\nplacement: {policy: deep}\n")
    assert "placement.policy: 'deep' is not least-waste, depth" in sim(line.replace(" --json", ""), FOUR).err


def test_several_gpus_and_none_of_some(sim: Run) -> None:
    line = "create-vm vm --profile L40S-4Q --dry-run --json"
    assert gpus(sim(f"{line} --gpu {SECOND} --gpu {FOURTH}", FOUR)) == [SECOND]
    assert gpus(sim(f"{line} --gpu L40S --not-gpu 3b:00.0 --not-gpu {SECOND}", FOUR)) == [THIRD]
    assert sim(f"{line} --gpu {SECOND} --not-gpu {SECOND}", FOUR).status == 2
    assert gpus(sim(f"{line} --numa-node 1", FOUR)) == [THIRD]
    assert gpus(sim(f"{line} --scheduler best_effort --not-gpu {FIRST}", FOUR)) == [SECOND]
    refused = sim("create-vm vm --profile L40S-4Q --scheduler fixed_share --dry-run", FOUR)
    assert refused.status == 4
    assert "--scheduler fixed_share excludes 4 of 4 GPUs, on which 48 would fit" in refused.err
    assert sim("create-vm vm --profile L40S-4Q --gpu A40 --dry-run", FOUR).status == 2


def test_a_spread_group_is_saved_and_shown(sim: Run) -> None:
    made = sim("create-vm 'e-{}' --count 3 --profile L40S-4Q --spread-group exam --no-start --json", FOUR)
    assert [v["vgpus"][0]["gpu"] for v in made.document["data"]["vms"]] == [FIRST, SECOND, THIRD]
    assert sim("show-vm e-1 --json", FOUR).document["data"]["spread_group"] == "exam"
    two = sim("create-vm 'f-{}' --count 2 --profile L40S-4Q --spread-group exam --no-start", FOUR)
    assert two.status == 4
    assert "1 fit now; none was created; --spread-group exam excludes 4 of 4 GPUs" in two.err
    assert gpus(sim("create-vm f-1 --profile L40S-4Q --spread-group exam --no-start --json", FOUR)) == [FOURTH]
    assert gpus(sim("attach-vgpu e-2 --profile L40S-4Q --json", FOUR)) == [SECOND, SECOND]
    moved = sim(f"set-vm e-3 --profile L40S-6Q --gpu {FOURTH} --dry-run", FOUR)
    assert (moved.status, "it has f-1 of the group" in moved.err) == (4, True)


def test_other_placing_commands_have_the_options(sim: Run, tmp_path: Path) -> None:
    assert gpus(sim(f"create-vm a --profile L40S-4Q --gpu {THIRD} --no-start --json", FOUR)) == [THIRD]
    words = f"--placement breadth --not-gpu {FIRST} --numa-node 0 --scheduler best_effort"
    assert sorted(gpus(sim(f"attach-vgpu a --profile L40S-4Q {words} --dry-run --json", FOUR))) == [THIRD]
    assert sorted(gpus(sim(f"attach-vgpu a --profile L40S-4Q {words} --json", FOUR))) == [SECOND, THIRD]
    made = sim(f"create-vgpu spare --profile L40S-4Q --placement breadth --not-gpu {FIRST} --json", FOUR)
    assert made.document["data"]["gpu"] == FOURTH
    changed = sim(f"set-vm a --profile L40S-6Q --gpu L40S {words.replace(FIRST, SECOND)} --json", FOUR)
    assert gpus(changed) == [FIRST]
    spec = tmp_path / "vm.yaml"
    spec.write_text(f"name: s\nprofile: L40S-4Q\nplacement: depth\nnot_gpu: [{FIRST}, {THIRD}]\n")
    assert gpus(sim(f"ensure-vm -f {spec} --dry-run --json", FOUR)) == [FOURTH]
    assert gpus(sim(f"ensure-vm -f {spec} --placement breadth --state stopped --json", FOUR)) == [SECOND]
    assert not sim(f"ensure-vm -f {spec} --placement first-fit --json --state stopped", FOUR).document["changed"]
    spec.write_text(spec.read_text() + "spread_group: exam\n")
    assert sim(f"ensure-vm -f {spec} --state stopped", FOUR).status == 3


def test_a_profile_of_any_model_is_resolved_once(sim: Run, tmp_path: Path) -> None:
    two = tmp_path / "two.yaml"
    two.write_text("version: 1\ngpus:\n  - {model: L40S}\n  - {model: A16}\n")
    made = sim("create-vm vm-1 --profile 2B --no-start --json", str(two))
    profile = made.document["data"]["vgpus"][0]["profile"]
    assert profile in ("L40S-2B", "A16-2B")
    for text in ("2B", profile, "L40S-2B|A16-2B"):
        spec = tmp_path / "vm.yaml"
        spec.write_text(f"name: vm-1\nprofile: {text}\n")
        again = sim(f"ensure-vm -f {spec} --state stopped --json", str(two))
        assert (again.status, again.document["changed"]) == (0, False), (text, again.err)
    assert sim("create-vm vm-2 --profile 2Q --profile 2Q --no-start", str(two)).status == 2
    explained = sim("explain 2B --json", str(two)).document["data"]
    each = [sim(f"explain {name} --json", str(two)).document["data"]["free"] for name in ("A16-2B", "L40S-2B")]
    assert (explained["profile"], explained["free"], 0 in each) == ("2B", sum(each), False)
    fits = sim("fits --profile 2B:33", str(two))
    assert (fits.status, "no: 33 x 2B" in fits.out) == (4, True)


def test_fits_shows_the_gpus_that_create_vm_would_use(sim: Run) -> None:
    assert gpus(sim(f"create-vm a --profile L40S-4Q --gpu {THIRD} --no-start --json", FOUR)) == [THIRD]
    places = sim("fits --profile L40S-4Q:2 --profile L40S-8Q:1 --json", FOUR).document["data"]["places"]
    profiles = ["L40S-8Q", "L40S-4Q", "L40S-4Q"]
    made = [gpus(sim(f"create-vm b-{n} --profile {p} --no-start --json", FOUR)) for n, p in enumerate(profiles)]
    assert made == [[FIRST], [THIRD], [THIRD]]
    assert sorted((place["profile"], [place["gpu"]]) for place in places) == sorted(zip(profiles, made, strict=True))


GPU = "0000:3b:00.0"
TEXT = """version: 1
nvidia: {{driver: "570.90.05"}}
storage: {{pools: [{{name: default}}]}}
gpus:
  - {{model: RTX PRO 6000, address: "0000:3b:00.0", mixed_size: true, vgpus: [{{profile: {}}}]}}
"""


def test_a_small_vgpu_at_an_unknown_placement_gives_a_minimum(scenario):
    run = scenario(TEXT.format("DC-8Q"))
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


def test_a_large_vgpu_at_an_unknown_placement_gives_an_exact_count(scenario):
    run = scenario(TEXT.format("DC-48Q"))
    (row,) = (p for p in run("list-profiles --json").document["data"] if p["profile"] == "DC-8Q")
    assert (row["free"], row["free_at_least"]) == (6, 6)
    assert run("explain DC-8Q --json").document["data"]["free"] == 6
    assert run("fits --profile DC-8Q:6").out.startswith("yes: 6 x DC-8Q")
    no = run("fits --profile DC-8Q:7")
    assert (no.status, no.out.splitlines()[1:]) == (4, ["  all but 1 x DC-8Q fit", f"  {GPU}  DC-8Q alone: 6 more"])

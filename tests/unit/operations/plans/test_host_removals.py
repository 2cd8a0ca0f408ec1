# SPDX-License-Identifier: Apache-2.0
"""What another host.yaml removes is listed by name; an entry that another one repeats is not removed."""

from __future__ import annotations

import pytest

from tests.values import a100, t4
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.operations.plans.host_diff import describe_removed, find_removed_entries
from vgpuctl.value import replace

A100, T4 = "0000:3b:00.0", "0000:5e:00.0"
GPUS = (replace(a100(), address=A100), replace(t4(), address=T4))
NOW = f"""version: 1
defaults: {{memory: 8GiB, vcpus: 4}}
placement: {{policy: breadth}}
boot: {{deadline_seconds: 60}}
gpus:
  A100: {{mode: vgpu, reserved_for: lab-*}}
  H100: {{mode: sriov}}
  "{T4}": {{cordoned: true}}
vgpus:
  lab: {{profile: A100-4C, gpu: "{A100}", carrier: 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001}}
"""


def gone(wanted: str, now: str = NOW) -> list[str]:
    result = find_removed_entries(parse_host_spec(wanted, "FILE"), parse_host_spec(now, "host.yaml"), GPUS)
    return [describe_removed(one) for one in result]


def test_everything_goes_with_a_version_alone() -> None:
    assert gone("version: 1") == [
        "gpus.A100: mode vgpu, reserved_for [lab-*]",
        "gpus.H100: mode sriov",
        f"gpus.{T4}: cordoned true",
        f"vgpus.lab: profile A100-4C, gpu {A100}, carrier 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
        "defaults: memory 8GiB, vcpus 4",
        "placement: policy breadth",
        "boot: deadline_seconds 60",
    ]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        (", reserved_for: lab-*", "", ["gpus.A100: reserved_for [lab-*]"]),
        ("  A100: {", f'  "{A100}": {{', []),
        ("  A100: {mode: vgpu, ", f'  "{A100}": {{', ["gpus.A100: mode vgpu"]),
        ("  H100: {mode: sriov}\n", "", ["gpus.H100: mode sriov"]),
        ("cordoned: true", "cordoned: false", []),
        ("vcpus: 4", "vcpus: 8", []),
    ],
)
def test_what_is_changed_or_named_otherwise_does_not_go(old: str, new: str, lines: list[str]) -> None:
    assert gone(NOW.replace(old, new)) == lines


LISTS = f"""version: 1
defaults: {{memory: 8GiB, vcpus: 4}}
gpus:
  A100: {{mig: [1g.10gb, 1g.10gb, 3g.40gb], reserved_for: [vdi-*, lab-*], profiles: [A100-4C, A100-8C]}}
  H100: {{mig: {{H100-1-10C: 4, H100-2-20C: 1}}, scheduler: {{policy: equal_share, time_slice_ms: 2}}}}
vgpus:
  lab: {{profile: T4-1Q, gpu: "{T4}", carrier: "0000:5e:00.4", vgpu_params: {{a: "1", b: "2"}}}}
"""


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        (", lab-*", "", ["gpus.A100: reserved_for [lab-*]"]),
        ("vdi-*, lab-*", "lab-*, vdi-*, new-*", []),
        ("lab-*", "new-*", ["gpus.A100: reserved_for [lab-*]"]),
        (", A100-8C", "", ["gpus.A100: profiles [A100-8C]"]),
        ("1g.10gb, 1g.10gb", "1g.10gb", ["gpus.A100: mig [1g.10gb]"]),
        ("[1g.10gb, 1g.10gb, 3g.40gb]", "off", []),
        (", H100-2-20C: 1", "", ["gpus.H100: mig {H100-2-20C: 1}"]),
        ("H100-1-10C: 4", "H100-1-10C: 2", []),
        (", time_slice_ms: 2", "", ["gpus.H100: scheduler {time_slice_ms: 2}"]),
        ("equal_share", "fixed_share", []),
        (", vcpus: 4", "", ["defaults: vcpus 4"]),
        (', b: "2"', "", ["vgpus.lab: vgpu_params {b: 2}"]),
    ],
)
def test_what_a_list_or_a_mapping_loses_goes(old: str, new: str, lines: list[str]) -> None:
    assert gone(LISTS.replace(old, new), LISTS) == lines


def test_what_a_shorter_list_loses_stays_where_another_entry_says_it() -> None:
    whole = "reserved_for: [vdi-*, lab-*]"
    now = f"version: 1\ngpus:\n  A100: {{{whole}}}\n"
    assert gone(f'{now.replace(", lab-*", "")}  "{A100}": {{{whole}}}\n', now) == []


def test_nothing_goes_where_nothing_was() -> None:
    assert gone(NOW, "version: 1") == []

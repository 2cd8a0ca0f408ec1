# SPDX-License-Identifier: Apache-2.0
"""What goes away with another host.yaml is told by name; what another entry says as well does not go."""

from __future__ import annotations

import pytest

from tests.values import a100, t4
from vgpuctl.plan.host_removals import removals
from vgpuctl.spec.host import parse_host_spec
from vgpuctl.value import replace

A100, T4 = "0000:3b:00.0", "0000:5e:00.0"
GPUS = (replace(a100(), address=A100), replace(t4(), address=T4))
NOW = f"""version: 1
defaults: {{memory: 8GiB, vcpus: 4}}
placement: {{policy: breadth, demand: {{A100-4C: 2, T4-1Q: 1}}}}
boot: {{deadline_seconds: 60}}
gpus:
  A100: {{mode: vgpu, reserved_for: lab-*}}
  H100: {{mode: sriov}}
  "{T4}": {{cordoned: true}}
vgpus:
  lab: {{profile: A100-4C, gpu: "{A100}", carrier: 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001}}
"""


def gone(wanted: str, now: str = NOW) -> list[str]:
    found = removals(parse_host_spec(wanted, "FILE"), parse_host_spec(now, "host.yaml"), GPUS)
    return [one.line for one in found]


def test_everything_goes_with_a_version_alone() -> None:
    assert gone("version: 1") == [
        "gpus.A100: mode vgpu, reserved_for [lab-*]",
        "gpus.H100: mode sriov",
        f"gpus.{T4}: cordoned true",
        f"vgpus.lab: profile A100-4C, gpu {A100}, carrier 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
        "defaults: memory 8GiB, vcpus 4",
        "placement: policy breadth, demand {A100-4C: 2, T4-1Q: 1}",
        "boot: deadline_seconds 60",
    ]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        (", reserved_for: lab-*", "", ["gpus.A100: reserved_for [lab-*]"]),
        ("  A100: {", f'  "{A100}": {{', []),
        ("  A100: {mode: vgpu, ", f'  "{A100}": {{', ["gpus.A100: mode vgpu"]),
        (", T4-1Q: 1", "", ["placement: demand {T4-1Q: 1}"]),
        ("  H100: {mode: sriov}\n", "", ["gpus.H100: mode sriov"]),
        ("cordoned: true", "cordoned: false", []),
        ("vcpus: 4", "vcpus: 8", []),
    ],
)
def test_what_is_changed_or_named_otherwise_does_not_go(old: str, new: str, lines: list[str]) -> None:
    assert gone(NOW.replace(old, new)) == lines


def test_nothing_goes_where_nothing_was() -> None:
    assert gone(NOW, "version: 1") == []

# SPDX-License-Identifier: Apache-2.0
"""Other programs' files are read with line numbers; anything else is refused by line."""

from __future__ import annotations

import pytest

from vgpuctl.config.import_formats import DeviceConfig, MdevDefinition, parse_import, parse_mdevctl_definition
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import MigSpec

UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
DUMP = f"""[
  {{
    "0000:3b:00.4": [
      {{ "{UUID}": {{ "mdev_type": "nvidia-468", "start": "auto",
         "attrs": [ {{ "nvidia/vgpu_params": "a=1,b=2" }}, {{ "assign": "5" }} ] }} }},
      {{ "{UUID[:-1]}2": {{ "mdev_type": "nvidia-468", "start": "manual" }} }}
    ]
  }}
]
"""
VGPUS = """version: v1
vgpu-configs:
  default:
    - "T4-8Q"
  small:
    - devices: [0, 2]
      device-filter: ["0x1EB810DE"]
      vgpu-devices: {"T4-1Q": 8, "T4-2Q": 4}
"""
MIG = """version: v1
mig-configs:
  all-1g:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.5gb": 7}
  none:
    - devices: all
      mig-enabled: false
  parts:
    - devices: all
      mig-enabled: true
      mig-devices: {"1c.3g.20gb": 2, "3g.20gb": 1}
    - devices: all
      mig-enabled: true
"""


def test_mdevctls_list_gives_a_definition_for_each_device():
    result = parse_import(DUMP, "dump", None)
    assert result.source == "mdevctl"
    assert result.definitions == (
        MdevDefinition(UUID, "0000:3b:00.4", "nvidia-468", True, "a=1,b=2", ("assign",), "dump:4"),
        MdevDefinition(f"{UUID[:-1]}2", "0000:3b:00.4", "nvidia-468", False, "", (), "dump:6"),
    )


def test_a_file_of_mdevctl_is_one_definition():
    text = '{"mdev_type": "i915-GVTg_V5_4", "start": "auto"}\n'
    result = parse_mdevctl_definition(text, "f", "0000:00:02.0", UUID.upper())
    assert result == MdevDefinition(UUID, "0000:00:02.0", "i915-GVTg_V5_4", True, "", (), "f:1")


def test_one_configuration_of_several_is_chosen():
    assert parse_import(VGPUS, "f", None).device_configs == (DeviceConfig(None, (), (("T4-8Q", None),), None, "f:4"),)
    small = DeviceConfig((0, 2), ("0x1EB810DE",), (("T4-1Q", 8), ("T4-2Q", 4)), None, "f:6")
    assert parse_import(VGPUS, "f", "small").device_configs == (small,)
    assert [c.mig for c in parse_import(MIG, "f", "all-1g").device_configs] == [MigSpec(("1g.5gb",) * 7)]
    assert [c.mig for c in parse_import(MIG, "f", "none").device_configs] == [MigSpec()]
    for text, config, reported in ((MIG, None, "several"), (VGPUS, "big", "no configuration 'big'")):
        with pytest.raises(InvalidInput, match=reported) as raised:
            parse_import(text, "f", config)
        assert "--config" in str(raised.value.hint)


def test_a_compute_instance_is_reported(tmp_path):
    parts, bare = parse_import(MIG, "f", "parts").device_configs
    assert parts.mig == MigSpec(("3g.20gb",))
    assert parts.unsupported == (
        "2 of 1c.3g.20gb, which is not a GPU instance profile: vgpuctl creates no compute instances",
    )
    assert (bare.mig, bare.unsupported) == (None, ("MIG without GPU instances, which carries no vGPUs",))


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("version: 1\n", "f:1:1: this is not one of the known formats"),
        ("[[]]", "f:1:2"),
        ("", "not one of the known formats"),
        ('[{"p": [{"no-uuid": {}}]}]', "not the UUID"),
        (f'[{{"p": [{{"{UUID}": {{}}}}]}}]', "mdev_type is missing"),
        (f'[{{"p": [{{"{UUID}": {{"mdev_type": "x", "attrs": {{}}, "start": "auto"}}}}]}}]', None),
        (f'[{{"p": [{{"{UUID}": {{"mdev_type": "x", "attrs": [1]}}}}]}}]', "expected a mapping"),
        ("vgpu-configs: 3\n", "f:1:15"),
        ("vgpu-configs: {a: [{devices: all}]}\n", "expected a mapping"),
        ("vgpu-configs: {a: [{devices: some, vgpu-devices: {}}]}\n", "devices is missing"),
        ("vgpu-configs: {a: [{devices: [-1], vgpu-devices: {}}]}\n", "devices is missing"),
        ("vgpu-configs: {a: b}\n", "expected a list"),
        ("mig-configs:\n  a:\n    - devices: all\n      mig-enabled: yes\n", "f:4:20"),
        ("mig-configs: [", "not YAML"),
    ],
)
def test_invalid_imports_have_their_line(text, reported):
    if reported is None:
        assert parse_import(text, "f", None).definitions[0].other_attributes == ()
        return
    with pytest.raises(InvalidInput) as raised:
        parse_import(text, "f", None)
    assert reported in raised.value.message


CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: vgpu-config}
data:
  config.yaml: |
    version: v1
    vgpu-configs:
      small:
        - devices: all
          vgpu-devices: {"L40S-8Q": 6}
"""


def test_the_file_in_a_config_map_is_read_with_its_lines():
    (entry,) = parse_import(CONFIG_MAP, "map.yaml", None).device_configs
    assert (entry.vgpus, entry.position) == ((("L40S-8Q", 6),), "map.yaml:9")
    with pytest.raises(InvalidInput, match=r"map.yaml:9:\d+: vgpu-configs.small\[0\].devices"):
        parse_import(CONFIG_MAP.replace("devices: all", "devices: some"), "map.yaml", None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "data: {a: 'mig-configs: {}', b: 'vgpu-configs: {}'}",
            "map.yaml:2:7: data: this ConfigMap has several files, a, b",
        ),
        ("data: {note: text}", "this ConfigMap has no file with vgpu-configs: or mig-configs:"),
        ("metadata: {}", "this ConfigMap has no file"),
        ("data: [a]", "data: expected a mapping"),
    ],
)
def test_a_config_map_without_exactly_one_such_file_is_refused(data, message):
    with pytest.raises(InvalidInput) as caught:
        parse_import(f"kind: ConfigMap\n{data}\n", "map.yaml", None)
    assert message in caught.value.message

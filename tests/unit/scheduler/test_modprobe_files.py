# SPDX-License-Identifier: Apache-2.0
"""modprobe's files: of a parameter the last line counts, one value is edited, and everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.scheduler.modprobe_files import (
    VGPUCTL_FILE,
    ModprobeFile,
    file_with_dword,
    find_configured_dword,
    find_dword,
    find_loaded_dword,
    overridden_settings,
    parse_settings,
)

GPU, OTHER = "0000:15:00.0", "0000:16:00.0"
EACH = "NVreg_RegistryDwordsPerDevice"


def one(text, path="/etc/modprobe.d/nvidia.conf"):
    return (ModprobeFile(path, text),)


def written(text, word=0x11, gpu=GPU):
    return file_with_dword(one(text), gpu, word).text


def test_without_a_line_a_file_of_our_own_is_made():
    file = file_with_dword((), GPU, 1)
    assert file.path == VGPUCTL_FILE
    assert file.text.splitlines()[1:] == [f'options nvidia {EACH}="pci=0000:15:00.0;RmPVMRL=0x00000001"']
    assert find_configured_dword(parse_settings([file]), GPU) == 1
    assert find_configured_dword(parse_settings([file]), OTHER) is None


def test_the_line_that_is_there_is_edited_wherever_it_is():
    text = f"""# our GPUs
options nvidia NVreg_A=1 {EACH}="pci=0000:16:00.0;RmPVMRL=0x1;Other=0x2"  NVreg_B=2 # why
options other x=1
"""
    now = written(text)
    assert now == text.replace("Other=0x2", "Other=0x2;pci=0000:15:00.0;RmPVMRL=0x00000011")
    assert find_configured_dword(parse_settings(one(now)), OTHER) == 1


def test_a_gpus_own_entry_keeps_its_other_keys():
    text = f'options nvidia {EACH}="pci=15:00;Keep=0x7;RmPVMRL=0x1;pci=0000:16:00.0;RmPVMRL=0x2"\n'
    assert written(text) == (
        f'options nvidia {EACH}="pci=15:00;Keep=0x7;RmPVMRL=0x00000011;pci=0000:16:00.0;RmPVMRL=0x2"\n'
    )


@pytest.mark.parametrize(
    "line",
    [
        f'options nvidia "{EACH}=pci=0000:15:00.0;RmPVMRL=0x1"',
        f"options nvidia {EACH}=pci=0000:15:00.0;RmPVMRL=0x1",
        f'options   nvidia \\\n  {EACH}="pci=0000:15:00;RmPVMRL=1"',
    ],
)
def test_every_form_is_read_and_survives(line):
    assert find_configured_dword(parse_settings(one(f"{line}\n")), GPU) == 1
    now = written(f"{line}\n")
    assert find_configured_dword(parse_settings(one(now)), GPU) == 0x11
    assert now.count(EACH) == 1


def test_a_comment_or_another_module_sets_nothing():
    text = f'# options nvidia {EACH}="pci=0000:15:00.0;RmPVMRL=0x1"\noptions nvidia_drm {EACH}=x\n'
    assert parse_settings(one(text)) == ()
    assert find_configured_dword((), GPU) is None


def test_the_last_line_counts_and_the_earlier_one_is_lost():
    text = f'options nvidia {EACH}="pci=15:00;RmPVMRL=1"\noptions nvidia {EACH}="pci=16:00;RmPVMRL=1"\n'
    result = parse_settings(one(text))
    assert (find_configured_dword(result, GPU), find_configured_dword(result, OTHER)) == (None, 1)
    assert [s.line for s in overridden_settings(result)] == [1]
    now = written(text)
    assert now.splitlines()[0] == text.splitlines()[0]
    assert (
        find_configured_dword(parse_settings(one(now)), GPU),
        find_configured_dword(parse_settings(one(now)), OTHER),
    ) == (0x11, 1)


def test_files_count_by_their_names():
    files = (
        *one(f'options nvidia {EACH}="pci=15:00;RmPVMRL=2"\n', "/etc/modprobe.d/z.conf"),
        *one(f'options nvidia {EACH}="pci=15:00;RmPVMRL=1"\n', "/usr/lib/modprobe.d/a.conf"),
    )
    assert find_configured_dword(parse_settings(files), GPU) == 2
    with pytest.raises(Refused, match=r"/usr/lib/modprobe\.d/a\.conf, /etc/modprobe\.d/z\.conf"):
        file_with_dword(files, GPU, 1)
    with pytest.raises(Refused, match="belongs to a package"):
        file_with_dword(files[1:], GPU, 1)


def test_a_value_over_several_lines_is_for_a_person():
    with pytest.raises(InvalidInput, match="several lines"):
        written(f'options nvidia {EACH}="pci=15:00;\\\nRmPVMRL=1"\n')


def test_a_gpus_own_entry_goes_before_the_one_for_all():
    assert find_dword("A=1;RmPVMRL=0x1", "", GPU) == 1
    assert find_dword("RmPVMRL=0x1", "pci=0000:15:00.0;RmPVMRL=0x11", GPU) == 0x11
    assert find_dword("RmPVMRL=0x1", "pci=0000:16:00.0;RmPVMRL=0x11", GPU) == 1
    assert find_dword("RmPVMRL=no", "", GPU) is None
    assert find_dword("RmPVMRL=0x1FFFFFFFF", "", GPU) is None


def test_the_loaded_drivers_dwords():
    params = 'EnableMSI: 1\nRegistryDwords: "RmPVMRL=0x1"\nRegistryDwordsPerDevice: "pci=15:00;RmPVMRL=0x11"\n'
    assert (find_loaded_dword(params, GPU), find_loaded_dword(params, OTHER), find_loaded_dword("", GPU)) == (
        0x11,
        1,
        None,
    )


keys = st.sampled_from(["A", "Bcd", "RmPVMRL"])
entries = st.lists(st.tuples(keys, st.integers(0, 99)).map(lambda e: f"{e[0]}={e[1]}"), max_size=3)
gpus = st.lists(st.tuples(st.sampled_from([GPU, OTHER, "17:00"]), entries), max_size=3)


@given(gpus, st.integers(0, 0xFFFFFFFF))
def test_the_dword_takes_effect_and_no_other_gpus_changes(parts, word):
    value = ";".join(";".join([f"pci={gpu}", *mine]) for gpu, mine in parts)
    text = f'options nvidia {EACH}="{value}"\n'
    now = parse_settings(one(written(text, word)))
    assert find_configured_dword(now, GPU) == word
    for other in (OTHER, "0000:17:00.0"):
        assert find_configured_dword(now, other) == find_configured_dword(parse_settings(one(text)), other)
    assert parse_settings(one(written(written(text, word), word))) == now

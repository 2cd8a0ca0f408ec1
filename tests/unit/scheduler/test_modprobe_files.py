# SPDX-License-Identifier: Apache-2.0
"""modprobe's files: of a parameter the last line counts; the line to write keeps everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.scheduler.modprobe_files import (
    VGPUCTL_FILE,
    ModprobeFile,
    find_configured_dword,
    find_dword,
    find_loaded_dword,
    line_with_dword,
    overridden_settings,
    parse_settings,
)

GPU, OTHER = "0000:15:00.0", "0000:16:00.0"
EACH = "NVreg_RegistryDwordsPerDevice"


def one(text, path="/etc/modprobe.d/nvidia.conf"):
    return (ModprobeFile(path, text),)


def shown(text, word=0x11, gpu=GPU):
    return line_with_dword(one(text), {gpu: word})[1] + "\n"


def test_without_a_line_there_is_one_for_all_gpus_and_a_file_for_it():
    place, line = line_with_dword((), {GPU: 1, OTHER: 0x11})
    assert place == f"add this line to {VGPUCTL_FILE}"
    words = "pci=0000:15:00.0;RmPVMRL=0x00000001;pci=0000:16:00.0;RmPVMRL=0x00000011"
    assert line == f'options nvidia {EACH}="{words}"'
    settings = parse_settings(one(line))
    assert (find_configured_dword(settings, GPU), find_configured_dword(settings, OTHER)) == (1, 0x11)


def test_the_line_that_is_there_is_replaced_wherever_it_is():
    text = f"""# our GPUs
options nvidia NVreg_A=1 {EACH}="pci=0000:16:00.0;RmPVMRL=0x1;Other=0x2"  NVreg_B=2 # why
options other x=1
"""
    place, line = line_with_dword(one(text), {GPU: 0x11})
    assert place == "replace line 2 of /etc/modprobe.d/nvidia.conf with this line"
    assert line == text.splitlines()[1].replace("Other=0x2", "Other=0x2;pci=0000:15:00.0;RmPVMRL=0x00000011")
    assert find_configured_dword(parse_settings(one(line)), OTHER) == 1


def test_a_gpus_own_entry_keeps_its_other_keys():
    text = f'options nvidia {EACH}="pci=15:00;Keep=0x7;RmPVMRL=0x1;pci=0000:16:00.0;RmPVMRL=0x2"\n'
    assert shown(text) == (
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
    now = shown(f"{line}\n")
    assert now.count("\n") == 1
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
    place, line = line_with_dword(one(text), {GPU: 0x11})
    assert "line 2" in place
    now = parse_settings(one(line))
    assert (find_configured_dword(now, GPU), find_configured_dword(now, OTHER)) == (0x11, 1)


def test_files_count_by_their_names():
    files = (
        *one(f'options nvidia {EACH}="pci=15:00;RmPVMRL=2"\n', "/etc/modprobe.d/z.conf"),
        *one(f'options nvidia {EACH}="pci=15:00;RmPVMRL=1"\n', "/usr/lib/modprobe.d/a.conf"),
    )
    assert find_configured_dword(parse_settings(files), GPU) == 2
    assert line_with_dword(files, {GPU: 1})[0] == "replace line 1 of /etc/modprobe.d/z.conf with this line"
    copied = "copy /usr/lib/modprobe.d/a.conf to /etc/modprobe.d/a.conf, and replace line 1 there with this line"
    assert line_with_dword(files[1:], {GPU: 1})[0] == copied


def test_a_value_over_several_lines_becomes_one():
    text = f'# ours\noptions nvidia \\\n {EACH}="pci=15:00;\\\nRmPVMRL=1;A=2"\n'
    place, line = line_with_dword(one(text), {GPU: 0x11})
    assert "replace line 2 of" in place
    assert line == f'options nvidia   {EACH}="pci=15:00;A=2;RmPVMRL=0x00000011"'


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
    now = parse_settings(one(shown(text, word)))
    assert find_configured_dword(now, GPU) == word
    for other in (OTHER, "0000:17:00.0"):
        assert find_configured_dword(now, other) == find_configured_dword(parse_settings(one(text)), other)
    assert parse_settings(one(shown(shown(text, word), word))) == now

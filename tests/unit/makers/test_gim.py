# SPDX-License-Identifier: Apache-2.0
"""gim's file of settings, the order of its GPUs, and the texts of its files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.makers.gim import (
    GimConfig,
    find_profile_index,
    find_vf_options,
    order_gpus,
    parse_compute_mode,
    parse_config,
    parse_memory_mode,
    removal_hint,
    render_config,
)

CONFIGS = st.builds(
    GimConfig,
    st.lists(st.integers(1, 31), min_size=1, max_size=32).map(tuple),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(CONFIGS)
def test_what_is_written_is_read_as_it_was(config):
    assert parse_config(render_config(config)) == config
    assert len(render_config(config)) <= 1024


def test_the_text_is_the_drivers_own():
    text = render_config(GimConfig((4, 8), 8, 4))
    assert text == "vf_num=4,8\naccelerator_partition_mode=8\nmemory_partition_mode=4\n"
    assert parse_config("VF_NUM 4\t") == GimConfig((4,))
    assert [GimConfig((4, 8)).vf_count(place) for place in (0, 1, 5)] == [4, 8, 8]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# four VFs\nvf_num=4\n", "'#'"),
        ("vf_num=4\nlog_level=3\n", "'log_level'"),
        ("vf_num=32\n", "no number from 1 to 31"),
        ("vf_num=0\n", "no number from 1 to 31"),
        ("vf_num=4,\n", "vf_num has ''"),
        ("vf_num=four\n", "vf_num has 'four'"),
        ("vf_num=" + ",".join("1" * 33), "32 GPUs at most"),
        ("memory_partition_mode=10\n", "from 0 to 9"),
        ("vf_num\n", "has no value"),
        ("vf_num=1" + " " * 1024, "1024 bytes"),
    ],
)
def test_what_gim_would_not_use_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_config(text)


def test_gims_order_is_its_table_of_ids_then_the_address():
    gpus = [("0000:af:00.0", "74a1"), ("0000:3b:00.0", "74a9"), ("0000:5e:00.0", "7460"), ("0000:17:00.0", "74a1")]
    assert order_gpus(gpus, "") == ("0000:17:00.0", "0000:af:00.0", "0000:3b:00.0", "0000:5e:00.0")
    assert order_gpus(gpus, "0000:3b:00.0;0000:af:00.0\n") == ("0000:af:00.0", "0000:3b:00.0")


def test_where_the_parameter_is_set_is_named():
    files = [("/etc/modprobe.d/gim.conf", "# x\noptions gim log_level=3 vf_num=4,4\noptions nvidia vf_num=1\n")]
    assert find_vf_options(files, "ro quiet gim.vf_num=2 x") == (
        "/etc/modprobe.d/gim.conf, line 2: options gim log_level=3 vf_num=4,4",
        "the kernel's command line: gim.vf_num=2",
    )
    assert find_vf_options([("/etc/modprobe.d/gim.conf", "options gim log_level=3\n")], "quiet") == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("options gim \\\n vf_num=4\n", "line 1: options gim \\  vf_num=4"),
        ("options gim vf-num=4\n", "line 1: options gim vf-num=4"),
        ("install gim /sbin/modprobe -i gim vf_num=4\n", "line 1: install gim /sbin/modprobe -i gim vf_num=4"),
        ("x\x0cy\noptions gim vf_num=4\n", "line 2: options gim vf_num=4"),
        ("options gim a=1 # vf_num=3\n", "line 1: options gim a=1 # vf_num=3"),
        ("# options gim vf_num=3\n", None),
        ("options gim xvf_num=2\n", None),
    ],
)
def test_every_spelling_of_the_parameter_is_named(text, shown):
    places = find_vf_options([("/etc/modprobe.d/g.conf", text)], "quiet")
    assert places == (() if shown is None else (f"/etc/modprobe.d/g.conf, {shown}",))


def test_the_kernel_takes_the_parameter_with_a_hyphen_too():
    assert find_vf_options([], "ro gim.vf-num=2") == ("the kernel's command line: gim.vf-num=2",)


@pytest.mark.parametrize(
    ("path", "line", "hint"),
    [
        (
            "/etc/modprobe.d/a b.conf",
            "options gim vf_num=4,4",
            "sed -i '1s/[ \\t]*vf_num=[0-9,]*//' '/etc/modprobe.d/a b.conf'",
        ),
        (
            "/etc/modprobe.d/g.conf",
            'options gim "vf_num=4"',
            "remove vf_num by hand from line 1 of /etc/modprobe.d/g.conf",
        ),
        (
            "/etc/modprobe.d/g.conf",
            "install gim x vf_num=4",
            "remove vf_num by hand from line 1 of /etc/modprobe.d/g.conf",
        ),
        (
            "/usr/lib/modprobe.d/g.conf",
            "options gim vf_num=4",
            "cp /usr/lib/modprobe.d/g.conf /etc/modprobe.d/g.conf, then remove vf_num by hand from line 1 of "
            "/etc/modprobe.d/g.conf",
        ),
    ],
)
def test_only_a_simple_line_is_removed_by_a_command(path, line, hint):
    assert removal_hint(*find_vf_options([(path, line)], "")) == hint


@pytest.mark.parametrize("number", ["²", "1" * 5000])
def test_a_number_that_is_none_is_no_profile(number):
    assert find_profile_index(f"\nprofiles:\ntitles\n{number} CPX\n", "CPX") is None


def test_more_gpus_than_gim_takes_are_refused():
    with pytest.raises(ValueError, match="33 numbers"):
        render_config(GimConfig((1,) * 33))


def test_the_files_of_the_partition_modes():
    shown = "profile_index       profile_type        more\n3                   CPX                 8   [[0 4 ]]\n"
    assert parse_compute_mode(shown) == "CPX"
    assert parse_memory_mode("memory_partition_mode: NPS4\nnuma_count: 4\n") == "NPS4"
    for text in ("", "failed to get current mp mode\n", "failed to get current accelerator partition profile\n"):
        assert (parse_compute_mode(text), parse_memory_mode(text)) == (None, None)
    offered = "resource_profiles:\n0 XCC 8 1\nprofiles:\nprofile_index profile_type\n0 SPX 1 NPS1\n1 CPX 8 NPS1 NPS4\n"
    assert [find_profile_index(offered, mode) for mode in ("SPX", "CPX", "QPX")] == [0, 1, None]
    assert find_profile_index("failed to get cp profile\n", "SPX") is None

# SPDX-License-Identifier: Apache-2.0
"""Moore Threads' scheduler: parameters of the module, shown, and set by a line that vgpuctl does not write."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from tests.meanwhile import rebooted, with_calls
from tests.schedulers import EQUAL, FIXED, act, configured_scheduler, restore
from tests.unit.operations.test_apply import diff, run
from vgpuctl.errors import Failed, HostCannot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.operations.queries import show_gpu

MTT, OTHER, A100 = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"
TEN = SchedulerSpec(EQUAL, 10)
LINE = "options mtgpu mtgpu_vgpu_scheduling_policy=1 mtgpu_vgpu_time_sliced_value=10"
CARD = """{{address: "{address}", model: MTT S3000, backend: mdev-pf, driver: mtgpu, vendor_id: 1ed5, units: 32,
  profiles: [{{name: mtgpu-1104, key: mtgpu-1104, units: 4}}]}}"""
TEXT = """version: 1
storage: {{pools: [{{name: default}}]}}
nvidia: {{driver: 595.58.02, nvml: absent}}
gpus: [{cards}]
"""


def mtt(directory, *addresses, more=""):
    cards = ", ".join(CARD.format(address=address) for address in addresses or (MTT,))
    return open_sim_host(directory, text=TEXT.format(cards=cards + more))


def write(host, text, name="mtgpu.conf"):
    folder = host.directory / "state" / "etc" / "modprobe.d"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def shown(host, gpu=MTT):
    return show_gpu(host.ports, gpu).data


def test_host_yaml_is_written_and_the_error_has_the_line_for_the_next_load(tmp_path):
    host = mtt(tmp_path)
    assert (shown(host).scheduler.running.policy, shown(host).scheduler.running.source) == (
        "best_effort",
        "module parameters",
    )
    planned = act(host.ports, TEN, gpu=MTT, dry_run=True)
    assert planned.notes[-1].endswith(LINE)
    with pytest.raises(HostCannot, match="its driver was loaded with best_effort") as raised:
        act(host.ports, TEN, gpu=MTT)
    assert raised.value.status == 6
    assert raised.value.hint == (
        f"add this line to /etc/modprobe.d/vgpuctl-mtgpu.conf, then load the driver mtgpu again or reboot: {LINE}"
    )
    assert configured_scheduler(host, MTT) == TEN
    with pytest.raises(Failed, match="does not run the scheduler equal_share"):
        restore(host)
    write(host, LINE + "\n", "vgpuctl-mtgpu.conf")
    assert shown(host).scheduler_next == TEN
    with pytest.raises(HostCannot) as written:
        act(host.ports, TEN, gpu=MTT)
    assert written.value.hint == "modprobe's files have it: load the driver mtgpu again or reboot"
    host = rebooted(host)
    seen = shown(host)
    assert (seen.scheduler.running.policy, seen.scheduler.running.time_slice_us) == ("equal_share", 10_000)
    assert seen.scheduler_at_load == seen.scheduler_next == seen.scheduler.configured
    assert (act(host.ports, TEN, gpu=MTT).changed, restore(host).changed, diff(host.ports).changed) == (False,) * 3


def test_a_line_that_is_there_is_replaced_and_keeps_its_other_options(tmp_path):
    host = mtt(tmp_path)
    write(host, "# ours\noptions mtgpu vgpu_1g_support_4k=0 mtgpu_vgpu_scheduling_policy=0\n")
    with pytest.raises(HostCannot) as raised:
        act(host.ports, TEN, gpu=MTT)
    assert raised.value.hint == (
        "replace line 2 of /etc/modprobe.d/mtgpu.conf with this line, then load the driver mtgpu again or reboot: "
        "options mtgpu vgpu_1g_support_4k=0 mtgpu_vgpu_scheduling_policy=1 mtgpu_vgpu_time_sliced_value=10"
    )


def test_best_effort_leaves_the_slice_as_it_is(tmp_path):
    host = mtt(tmp_path)
    write(host, "options mtgpu mtgpu_vgpu_time_sliced_value=5 mtgpu_vgpu_scheduling_policy=1\n")
    host = rebooted(host)
    with pytest.raises(HostCannot) as raised:
        act(host.ports, SchedulerSpec(SchedulerPolicy.BEST_EFFORT), gpu=MTT)
    assert raised.value.facts["line"].endswith("mtgpu_vgpu_time_sliced_value=5 mtgpu_vgpu_scheduling_policy=0")


def test_a_policy_that_it_has_not_is_refused_whatever_nvidias_driver_beside_it_is(tmp_path):
    host = mtt(tmp_path, more=f', {{address: "{A100}", model: A100}}')
    with pytest.raises(HostCannot, match="its driver has no fixed_share; it has best_effort, equal_share"):
        act(host.ports, SchedulerSpec(FIXED), gpu=MTT)
    with pytest.raises(HostCannot) as raised:
        act(host.ports, TEN, gpu=MTT)
    assert raised.value.facts["line"] == LINE


def test_the_module_has_one_scheduler_for_all_cards_and_the_error_names_those_that_differ(tmp_path):
    host = mtt(tmp_path, MTT, OTHER)
    with pytest.raises(HostCannot):
        act(host.ports, SchedulerSpec(EQUAL, 20), gpu=OTHER)
    with pytest.raises(HostCannot, match=f"{OTHER} has equal_share, time slice 20 ms in host.yaml"):
        act(host.ports, TEN, gpu=MTT)


def test_apply_shows_the_lines_of_both_makers(tmp_path):
    host = mtt(tmp_path, more=f', {{address: "{A100}", model: A100}}')
    with pytest.raises(HostCannot) as raised:
        run(host.ports, "gpus[all].scheduler.policy=equal_share")
    assert "options nvidia NVreg_RegistryDwordsPerDevice" in raised.value.hint
    assert raised.value.hint.endswith("mtgpu_vgpu_scheduling_policy=1 mtgpu_vgpu_time_sliced_value=20")


@pytest.mark.parametrize(
    ("answer", "text"),
    [("7\n", "mtgpu_vgpu_scheduling_policy is '7'"), (PermissionError(13, "Permission denied"), "cannot be read")],
)
def test_odd_parameters_are_an_unknown_policy_with_the_reason(tmp_path, answer, text):
    host = mtt(tmp_path)

    def read(path):
        if not path.endswith("scheduling_policy"):
            return host.ports.sysfs.read(path)
        if isinstance(answer, OSError):
            raise answer
        return answer

    running = show_gpu(with_calls(host.ports, "sysfs", read=read), MTT).data.scheduler.running
    assert running.policy is None
    assert text in running.problem

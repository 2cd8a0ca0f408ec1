# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU software: the end of the host's release, dropped cards, guests' drivers, licenses and the token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.hosts import create, open_sim_host, request
from tests.licenses import put_license, token_text
from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot, vm, vm_uuid
from vgpuctl.config.licenses import LicenseFiles
from vgpuctl.doctor.check import Verdict
from vgpuctl.model.gpu import Backend
from vgpuctl.model.port_values import NvmlGuest, NvmlStatus
from vgpuctl.model.usage import UsageSample, VgpuUse
from vgpuctl.model.vgpu_scheduler import GpuScheduler
from vgpuctl.operations.diagnose import diagnose

NOW = datetime(2026, 11, 27, tzinfo=UTC)
GPU = a100()


SCENARIO = """version: 1
nvidia: {driver: "580.105.06", guest_driver: "%s"}
gpus: [{model: H100}]
"""


def guests(*versions: str | None, host: str = "550.90.05"):
    reported = tuple(NvmlGuest(vm_uuid(number), version) for number, version in enumerate(versions))
    looked = snapshot(GPU, vms=[vm(0)], nvml=NvmlStatus(available=True, driver_version=host))
    return run_check("guest-drivers", looked, guests={GPU.address: reported})


def test_a_guest_newer_than_the_host_fails_with_its_vm_and_what_to_do():
    result = guests("572.60", "550.54.14", None)
    assert result.verdict is Verdict.FAIL
    assert result.evidence == (
        "host: 550.90.05 (vGPU 17)",
        "vdi-000 on 0000:3b:00.0: 572.60 (vGPU 18), newer than the host's: its vGPU does not start",
        "1 of 3 running vGPUs: no NVIDIA driver runs in the guest yet",
    )
    assert "or update the host" in str(result.fix)


def test_supported_guests_are_ok():
    result = guests("550.54.14", "535.183.01")
    assert (result.verdict, result.fix) == (Verdict.OK, None)
    assert f"{vm_uuid(1)} on 0000:3b:00.0: 535.183.01 (vGPU 16)" in finding_text(result)
    assert guests().evidence == ("host: 550.90.05", "no VM runs with a vGPU")


def test_without_nvml_data_it_is_unknown():
    assert run_check("guest-drivers", snapshot(GPU)).verdict is Verdict.UNKNOWN
    silent = snapshot(GPU, nvml=NvmlStatus(available=True))
    assert run_check("guest-drivers", silent, guests={GPU.address: ()}).verdict is Verdict.UNKNOWN
    amd = a100(vendor_id="1002", driver="gim", backend=Backend.SRIOV_VF)
    assert run_check("guest-drivers", snapshot(amd)).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("guest", "verdict"), [("573.07", "ok"), ("539.28", "ok"), ("550.90.07", "warn"), ("596.36", "fail")]
)
def test_a_vm_with_such_a_driver_is_named(tmp_path, guest, verdict):
    ports = open_sim_host(tmp_path, text=SCENARIO % guest).ports
    create(ports, request("H100-10C", name="desk"))
    (row,) = diagnose(ports, ("guest-drivers",)).checks
    assert row.verdict == verdict
    assert any(line.startswith("desk on ") and guest in line for line in row.evidence)


def release(driver: str | None, now: datetime = NOW, **gpu: Any):
    looked = snapshot(a100(**gpu), nvml=NvmlStatus(available=True, driver_version=driver))
    return run_check("vgpu-release", looked, now=now.timestamp())


@pytest.mark.parametrize(
    ("driver", "verdict", "words"),
    [
        ("580.159.01", Verdict.OK, "vGPU 19.5 (long-term support; it ends in June or July 2028)"),
        ("580.1.2", Verdict.OK, "vGPU 19 (long-term support"),
        ("595.71.03", Verdict.WARN, "vGPU 20.1 (it ends in March 2027)"),
        ("535.309.01", Verdict.WARN, "vGPU 16.14 (long-term support; it ended in June or July 2026)"),
        ("550.90.05", Verdict.WARN, "to vGPU 19 (long-term support; it ends in June or July 2028) or vGPU 20"),
        ("620.10.01", Verdict.UNKNOWN, "not in vgpuctl's table of vGPU releases of 2026-11-26"),
        (None, Verdict.UNKNOWN, "NVML does not report the host's driver"),
    ],
)
def test_a_release_that_is_over_or_ends_soon_is_told(driver, verdict, words):
    finding = release(driver)
    assert finding.verdict is verdict
    assert words in finding_text(finding)


@pytest.mark.parametrize(
    ("days", "verdict"), [(181, Verdict.OK), (180, Verdict.WARN), (0, Verdict.WARN), (-1, Verdict.WARN)]
)
def test_the_warning_begins_half_a_year_before_the_end(days, verdict):
    finding = release("595.71.03", datetime(2027, 3, 31, tzinfo=UTC) - timedelta(days=days))
    assert finding.verdict is verdict
    assert ("ended" if days < 0 else "ends") in finding.evidence[0]


def test_after_the_newest_release_nothing_older_is_advised():
    fix = release("595.71.03").fix
    assert fix == "plan the update of the host's driver: to a release newer than vgpuctl's table of 2026-11-26"


@pytest.mark.parametrize(
    ("driver", "gpu", "line"),
    [
        ("580.159.01", {"device_id": "1db6"}, "vGPU 19 is the last release for Volta"),
        ("595.71.03", {"device_id": "1db6"}, "vGPU 19 is the last release for Volta"),
        ("570.211.01", {"device_id": "1db6"}, None),
        ("535.309.01", {"device_id": "1b38"}, "vGPU 16 is the last release for Pascal"),
        ("535.309.01", {"device_id": "13f2"}, "vGPU 16 is the last release for Maxwell"),
        ("580.159.01", {"scheduler": GpuScheduler(architecture=5)}, "vGPU 19 is the last release for Volta"),
        ("580.159.01", {"scheduler": GpuScheduler(architecture=7), "device_id": "1db6"}, None),
        ("580.159.01", {"device_id": "20f1"}, None),
    ],
)
def test_a_card_that_the_next_release_drops_is_named(driver, gpu, line):
    finding = release(driver, **gpu)
    assert (line in finding_text(finding)) if line else ("last release" not in finding_text(finding))
    assert ("or replace them" in (finding.fix or "")) is (line is not None)


def test_a_host_without_vgpus_of_nvidia_has_no_release():
    amd = snapshot(a100(vendor_id="1002", driver="gim", backend=Backend.SRIOV_VF))
    for name in ("vgpu-release", "licenses"):
        assert run_check(name, amd, now=NOW.timestamp()).verdict is Verdict.NOT_APPLICABLE


def licenses(*states: str | None, driver: str | None = "580.159.03", **sample: Any):
    vgpus = tuple(
        VgpuUse(GPU.address, (f"vgpu-{n}",), vm_uuid(n), license_state=state, guest_driver=driver)
        for n, state in enumerate(states)
    )
    usage = UsageSample(NOW.timestamp(), 0.0, vgpus=vgpus, **sample)
    return run_check("licenses", snapshot(GPU, vms=[vm(0)]), usage=usage)


def test_a_running_vgpu_without_a_license_is_named():
    assert licenses("licensed", "licensed").evidence == ("2 vGPUs with a running guest driver, all licensed",)
    finding = licenses("unlicensed-restricted", "licensed", "unlicensed")
    assert finding.verdict is Verdict.WARN
    assert finding.evidence == (
        "vdi-000 on 0000:3b:00.0: unlicensed-restricted",
        f"{vm_uuid(2)} on 0000:3b:00.0: unlicensed",
    )


def test_a_guest_that_has_not_booted_is_no_alarm_and_unread_licenses_are_unknown():
    assert licenses(None, driver=None).verdict is Verdict.OK
    assert licenses(None).verdict is Verdict.UNKNOWN
    assert licenses(nvml_paused=True).verdict is Verdict.UNKNOWN
    assert "libnvidia-ml" in finding_text(licenses(failed_sources={"nvml": "no libnvidia-ml"}))
    assert run_check("licenses", snapshot(GPU)).verdict is Verdict.UNKNOWN


FOLDER = "/etc/vgpuctl/licenses/cad"


def token(text: str | None, *, open_paths: tuple[str, ...] = (), problem: str | None = None, **others: str):
    given = {**({} if text is None else {"a.tok": text}), **others}
    files = LicenseFiles("cad", given, open_paths, problem)
    return run_check("license-token", None, licenses=(files,), now=NOW.timestamp())


@pytest.mark.parametrize(
    ("left", "verdict", "words"),
    [
        (timedelta(days=31), Verdict.OK, "expires on 2026-12-28 00:00 UTC"),
        (timedelta(days=30), Verdict.OK, "expires on 2026-12-27 00:00 UTC"),
        (timedelta(days=29, hours=23), Verdict.WARN, "expires on 2026-12-26 23:00 UTC, in 29 days"),
        (timedelta(days=1), Verdict.WARN, "in 1 day"),
        (timedelta(seconds=-1), Verdict.FAIL, "expired on 2026-11-26 23:59 UTC"),
    ],
)
def test_the_token_is_warned_of_thirty_days_before_its_end(left, verdict, words):
    finding = token(token_text(exp=int((NOW + left).timestamp())))
    assert finding.verdict is verdict
    assert words in finding_text(finding)
    assert (finding.fix is None) is (verdict is Verdict.OK)


def test_a_token_that_is_none_says_why_and_shows_nothing_of_it():
    for text, words in (("secret", "it is no JSON Web Token"), (token_text(exp="secret"), "its 'exp' is no number")):
        finding = token(text)
        assert finding.verdict is Verdict.FAIL
        assert words in finding_text(finding)
        assert "secret" not in finding_text(finding)
    assert token(None).evidence == (f"{FOLDER} has no token, a file *.tok",)
    assert token(None, problem=f"{FOLDER}: Permission denied").verdict is Verdict.UNKNOWN
    assert run_check("license-token").verdict is Verdict.NOT_APPLICABLE


def test_a_license_that_others_can_read_is_told():
    text = token_text(exp=NOW.timestamp() + 1e7)
    assert token(text).verdict is Verdict.OK
    assert token(text, open_paths=(f"{FOLDER}/a.tok", FOLDER)).fix == (
        f"chown root: {FOLDER}/a.tok {FOLDER} && chmod go= {FOLDER}/a.tok {FOLDER}"
    )
    assert token(token_text(), open_paths=(FOLDER,)).verdict is Verdict.WARN
    assert token(token_text()).evidence == (f"the token in {FOLDER} has no expiry",)


def test_the_worst_of_several_licenses_counts():
    good = LicenseFiles("a", {"a.tok": token_text(exp=NOW.timestamp() + 1e7)})
    ended = LicenseFiles("b", {"b.tok": token_text(exp=1)})
    finding = run_check("license-token", None, licenses=(good, ended), now=NOW.timestamp())
    assert finding.verdict is Verdict.FAIL
    assert [line.partition(" exp")[0] for line in finding.evidence] == [f"the token in {f.path}" for f in (good, ended)]
    assert str(finding.fix).endswith("into /etc/vgpuctl/licenses/b")


def test_doctor_reads_the_folders_of_licenses_and_the_licenses_of_guests(tmp_path):
    host = open_sim_host(tmp_path, text=SCENARIO % "580.159.03")
    create(host.ports, request("H100-10C", name="desk"))
    put_license(host.sim.host_file.parent, mode=0o644)
    rows = {row.id: row for row in diagnose(host.ports, ("licenses", "license-token", "vgpu-release")).checks}
    assert rows["licenses"].evidence == ("1 vGPU with a running guest driver, all licensed",)
    assert rows["license-token"].evidence == (
        f"the token in {FOLDER} has no expiry",
        f"not root's alone: {FOLDER}/client.tok",
    )
    assert rows["vgpu-release"].evidence[0].startswith("host: 580.105.06: vGPU 19 (long-term support")

# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs through the real pynvml and a libnvidia-ml with nvml.h's signatures; late and damaged answers."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pynvml
import pytest

from tests.lab.command import run
from tests.lab.nvidia_host import HERE
from tests.lab.test_nvml_library import CARD, MIG, VERSION, VM, qemu
from vgpuctl.host.usage import HostUsage, nvml_locks
from vgpuctl.host.usage.nvml_locks import changing, reading
from vgpuctl.host.usage.programs import MAX_OUTPUT_BYTES, run_programs
from vgpuctl.host.usage.sysfs_use import read_gpu
from vgpuctl.model.usage import NVML_SOURCE, SYSFS_SOURCE, EngineUse, FrameUse, ReaderProgram, UsageSample, UsageTarget

__all__ = ["qemu"]
GPU = "0000:01:00.0"
TARGETS = (UsageTarget(GPU, "/sys/bus/pci/devices/0000:01:00.0", NVML_SOURCE),)
GIB = 1 << 30


class Host:
    """A host with one card, whose NVML is the stand-in, and what reads its use."""

    def __init__(self, directory: Path, run_dir: Path, qemu_pid: int) -> None:
        self.directory = directory
        self.run_dir = run_dir
        self._pid = qemu_pid
        self.usage = HostUsage(run_dir, deadline_seconds=60)
        self.set_card()
        self.tell()

    def set_card(self, change: tuple[str, str] = ("", ""), driver: str = "590.48.01") -> None:
        """Write the module's files."""
        card = self.directory / f"gpus/{GPU}"
        card.mkdir(parents=True, exist_ok=True)
        (card / "vgpulab").write_text(CARD.format(self._pid).replace(*change))
        (self.directory / "version").write_text(VERSION.format(driver))

    def tell(self, **values: int) -> None:
        """Write what the calls answer: `sm_7=30` about vGPU 7, `power_0=1000` about the card."""
        lines = [f"{name.replace('_', ' ')} {value}\n" for name, value in values.items()]
        (self.directory / "usage").write_text("".join(lines))

    def read(self) -> UsageSample:
        """Return the next sample."""
        return self.usage.read(TARGETS, ())


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of the newer and the older library; each reads the module's files beside it."""
    made = {version: tmp_path_factory.mktemp(version) for version in ("new", "old")}
    for version, directory in made.items():
        settings = [f"OUT={directory}", f"PROC={directory}", "NODE=/dev/null", f"BUILD={version}"]
        run(["make", "-B", "-s", "-C", HERE / "nvml", *settings], deadline_seconds=60)
    return made


@pytest.fixture
def host(libraries: dict[str, Path], tmp_path: Path, qemu: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host with the newer library."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries["new"]))
    made = Host(libraries["new"], tmp_path, qemu)
    yield made
    made.usage.close()


def test_a_card_and_its_vgpu(host: Host) -> None:
    host.tell(power_0=123_000, sm_7=40, sessions_7=2, fps_7=30, latency_7=4000)
    sample = host.read()
    assert sample.failed_sources == {}
    assert sample.driver_version == "590.48.01"
    (gpu,), (vgpu,) = sample.gpus, sample.vgpus
    assert (gpu.up, gpu.power_watts, gpu.power_limit_watts, gpu.energy_joules) == (True, 123.0, 300.0, 1.0)
    assert (gpu.memory_size_bytes, gpu.memory_reserved_bytes) == (40 * GIB, 512 << 20)
    assert gpu.engines == EngineUse(sm=0.07, memory=0.03, encoder=0.0, decoder=0.0)
    assert (gpu.serial, gpu.temperatures, gpu.clocks["sm"]) == ("1320000000001", {"gpu": 41.0}, 1.41e9)
    assert (gpu.clock_event_reasons, gpu.row_remap_pending, gpu.pcie_link_width_lanes) == ((), False, 16)
    assert (vgpu.gpu, vgpu.vm_uuid, vgpu.type_id) == (GPU, VM, "468")
    assert (vgpu.memory_size_bytes, vgpu.memory_used_bytes, vgpu.memory_reserved_bytes) == (4 * GIB, GIB, 128 << 20)
    assert vgpu.engines == EngineUse(sm=0.4, memory=0.05, encoder=0.02, decoder=0.01, jpeg=0.0, ofa=0.0)
    assert (vgpu.license_state, vgpu.license_expiry, vgpu.guest_driver) == ("licensed", 1_798_761_600.0, None)
    assert (vgpu.encoder, vgpu.frame_rate_limit_fps) == (FrameUse(2, 30.0, 0.004), 60)


def test_framebuffer_use_above_4_gib_is_whole(host: Host) -> None:
    """Pynvml's own call cuts it off: 5.12 GiB read as 1.12."""
    used = int(5.12 * GIB)
    host.tell(framebuffer_7=used, reservation_0=5 * GIB)
    (vgpu,) = host.read().vgpus
    assert (vgpu.memory_used_bytes, vgpu.memory_reserved_bytes) == (used, 5 * GIB)
    program = (
        "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetHandleByPciBusId('00000000:01:00.0'); "
        "print(n.nvmlVgpuInstanceGetFbUsage(7))"
    )
    assert int(run([sys.executable, "-c", program], deadline_seconds=60)) == used % (1 << 32), "mended: use it again"


def test_without_a_sample_since_the_last_one_the_use_is_unknown(host: Host) -> None:
    first, second = host.read().vgpus[0], host.read().vgpus[0]
    assert first.engines.sm == 0.1
    assert second.engines == EngineUse(), "not 0"
    host.tell(time_0=2000, sm_7=101)
    assert host.read().vgpus[0].engines.sm is None, "above 100 % is NVML's word for unknown"


def test_licences_and_lowered_clocks(host: Host) -> None:
    host.tell(license_7=3, expiry_7=0, clocks_0=0x48 | 1, uncorrected_0=2, unmapped_0=1)
    sample = host.read()
    assert (sample.vgpus[0].license_state, sample.vgpus[0].license_expiry) == ("unlicensed-restricted", None)
    gpu = sample.gpus[0]
    assert gpu.clock_event_reasons == ("hw-slowdown", "hw-thermal")
    assert (gpu.ecc_errors["uncorrected"], gpu.row_remap_failed) == (2, True)


def test_a_license_and_a_driver_that_wait_are_seen_at_once(host: Host) -> None:
    host.tell(license_7=3)
    assert (use := host.read().vgpus[0]).license_state == "unlicensed-restricted"
    assert use.guest_driver is None
    host.tell(license_7=5)
    assert host.read().vgpus[0].license_state == "licensed"
    host.tell(license_7=3)
    assert host.read().vgpus[0].license_state == "unlicensed-restricted", "the driver has not started yet"
    host.tell(license_7=5, guest_7=1)
    assert host.read().vgpus[0].guest_driver is not None
    host.tell(license_7=3, guest_7=1)
    assert host.read().vgpus[0].license_state == "licensed", "what changes seldom is read every minute"


def test_locks_that_cannot_be_opened_are_the_reason(host: Host, tmp_path: Path) -> None:
    """Only root can open those of /run/vgpuctl: that is no change of a layout."""
    (tmp_path / "file").write_text("")
    usage = HostUsage(tmp_path / "file")
    sample = usage.read((UsageTarget(GPU, "", NVML_SOURCE),), ())
    usage.close()
    assert not sample.nvml_paused
    assert "Not a directory" in sample.failed_sources[NVML_SOURCE]


def test_a_lost_gpu(host: Host) -> None:
    host.read()
    host.tell(lost_0=1)
    (gpu,) = host.read().gpus
    assert (gpu.up, gpu.power_watts) == (False, None)
    host.tell()
    assert host.read().gpus[0].up


def test_with_mig_engines_are_unknown(host: Host) -> None:
    host.set_card(MIG)
    sample = host.read()
    assert sample.gpus[0].engines == EngineUse()
    assert sample.vgpus[0].engines == EngineUse()
    assert sample.vgpus[0].memory_used_bytes == GIB


def test_an_older_library(
    libraries: dict[str, Path], tmp_path: Path, qemu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries["old"]))
    host = Host(libraries["old"], tmp_path, qemu)
    host.set_card(driver="550.144.02")
    sample = host.read()
    assert sample.driver_version == "550.144.02"
    assert sample.vgpus[0].engines == EngineUse(sm=0.1, memory=0.05, encoder=0.02, decoder=0.01)
    assert sample.gpus[0].memory_reserved_bytes is None
    host.usage.close()


def test_a_library_of_another_version_than_the_driver(host: Host) -> None:
    host.set_card(driver="1.2.3")
    sample = host.read()
    assert sample.gpus == sample.vgpus == ()
    assert "mismatch" in sample.failed_sources[NVML_SOURCE]
    host.set_card()
    assert host.read().gpus, "the next sample works"


def test_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    usage = HostUsage(tmp_path, deadline_seconds=60)
    assert "libnvidia-ml" in usage.read(TARGETS, ()).failed_sources[NVML_SOURCE]
    usage.close()


def test_processes_of_guests(host: Host) -> None:
    processes = host.usage.read_processes(GPU)
    assert processes is not None
    assert [(p.vm_uuid, p.pid, p.name, p.engines.sm) for p in processes] == [(VM, 4000, "blender[31m", 0.1)]
    assert host.usage.read_processes("0000:09:00.0") is None


# ------------------------------------------------------------- the process


def test_a_driver_that_hangs_is_not_waited_for(host: Host) -> None:
    host.usage = HostUsage(host.run_dir, deadline_seconds=0.5)
    host.tell(hang_0=1)
    for _ in range(3):
        sample = host.read()
        assert "the driver hangs" in sample.failed_sources[NVML_SOURCE]
        assert sample.gpus == ()


def test_a_process_that_was_killed_is_replaced(host: Host) -> None:
    host.read()
    child = host.usage._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    while not child.has_ended:
        pass
    assert "ended" in host.read().failed_sources[NVML_SOURCE]
    assert host.read().gpus[0].up


ECHO = """
import json, sys
sys.stdin.readline()
print({})
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("'garbage'", "ended"),
        ("json.dumps({'number': 7, 'answer': {}})", "another request"),
        ("json.dumps({'number': 1, 'answer': {'time': 'x'}})", "time"),
        ("'x' * 10_000_000", "ended"),
    ],
)
def test_an_answer_that_is_none_is_no_sample(tmp_path: Path, answer: str, problem: str) -> None:
    usage = HostUsage(tmp_path, (sys.executable, "-c", ECHO.format(answer)), deadline_seconds=60)
    assert problem in usage.read(TARGETS, ()).failed_sources[NVML_SOURCE]
    usage.close()


def test_nothing_is_started_without_gpus(tmp_path: Path) -> None:
    usage = HostUsage(tmp_path, ("/none",))
    assert usage.read((), ()).failed_sources == {}
    assert "ended" in usage.read(TARGETS, ()).failed_sources[NVML_SOURCE]


# ------------------------------------------------------------------ locks


def test_a_change_of_a_layout_pauses_readers(host: Host) -> None:
    with host.usage.pause():
        sample = host.read()
        assert sample.nvml_paused
        assert sample.gpus == ()
        with host.usage.pause():
            assert host.read().nvml_paused
        assert host.read().nvml_paused
    assert not host.read().nvml_paused


def test_a_change_waits_for_a_reader_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def change() -> None:
        with changing(tmp_path):
            seen.append("changes")

    with reading(tmp_path) as is_free:
        assert is_free
        thread = Thread(target=change)
        thread.start()
        while not nvml_locks._is_locked(nvml_locks._open(tmp_path / "nvml-changes")):
            pass
        assert seen == []
    thread.join()
    assert seen == ["changes"]
    monkeypatch.setattr(nvml_locks, "WAIT_SECONDS", 0.05)
    with reading(tmp_path):
        change()
    assert len(seen) == 2


def test_readers_do_not_disturb_each_other(tmp_path: Path) -> None:
    with reading(tmp_path) as first, reading(tmp_path) as second:
        assert first
        assert second
    with reading(tmp_path / "none") as is_free:
        assert is_free


# --------------------------------------------------------------- programs


def program(directory: Path, text: str, deadline: float = 30.0) -> ReaderProgram:
    """Return a program with this text."""
    path = directory / "reader"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return ReaderProgram("musa", str(path), "root" if os.geteuid() == 0 else os.environ["USER"], deadline)


def trust(_: str) -> None:
    """Accept a program in the test's directory."""


def test_what_a_program_prints(tmp_path: Path) -> None:
    printed = {
        "gpus": [{"address": "00000000:3B:00.0", "up": True, "memory_used_bytes": 7, "engines": {"sm": 0.5}}],
        "vgpus": [{"gpu": "0000:3b:00.0", "carriers": ["u"], "memory_used_bytes": 3}],
    }
    (gpu,), (vgpu,), failed = run_programs((program(tmp_path, f"echo '{json.dumps(printed)}'"),), require_trusted=trust)
    assert failed == {}
    assert (gpu.address, gpu.source, gpu.memory_used_bytes, gpu.engines.sm) == ("0000:3b:00.0", "musa", 7, 0.5)
    assert (vgpu.gpu, vgpu.carriers, vgpu.memory_used_bytes) == ("0000:3b:00.0", ("u",), 3)


def test_a_gpu_that_nvml_tells_of_is_no_programs(tmp_path: Path) -> None:
    text = 'echo \'{"gpus": [{"address": "0000:3b:00.0", "up": false}, {"address": "0000:5e:00.0", "up": true}]}\''
    gpus, _, failed = run_programs((program(tmp_path, text),), frozenset({"0000:3b:00.0"}), require_trusted=trust)
    assert failed == {}
    assert [gpu.address for gpu in gpus] == ["0000:5e:00.0"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sleep 60", "did not end within 0.2 s"),
        ("exec 1>&-; sleep 60", "did not end within"),
        ("sleep 60 & echo '{}'", "did not end within"),
        ("yes", f"more than {MAX_OUTPUT_BYTES} bytes"),
        ("head -c 10000000 /dev/zero", "more than"),
        ("echo no; exit 3", "status 3"),
        ("echo no", "JSON"),
        ("echo '[]'", "JSON object"),
        ("echo '{\"gpu\": []}'", "JSON object"),
        ("echo '{\"gpus\": 3}'", "lists"),
        ("echo '{\"gpus\": [3]}'", "gpus"),
        ('echo \'{"gpus": [{"address": "x"}]}\'', "'x' is not a PCI address"),
        ('echo \'{"gpus": [{"address": "0000:3b:00.0", "pwoer": 1}]}\'', "unknown field 'pwoer'"),
        ('echo \'{"gpus": [{"address": "0000:3b:00.0", "power_watts": "1"}]}\'', "power_watts"),
        ('echo \'{"gpus": [{"address": "0000:3b:00.0", "engines": {"smm": 1}}]}\'', "unknown field 'smm'"),
        ('echo \'{"gpus": [{"address": "0000:3b:00.0", "engines": {"sm": 55}}]}\'', "between 0 and 1"),
        ('echo \'{"gpus": [{"address": "0000:3b:00.0", "power_watts": -1}]}\'', "not a possible value"),
        ('echo \'{"gpus": [{"address": "0000:3b:00.0", "power_watts": 1e300}]}\'', "not a possible value"),
        ('printf \'%s\' \'{"gpus": [{"address": "0000:3b:00.0", "serial": "a\\u001b"}]}\'', "control characters"),
    ],
)
def test_a_program_that_fails_is_named_and_nothing_else_happens(tmp_path: Path, text: str, problem: str) -> None:
    late = "sleep" in text
    gpus, vgpus, failed = run_programs((program(tmp_path, text, 0.2 if late else 30.0),), require_trusted=trust)
    assert (gpus, vgpus) == ([], [])
    assert problem in failed["musa"]


def test_a_program_that_others_can_change_is_not_started(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    untrusted = program(tmp_path, f"touch {mark}")
    Path(untrusted.path).chmod(stat.S_IRWXU | stat.S_IRWXO)
    _, _, failed = run_programs((untrusted,))
    assert "must belong to root" in failed["musa"]
    assert not mark.exists()
    missing = ReaderProgram("none", "/none/program", "root")
    assert "none" in run_programs((missing,))[2]
    nobody = ReaderProgram("x", "/usr/bin/env", "no-such-user")
    assert "no-such-user" in run_programs((nobody,), require_trusted=trust)[2]["x"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a program as another user")
def test_a_program_runs_as_its_user(tmp_path: Path) -> None:
    text = """[ "$(id -un) $(id -Gn)" = "nobody nogroup" ] && echo '{}'"""
    as_nobody = ReaderProgram("musa", program(tmp_path, text).path, "nobody", 30.0)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o055)
    assert run_programs((as_nobody,), require_trusted=trust) == ([], [], {})


# ------------------------------------------------------------------- sysfs


def test_amd_and_intel_by_sysfs(tmp_path: Path) -> None:
    monitor = tmp_path / "hwmon/hwmon3"
    monitor.mkdir(parents=True)
    files = {
        "gpu_busy_percent": "37\n",
        "mem_info_vram_total": "17163091968\n",
        "mem_info_vram_used": "1073741824\n",
        "current_link_width": "16\n",
        "hwmon/hwmon3/power1_average": "91000000\n",
        "hwmon/hwmon3/power1_cap": "225000000\n",
        "hwmon/hwmon3/energy1_input": "5000000\n",
        "hwmon/hwmon3/temp1_input": "46000\n",
        "hwmon/hwmon3/temp1_label": "edge\n",
        "hwmon/hwmon3/temp2_input": "51000\n",
        "hwmon/hwmon3/temp2_label": "junction\n",
        "hwmon/hwmon3/temp3_input": "not a number\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "config").write_bytes(b"\x02\x10\xff\xff")
    use = read_gpu(GPU, str(tmp_path))
    assert (use.up, use.engines, use.memory_used_bytes) == (True, EngineUse(sm=0.37), GIB)
    assert (use.power_watts, use.power_limit_watts, use.energy_joules) == (91.0, 225.0, 5.0)
    assert (use.temperatures, use.pcie_link_width_lanes) == ({"gpu": 46.0, "hotspot": 51.0}, 16)
    (tmp_path / "config").write_bytes(b"\xff" * 64)
    assert read_gpu(GPU, str(tmp_path)).up is False


def test_a_gpu_that_is_gone_fails_its_source(tmp_path: Path) -> None:
    usage = HostUsage(tmp_path, deadline_seconds=60)
    sample = usage.read((UsageTarget(GPU, f"{tmp_path}/none", SYSFS_SOURCE),), ())
    assert GPU in sample.failed_sources[SYSFS_SOURCE]
    usage.close()


def test_pynvml_has_what_is_called() -> None:
    assert pynvml.nvmlMemory_v2 == 0x02000028
    assert pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == 230

# SPDX-License-Identifier: Apache-2.0
"""Steps that write /etc/vgpuctl/host.yaml."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from vgpuctl.config.host_spec import dump_keys, dump_value, format_one_line, parse_host_spec
from vgpuctl.errors import Busy, Exists, FileFailed, HostCannot, VerifyFailed, VgpuctlError
from vgpuctl.model.vm import HostVgpu
from vgpuctl.ports.step import Removal, Step
from vgpuctl.ports.system import EMPTY_HOST_FILE
from vgpuctl.value import EMPTY_MAPPING

if TYPE_CHECKING:
    from vgpuctl.config.host_spec import HostSpec, VgpuSpec
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.system import HostFile

PATH = "/etc/vgpuctl/host.yaml"
WRITE_ATTEMPTS = 100


class SetGpuKeys(Step):
    """Set one GPU's keys in host.yaml. `changes`: new values, None removes a key; `previous`: old values."""

    address: str
    changes: Mapping[str, object]
    previous: Mapping[str, object] = EMPTY_MAPPING

    def describe(self) -> str:
        values = ", ".join(
            f"{key}: {format_one_line(value)}" for key, value in self.changes.items() if value is not None
        )
        removed = ", ".join(
            key for key, new in self.changes.items() if new is None and self.previous.get(key) is not None
        )
        if not values:
            return f"remove '{removed}' of GPU {self.address} from {PATH}" if removed else f"keep {PATH}"
        return f"write '{values}{f'; no {removed}' if removed else ''}' for GPU {self.address} to {PATH}"

    def perform(self, host: Host) -> None:
        """Edit the text and replace the file.

        Raises:
            InvalidInput: the file cannot be parsed.
            Busy: other processes kept changing it.
            HostCannot: it cannot be written on this host.
        """
        from vgpuctl.config import host_editor

        _edit_file(host, lambda text: host_editor.edit_gpu(text, self.address, self.changes, PATH))

    def verify(self, host: Host) -> None:
        current = self._current_values(host)
        if current != _as_written(self.changes):
            raise VerifyFailed(
                f"{PATH} was written but has {current} for {self.address}",
                hint="another program also writes this file; run the command again",
                path=PATH,
            )

    def _current_values(self, host: Host) -> dict[str, object]:
        return dump_keys(_read_spec(host).gpus.get(self.address), self.changes)

    def undo(self, host: Host) -> None:
        """Restore the old values if the file still has the ones that this step wrote."""
        from vgpuctl.config import host_editor

        if self._current_values(host) == _as_written(self.changes):
            _edit_file(host, lambda text: host_editor.edit_gpu(text, self.address, self.previous, PATH), is_undo=True)


class ReplaceHostFile(Step):
    """Replace the whole text of host.yaml. `previous_text`: the text before, None for no file."""

    text: str
    previous_text: str | None
    source: str

    def describe(self) -> str:
        return f"replace {PATH} with {self.source}"

    def perform(self, host: Host) -> None:
        """Replace the file.

        Raises:
            Busy: the file no longer has the previous text.
            HostCannot, FileFailed: it cannot be written on this host.
        """
        try:
            _require_host_file(host).replace(self.text, self.previous_text)
        except OSError as error:
            raise _write_error(error) from error

    def verify(self, host: Host) -> None:
        if not self._is_written(host):
            raise VerifyFailed(
                f"{PATH} was written but reads differently",
                hint="another program also writes this file; run the command again",
                path=PATH,
            )

    def _is_written(self, host: Host) -> bool:
        try:
            return _require_host_file(host).read() == self.text
        except OSError as error:
            raise _write_error(error) from error

    def undo(self, host: Host) -> None:
        """Restore the previous text unless somebody changed the file. If no file existed, write an empty spec."""
        if self._is_written(host):
            try:
                _require_host_file(host).replace(
                    EMPTY_HOST_FILE if self.previous_text is None else self.previous_text, self.text, is_undo=True
                )
            except OSError as error:
                raise _write_error(error) from error


class AddVgpuEntry(Step):
    """Add a vGPU without a VM to host.yaml, so that it is created again after a boot."""

    records_owner: ClassVar[bool] = True

    vgpu: HostVgpu

    def describe(self) -> str:
        return f"write vGPU {self.vgpu.name} ({self.vgpu.profile} on GPU {self.vgpu.gpu}) to {PATH}"

    def perform(self, host: Host) -> None:
        """Add the entry.

        Raises:
            Exists: an entry of that name exists and is left as it is.
            InvalidInput, Busy, HostCannot: as `SetGpuKeys`.
        """
        from vgpuctl.config import host_editor

        def add_entry(text: str | None) -> str:
            if text is not None and parse_host_spec(text, PATH).vgpus.get(self.vgpu.name) is not None:
                raise Exists(
                    f"{PATH} already has a vGPU {self.vgpu.name}",
                    hint="choose another name",
                    vgpu=self.vgpu.name,
                )
            return host_editor.edit_vgpu(text, self.vgpu.name, _entry(self.vgpu), PATH)

        _edit_file(host, add_entry)

    def verify(self, host: Host) -> None:
        if not self._is_written(host):
            raise VerifyFailed(
                f"{PATH} was written but does not have this vGPU {self.vgpu.name}",
                hint="another program also writes this file; run the command again",
                path=PATH,
            )

    def _is_written(self, host: Host) -> bool:
        entry = _read_spec(host).vgpus.get(self.vgpu.name)
        return entry is not None and _is_entry_of(entry, self.vgpu)

    def undo(self, host: Host) -> None:
        """Remove the entry if it is still the one that this step wrote."""
        if self._is_written(host):
            _remove_vgpu_entry(host, self.vgpu, is_undo=True)


class RemoveVgpuEntry(Removal):
    """Remove a vGPU without a VM from host.yaml."""

    vgpu: HostVgpu

    def describe(self) -> str:
        return f"remove vGPU {self.vgpu.name} from {PATH}"

    def perform(self, host: Host) -> None:
        """Remove the entry. A missing entry is no error.

        Raises:
            Busy: the name now belongs to another vGPU, which stays.
            InvalidInput, Busy, HostCannot: as `SetGpuKeys`.
        """
        _remove_vgpu_entry(host, self.vgpu)

    def verify(self, host: Host) -> None:
        if self.vgpu.name in _read_spec(host).vgpus:
            raise VerifyFailed(f"{PATH} still names vGPU {self.vgpu.name}", path=PATH)


def _remove_vgpu_entry(host: Host, vgpu: HostVgpu, *, is_undo: bool = False) -> None:
    """Remove a vGPU's entry. A missing entry is no error."""
    from vgpuctl.config import host_editor

    def remove_entry(text: str | None) -> str | None:
        entry = parse_host_spec(text, PATH).vgpus.get(vgpu.name) if text is not None else None
        if text is None or entry is None:
            return text
        if not _is_entry_of(entry, vgpu):
            raise Busy(
                f"{PATH} now has another vGPU {vgpu.name}: {entry.profile} on {entry.carrier}",
                hint="run the command again",
                vgpu=vgpu.name,
                carrier=entry.carrier,
            )
        return host_editor.edit_vgpu(text, vgpu.name, dict.fromkeys(_entry(vgpu)), PATH)

    _edit_file(host, remove_entry, is_undo=is_undo)


def _is_entry_of(entry: VgpuSpec, vgpu: HostVgpu) -> bool:
    """Return whether an entry is this vGPU's, not a newer vGPU's with the same name."""
    return (entry.profile, entry.gpu, entry.carrier) == (vgpu.profile, vgpu.gpu, vgpu.carrier)


def _entry(vgpu: HostVgpu) -> dict[str, object]:
    pairs = (pair.partition("=") for pair in vgpu.params.split(",") if pair)
    params = {key: value for key, _, value in pairs}
    return {"profile": vgpu.profile, "gpu": vgpu.gpu, "carrier": vgpu.carrier, "vgpu_params": params or None}


def _edit_file(host: Host, edit: Callable[[str | None], str | None], *, is_undo: bool = False) -> None:
    """Edit the text and replace the file; if another vgpuctl wrote it first, edit the new text.

    Of several concurrent writers one always succeeds, so as many attempts as there are writers are enough.
    """
    file = _require_host_file(host)
    for remaining_attempts in reversed(range(WRITE_ATTEMPTS)):
        try:
            previous_text = file.read()
        except OSError as error:
            raise _write_error(error) from error
        text = edit(previous_text)
        if text is None or text == previous_text:
            return
        try:
            file.replace(text, previous_text, is_undo=is_undo)
            return
        except Busy:
            if not remaining_attempts:
                raise
        except OSError as error:
            raise _write_error(error) from error


def _read_spec(host: Host) -> HostSpec:
    text = _require_host_file(host).read()
    return parse_host_spec(EMPTY_HOST_FILE if text is None else text, PATH)


def _as_written(changes: Mapping[str, object]) -> dict[str, object]:
    return {key: dump_value(value) for key, value in changes.items()}


def _require_host_file(host: Host) -> HostFile:
    if host.host_file is None:
        raise HostCannot(f"{PATH} of {host.name} is not accessible", check="host-file", path=PATH)
    return host.host_file


def _write_error(error: OSError) -> VgpuctlError:
    facts = {"errno": error.errno, "path": PATH}
    why = f"{PATH} cannot be written: {error.strerror or error}"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "run this as root; a host whose /etc is read-only gets this file from its image; lsattr " + PATH
        return HostCannot(why, hint=hint, check="host-file", **facts)
    return FileFailed(why, hint="df /etc; ls -ld /etc/vgpuctl", **facts)

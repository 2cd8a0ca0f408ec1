# SPDX-License-Identifier: Apache-2.0
"""What is written to /etc/vgpuctl/host.yaml, as a step."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from vgpuctl.errors import Busy, Exists, FileFailed, HostCannot, VerifyFailed, VgpuctlError
from vgpuctl.model.vm import NamedVgpu
from vgpuctl.value import NOTHING, Value

if TYPE_CHECKING:
    from vgpuctl.model.seams import HostFile
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import HostSpec, VgpuSpec

PATH = "/etc/vgpuctl/host.yaml"
WRITES = 100
_NOTHING_SAID = "version: 1\n"


class SetGpuKeys(Value):
    """Set what host.yaml says of one GPU. `changes`: a key's new value, None takes it out; `before`: the old ones."""

    address: str
    changes: Mapping[str, object]
    before: Mapping[str, object] = NOTHING

    def describe(self) -> str:
        """Say what is written."""
        from vgpuctl.spec.host import one_line

        said = ", ".join(f"{key}: {one_line(value)}" for key, value in self.changes.items() if value is not None)
        gone = ", ".join(key for key, new in self.changes.items() if new is None and self.before.get(key) is not None)
        if not said:
            return f"take '{gone}' of GPU {self.address} out of {PATH}" if gone else f"keep {PATH}"
        return f"write '{said}{f'; no {gone}' if gone else ''}' for GPU {self.address} to {PATH}"

    def perform(self, world: World) -> None:
        """Edit the file's text and put it in the file's place.

        Raises:
            InvalidInput: the file cannot be understood.
            Busy: others kept changing it.
            HostCannot: it cannot be written here.
        """
        _write(world, lambda was: _edit_gpu(was, self.address, self.changes))

    def verify(self, world: World) -> None:
        """Read it back."""
        now = self._now(world)
        if now != _as_written(self.changes):
            raise VerifyFailed(
                f"{PATH} was written but says {now} of {self.address}",
                hint="another program writes this file too; run the command again",
                path=PATH,
            )

    def _now(self, world: World) -> dict[str, object]:
        from vgpuctl.spec.host import said_of

        return said_of(_read(world).gpus.get(self.address), self.changes)

    def undo(self, world: World) -> None:
        """Write the old values again, if it still says what was written."""
        if self._now(world) == _as_written(self.changes):
            _write(world, lambda was: _edit_gpu(was, self.address, self.before), taken_back=True)


class PutHostFile(Value):
    """Put another text in the place of host.yaml, as it is. `was`: the text before, None for no file."""

    text: str
    was: str | None
    source: str

    def describe(self) -> str:
        """Say which."""
        return f"put {self.source} in the place of {PATH}"

    def perform(self, world: World) -> None:
        """Replace the file.

        Raises:
            Busy: it is not the text before any more.
            HostCannot, FileFailed: it cannot be written here.
        """
        try:
            _file(world).replace(self.text, self.was)
        except OSError as error:
            raise _failed(error) from error

    def verify(self, world: World) -> None:
        """Read it back."""
        if not self._there(world):
            raise VerifyFailed(
                f"{PATH} was written but reads otherwise",
                hint="another program writes this file too; run the command again",
                path=PATH,
            )

    def _there(self, world: World) -> bool:
        try:
            return _file(world).read() == self.text
        except OSError as error:
            raise _failed(error) from error

    def undo(self, world: World) -> None:
        """Put the text before back, unless somebody wrote the file meanwhile; no file becomes one that says nothing."""
        if self._there(world):
            try:
                _file(world).replace(_NOTHING_SAID if self.was is None else self.was, self.text, taken_back=True)
            except OSError as error:
                raise _failed(error) from error


class KeepVgpu(Value):
    """Keep a vGPU without a VM in host.yaml, so that it comes back after a boot."""

    tells_owner: ClassVar[bool] = True

    vgpu: NamedVgpu

    def describe(self) -> str:
        """Say what is written."""
        return f"write vGPU {self.vgpu.name} ({self.vgpu.profile} on GPU {self.vgpu.gpu}) to {PATH}"

    def perform(self, world: World) -> None:
        """Add the entry.

        Raises:
            Exists: there is one of that name, which is left as it is.
            InvalidInput, Busy, HostCannot: as `SetGpuKeys`.
        """

        def added(was: str | None) -> str:
            if was is not None and _parsed(was).vgpus.get(self.vgpu.name) is not None:
                raise Exists(
                    f"{PATH} has a vGPU {self.vgpu.name} already",
                    hint="choose another name",
                    vgpu=self.vgpu.name,
                )
            return _edit_vgpu(was, self.vgpu.name, _entry(self.vgpu))

        _write(world, added)

    def verify(self, world: World) -> None:
        """Read it back."""
        if not self._there(world):
            raise VerifyFailed(
                f"{PATH} was written but does not name vGPU {self.vgpu.name} so",
                hint="another program writes this file too; run the command again",
                path=PATH,
            )

    def _there(self, world: World) -> bool:
        said = _read(world).vgpus.get(self.vgpu.name)
        return said is not None and _is(said, self.vgpu)

    def undo(self, world: World) -> None:
        """Take the entry out again, if it still says what was written."""
        if self._there(world):
            _drop(world, self.vgpu, taken_back=True)


class DropVgpu(Value):
    """Take a vGPU without a VM out of host.yaml."""

    vgpu: NamedVgpu

    def describe(self) -> str:
        """Say what goes."""
        return f"take vGPU {self.vgpu.name} out of {PATH}"

    def perform(self, world: World) -> None:
        """Remove the entry; one that is gone is no error.

        Raises:
            Busy: the name is another vGPU's by now, which stays.
            InvalidInput, Busy, HostCannot: as `SetGpuKeys`.
        """
        _drop(world, self.vgpu)

    def verify(self, world: World) -> None:
        """See that it is gone."""
        if self.vgpu.name in _read(world).vgpus:
            raise VerifyFailed(f"{PATH} still names vGPU {self.vgpu.name}", path=PATH)

    def undo(self, world: World) -> None:
        """Nothing: a removal is finished by running it again, not taken back."""


def _drop(world: World, vgpu: NamedVgpu, *, taken_back: bool = False) -> None:
    """Take a vGPU's entry out; one that is gone is no error."""

    def without(was: str | None) -> str | None:
        said = _parsed(was).vgpus.get(vgpu.name) if was is not None else None
        if was is None or said is None:
            return was
        if not _is(said, vgpu):
            raise Busy(
                f"{PATH} names another vGPU {vgpu.name} by now: {said.profile} on {said.carrier}",
                hint="run the command again",
                vgpu=vgpu.name,
                carrier=said.carrier,
            )
        return _edit_vgpu(was, vgpu.name, dict.fromkeys(_entry(vgpu)))

    _write(world, without, taken_back=taken_back)


def _is(said: VgpuSpec, vgpu: NamedVgpu) -> bool:
    """Say whether an entry is this vGPU's, and not one that was made under its name since."""
    return (said.profile, said.gpu, said.carrier) == (vgpu.profile, vgpu.gpu, vgpu.carrier)


def _entry(vgpu: NamedVgpu) -> dict[str, object]:
    pairs = (pair.partition("=") for pair in vgpu.params.split(",") if pair)
    params = {key: value for key, _, value in pairs}
    return {"profile": vgpu.profile, "gpu": vgpu.gpu, "carrier": vgpu.carrier, "vgpu_params": params or None}


def _write(world: World, edit: Callable[[str | None], str | None], *, taken_back: bool = False) -> None:
    """Edit the file's text and put it in the file's place; where another vgpuctl was faster, edit its text.

    Of those who write at once one always comes through, so as many looks as callers are enough.
    """
    file = _file(world)
    for left in reversed(range(WRITES)):
        try:
            was = file.read()
        except OSError as error:
            raise _failed(error) from error
        text = edit(was)
        if text is None or text == was:
            return
        try:
            file.replace(text, was, taken_back=taken_back)
            return
        except Busy:
            if not left:
                raise
        except OSError as error:
            raise _failed(error) from error


def _edit_gpu(was: str | None, address: str, changes: Mapping[str, object]) -> str:
    from vgpuctl.spec.edit import edit_gpu

    return edit_gpu(was, address, changes, PATH)


def _edit_vgpu(was: str | None, name: str, changes: Mapping[str, object]) -> str:
    from vgpuctl.spec.edit import edit_vgpu

    return edit_vgpu(was, name, changes, PATH)


def _read(world: World) -> HostSpec:
    text = _file(world).read()
    return _parsed(text if text is not None else _NOTHING_SAID)


def _parsed(text: str) -> HostSpec:
    from vgpuctl.spec.host import parse_host_spec

    return parse_host_spec(text, PATH)


def _as_written(changes: Mapping[str, object]) -> dict[str, object]:
    from vgpuctl.spec.host import as_written

    return {key: as_written(value) for key, value in changes.items()}


def _file(world: World) -> HostFile:
    if world.host_file is None:
        raise HostCannot(f"{PATH} of {world.name} is out of reach", check="host-file", path=PATH)
    return world.host_file


def _failed(error: OSError) -> VgpuctlError:
    facts = {"errno": error.errno, "path": PATH}
    why = f"{PATH} cannot be written: {error.strerror or error}"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "a host whose /etc is read-only gets this file from its image; else run this as root, lsattr " + PATH
        return HostCannot(why, hint=hint, check="host-file", **facts)
    return FileFailed(why, hint="df /etc; ls -ld /etc/vgpuctl", **facts)

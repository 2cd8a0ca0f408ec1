# SPDX-License-Identifier: Apache-2.0
"""What is written to /etc/vgpuctl/host.yaml, as a step."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.errors import Failed, HostCannot, VerifyFailed, VgpuctlError
from vgpuctl.value import NOTHING, Value

if TYPE_CHECKING:
    from vgpuctl.model.seams import HostFile
    from vgpuctl.model.world import World

PATH = "/etc/vgpuctl/host.yaml"


class SetGpuKeys(Value):
    """Set what host.yaml says of one GPU. `changes`: a key's new value, None takes it out; `before`: the old ones."""

    address: str
    changes: Mapping[str, object]
    before: Mapping[str, object] = NOTHING

    def describe(self) -> str:
        """Say what is written."""
        said = ", ".join(f"{key}: {_shown(value)}" for key, value in self.changes.items() if value is not None)
        gone = ", ".join(key for key, value in self.changes.items() if value is None and self.before.get(key))
        what = "; ".join(filter(None, (said, f"no {gone}" if gone else "")))
        return f"write '{what}' for GPU {self.address} to {PATH}" if what else f"keep {PATH}"

    def perform(self, world: World) -> None:
        """Edit the file's text and put it in the file's place.

        Raises:
            InvalidInput: the file cannot be understood.
            Busy: somebody else changed it meanwhile.
            HostCannot: it cannot be written here.
        """
        self._write(world, self.changes)

    def _write(self, world: World, changes: Mapping[str, object]) -> None:
        from vgpuctl.spec.edit import edit_gpu

        file = _file(world)
        try:
            was = file.read()
            text = edit_gpu(was, self.address, changes, PATH)
            if text != was:
                file.replace(text, was)
        except OSError as error:
            raise _failed(error) from error

    def verify(self, world: World) -> None:
        """Read it back."""
        now = self._now(world)
        if now != _plain(self.changes):
            raise VerifyFailed(
                f"{PATH} was written but says {now} of {self.address}",
                hint="another program writes this file too; run the command again",
                path=PATH,
            )

    def _now(self, world: World) -> dict[str, object]:
        from vgpuctl.spec.host import parse_host_spec, said_of

        text = _file(world).read()
        known = parse_host_spec(text, PATH).gpus.get(self.address) if text is not None else None
        return said_of(known, self.changes)

    def undo(self, world: World) -> None:
        """Write the old values again, if it still says what was written."""
        if self._now(world) == _plain(self.changes):
            self._write(world, self.before)


def _plain(changes: Mapping[str, object]) -> dict[str, object]:
    return {key: value or None for key, value in changes.items()}


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_shown(one)}' for key, one in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    return Failed(why, hint="df /etc; ls -ld /etc/vgpuctl", **facts)

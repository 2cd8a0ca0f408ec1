# SPDX-License-Identifier: Apache-2.0
"""The images that a controller brings to a simulated host: their content is in files of the host's state directory."""

from __future__ import annotations

import hashlib
import os
import posixpath

from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.sim.objects import SimFile, SimPool
from vgpuctl.sim.state import file_record
from vgpuctl.sim.storage import SimStorage


@serialize_calls
class SimImageFolders:
    """Images in the folders of a simulated host."""

    def __init__(self, core: Core, storage: SimStorage) -> None:
        self._core = core
        self._storage = storage

    def local_path(self, path: str) -> str:
        """Return the file with the content."""
        folder = self._core.directory / "images"
        folder.mkdir(mode=0o700, exist_ok=True)
        return str(folder / f"{hashlib.sha256(path.encode()).hexdigest()[:16]}-{posixpath.basename(path)[-100:]}")

    def file_bytes(self, path: str) -> int | None:
        """Return how much space a file takes, which is the size of one that was brought here."""
        file = self._core.read_state().find_file(path)
        return None if file is None else file.allocation

    def free_bytes(self, directory: str) -> int:
        """Return how much the host's file system has free, less what is in parts of images."""
        parts = sum(one.stat().st_size for one in (self._core.directory / "images").glob("*.part"))
        state = self._core.read_state()
        pool = next((one for one in state.pools.values() if one.path == directory), SimPool("", directory, active=True))
        return max(0, self._storage.space(state, pool)[1] - parts)

    def publish(self, part: str, path: str, format_name: str, size_bytes: int) -> None:
        """Give an image its name.

        Raises:
            FileExistsError: there is a file of this name.
        """
        with self._core.operation("publish-image", path) as change:
            if path in self._core.state.files:
                raise FileExistsError(path)
            size = os.stat(part).st_size
            os.rename(part, self.local_path(path))
            change.add(*file_record(SimFile(path, size_bytes, format_name, None, size, "both")))

    def remove(self, path: str) -> None:
        """Delete an image; a missing one is no error."""
        with self._core.operation("remove-image", path) as change:
            if path in self._core.state.files:
                change.add("unfile", path)
            with_content = self.local_path(path)
            if os.path.exists(with_content):
                os.unlink(with_content)

# SPDX-License-Identifier: Apache-2.0
"""The seed that cloud-init reads in a guest: an ISO 9660 image named `cidata`.

That is cloud-init's NoCloud data source (doc/rtd/reference/datasources/nocloud.rst): user-data and meta-data must
exist, network-config and vendor-data may. A guest whose disk does not know the instance-id yet applies them at its
first boot; vgpuctl's part, vendor-data, applies at each boot. A guest with Windows applies the former with
cloudbase-init only; vgpuctl's part has other files for it (`domain.guest_setup`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import suppress

from pycdlib import PyCdlib
from pycdlib.pycdlibexception import PyCdlibInvalidInput

from vgpuctl.domain.answer_file import ANSWER_FILE, read_blob
from vgpuctl.domain.guest_setup import SCRIPT_FILES, SETUP_FILES, setup_files, setup_script
from vgpuctl.model.request import CloudInit, GuestSetup
from vgpuctl.value import replace

VOLUME_LABEL = "cidata"
_USER_FILES = ("user-data", "meta-data", "network-config")
_ROOM_BYTES, _UNIT_BYTES = 128 << 10, 1 << 20
"""An image has room for a token and certificates that come later, and is a multiple of the unit."""
_ROOT_ONLY_MODE = 0o100400
"""A file that only root may read, even in a guest whose desktop mounts CD-ROMs by itself."""


def hostname_of_vm(vm_name: str) -> str:
    """Return a VM's name as a host name: letters, digits and '-', with no '-' at either end of a part."""
    parts = (part.replace("_", "-").strip("-") for part in vm_name.split("."))
    return ".".join(part for part in parts if part)


def build_seed_image(files: CloudInit, instance_id: str, hostname: str) -> bytes:
    """Return the ISO image; meta-data is JSON, a part of the YAML that cloud-init reads.

    Without user-data the image has an empty cloud-config, because that file must exist. It has room for a larger script
    of vgpuctl's: `with_setup` keeps its size.
    """
    meta = json.dumps({"instance-id": instance_id, "local-hostname": hostname}) + "\n"
    texts = {"user-data": files.user_data.text if files.user_data else "#cloud-config\n", "meta-data": meta}
    if files.network_config is not None:
        texts["network-config"] = files.network_config.text
    image = _build({**texts, **setup_files(files.setup)})
    return image.ljust(-(-(len(image) + _ROOM_BYTES) // _UNIT_BYTES) * _UNIT_BYTES, b"\0")


def with_setup(image: bytes, setup: GuestSetup, *, unread: bool = False) -> bytes:
    """Return a seed of the same size with the script for this setup, and all else as it is.

    A setup that joins a domain without a blob keeps the one that the seed has. `unread`: as `setup_script` has it.

    Raises:
        ValueError: it is no seed, or too small for the script.
    """
    texts = _read(image)
    users = {name: text for name, text in texts.items() if name not in SETUP_FILES}
    setup = _with_own_blob(texts, setup)
    changed = _build({**users, **setup_files(setup, replaces=_script(texts) is not None, unread=unread)})
    if len(changed) > len(image):
        raise ValueError(f"it has {len(image)} bytes and needs {len(changed)}")
    return changed.ljust(len(image), b"\0")


def read_setup(image: bytes) -> str | None:
    """Return the script of vgpuctl's in a seed; None if it has none.

    Raises:
        ValueError: it is no seed.
    """
    return _script(_read(image))


def has_setup(image: bytes, setup: GuestSetup) -> bool:
    """Return whether a seed has just this setup, whenever it was written.

    Raises:
        ValueError: it is no seed.
    """
    texts = _read(image)
    script, setup = _script(texts), _with_own_blob(texts, setup)
    replaces = script is not None
    return script in (setup_script(setup, replaces=replaces, unread=True), setup_script(setup, replaces=replaces))


def _with_own_blob(texts: Mapping[str, str], setup: GuestSetup) -> GuestSetup:
    """Return a setup with the blob that a seed has already, unless it brings one or joins no domain."""
    join = setup.domain_join
    if join is None or join.blob or ANSWER_FILE not in texts:
        return setup
    return replace(setup, domain_join=replace(join, blob=read_blob(texts[ANSWER_FILE])))


def _script(texts: Mapping[str, str]) -> str | None:
    return next((texts[name] for name in SCRIPT_FILES if name in texts), None)


def _read(image: bytes) -> dict[str, str]:
    """Return the texts of a seed by name; raised outside `except`: its `__context__` would have the texts in it."""
    disc, texts, problem = PyCdlib(), {}, ""
    try:
        disc.open_fp(io.BytesIO(image))
        for name in (*_USER_FILES, *SETUP_FILES):
            with suppress(PyCdlibInvalidInput):  # it has no such file
                buffer = io.BytesIO()
                disc.get_file_from_iso_fp(buffer, rr_path=f"/{name}")
                texts[name] = buffer.getvalue().decode()
        disc.close()
    except Exception as error:  # noqa: BLE001 - a damaged image fails in many ways
        problem = type(error).__name__
    if not problem and not texts.keys() >= {"user-data", "meta-data"}:
        problem = "it has no user-data"
    if problem:
        raise ValueError(f"it is no seed of vgpuctl's, or damaged ({problem})")
    return texts


def _build(texts: Mapping[str, str]) -> bytes:
    image = PyCdlib()
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=VOLUME_LABEL)
    for name, text in texts.items():
        data = text.encode()
        stem, _, suffix = name.upper().replace("-", "_").partition(".")
        image.add_fp(
            io.BytesIO(data),
            len(data),
            iso_path=f"/{stem}.{suffix};1",
            rr_name=name,
            joliet_path=f"/{name}",
            file_mode=_ROOT_ONLY_MODE,
        )
    buffer = io.BytesIO()
    image.write_fp(buffer)
    image.close()
    return buffer.getvalue()

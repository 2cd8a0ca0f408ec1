# SPDX-License-Identifier: Apache-2.0
"""The seed that cloud-init reads in a guest: an ISO 9660 image named `cidata` with user-data and meta-data.

That is cloud-init's NoCloud data source (doc/rtd/reference/datasources/nocloud.rst): both files must be there, and a
guest whose disk does not know the instance-id yet is set up by them at its first boot.
"""

from __future__ import annotations

import io
import json

from pycdlib import PyCdlib

LABEL = "cidata"
_ROOT_ONLY = 0o100400
"""A file that only root may read, also in the guest where a desktop mounts CD-ROMs by itself."""


def hostname(vm_name: str) -> str:
    """Return a VM's name as a host name: letters, digits and '-', none of these at an end of a part."""
    parts = (part.replace("_", "-").strip("-") for part in vm_name.split("."))
    return ".".join(part for part in parts if part)


def seed_image(user_data: str, instance_id: str, host: str) -> bytes:
    """Return the ISO image; meta-data is JSON, a part of the YAML that cloud-init reads."""
    meta = json.dumps({"instance-id": instance_id, "local-hostname": host}) + "\n"
    image = PyCdlib()
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=LABEL)
    for name, text in (("user-data", user_data), ("meta-data", meta)):
        data = text.encode()
        short = name.upper().replace("-", "_")
        image.add_fp(
            io.BytesIO(data),
            len(data),
            iso_path=f"/{short}.;1",
            rr_name=name,
            joliet_path=f"/{name}",
            file_mode=_ROOT_ONLY,
        )
    made = io.BytesIO()
    image.write_fp(made)
    image.close()
    return made.getvalue()

# SPDX-License-Identifier: Apache-2.0
"""The seed that cloud-init reads in a guest: an ISO 9660 image named `cidata`.

That is cloud-init's NoCloud data source (doc/rtd/reference/datasources/nocloud.rst): user-data and meta-data must
exist, network-config and vendor-data may. A guest whose disk does not know the instance-id yet applies them at its
first boot; vgpuctl's part, vendor-data, applies at each boot.
"""

from __future__ import annotations

import io
import json

from pycdlib import PyCdlib

from vgpuctl.domain.guest_setup import setup_script
from vgpuctl.model.request import CloudInit

VOLUME_LABEL = "cidata"
_ROOT_ONLY_MODE = 0o100400
"""A file that only root may read, even in a guest whose desktop mounts CD-ROMs by itself."""


def hostname_of_vm(vm_name: str) -> str:
    """Return a VM's name as a host name: letters, digits and '-', with no '-' at either end of a part."""
    parts = (part.replace("_", "-").strip("-") for part in vm_name.split("."))
    return ".".join(part for part in parts if part)


def build_seed_image(files: CloudInit, instance_id: str, hostname: str) -> bytes:
    """Return the ISO image; meta-data is JSON, a part of the YAML that cloud-init reads.

    Without user-data the image has an empty cloud-config, because that file must exist.
    """
    meta = json.dumps({"instance-id": instance_id, "local-hostname": hostname}) + "\n"
    image = PyCdlib()
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=VOLUME_LABEL)
    texts = {"user-data": files.user_data.text if files.user_data else "#cloud-config\n", "meta-data": meta}
    if files.network_config is not None:
        texts["network-config"] = files.network_config.text
    script = setup_script(files)
    if script is not None:
        texts["vendor-data"] = script
    for name, text in texts.items():
        data = text.encode()
        short = name.upper().replace("-", "_")
        image.add_fp(
            io.BytesIO(data),
            len(data),
            iso_path=f"/{short}.;1",
            rr_name=name,
            joliet_path=f"/{name}",
            file_mode=_ROOT_ONLY_MODE,
        )
    buffer = io.BytesIO()
    image.write_fp(buffer)
    image.close()
    return buffer.getvalue()

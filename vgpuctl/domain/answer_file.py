# SPDX-License-Identifier: Apache-2.0
"""The answer file by which Windows' setup runs what vgpuctl sets up in a guest.

Where Windows has no answer file in %WINDIR%/Panther, it searches drives with removable media for `Unattend.xml`, and
then System32/Sysprep: in its installation, and in the first start of an image that sysprep generalized (Microsoft
Learn, "Windows Setup Automation Overview", "Implicit Answer File Search Order"). An error of the file's command would
stop Windows' setup, so it returns none.

The only secret in it is the blob by which the guest joins a domain, in the pass `specialize`: Identification,
Provisioning, AccountData of Microsoft-Windows-UnattendedJoin (Microsoft Learn, Unattended Windows Setup Reference,
"Provisioning"). Windows copies the file to its disk, where the seed's script takes the blob out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from vgpuctl.value import EMPTY_MAPPING

ANSWER_FILE = "Unattend.xml"
SCRIPT_FILE = "vgpuctl-setup.ps1"
MAX_COMMAND = 259
"""The longest command that an answer file may have (Microsoft Learn, "RunSynchronousCommand", Path)."""
_NAMESPACE = "urn:schemas-microsoft-com:unattend"
_PREFIXES: dict[str | None, str] = {None: _NAMESPACE, "wcm": "http://schemas.microsoft.com/WMIConfig/2002/State"}
_COMPONENT = {
    "processorArchitecture": "amd64",
    "publicKeyToken": "31bf3856ad364e35",
    "language": "neutral",
    "versionScope": "nonSxS",
}
_ACCOUNT_DATA = ("Identification", "Provisioning", "AccountData")
_DRIVES = "D E F G H I J K"


def register_command() -> str:
    """Return the command of Windows that has a seed's script run at each start of the guest.

    Which letter the seed's drive has is not known, so it tries those that CD-ROMs get.
    """
    script = rf"%d:\{SCRIPT_FILE}"
    run = f"powershell.exe -NoProfile -NonInteractive -ExecutionPolicy Bypass -File {script} register"
    return f'cmd.exe /c "(for %d in ({_DRIVES}) do if exist {script} {run}) & exit 0"'


def build_answer_file(blob: str = "") -> str:
    """Return the answer file: in the pass `specialize`, as Windows' system account, it registers a seed's script.

    `blob`: base64, by which the guest joins a domain in the same pass; empty: it joins none.
    """
    from lxml import etree

    def add(parent: etree._Element, tag: str, attributes: Mapping[str, str] = EMPTY_MAPPING) -> etree._Element:
        return etree.SubElement(parent, f"{{{_NAMESPACE}}}{tag}", dict(attributes))

    root = etree.Element(f"{{{_NAMESPACE}}}unattend", nsmap=cast("Mapping[str, str]", _PREFIXES))
    settings = add(root, "settings", {"pass": "specialize"})
    if blob:
        parent = add(settings, "component", {"name": "Microsoft-Windows-UnattendedJoin", **_COMPONENT})
        for tag in _ACCOUNT_DATA:
            parent = add(parent, tag)
        parent.text = blob
    commands = add(add(settings, "component", {"name": "Microsoft-Windows-Deployment", **_COMPONENT}), "RunSynchronous")
    command = add(commands, "RunSynchronousCommand", {f"{{{_PREFIXES['wcm']}}}action": "add"})
    add(command, "Order").text = "1"
    add(command, "Description").text = "What the host's vgpuctl sets up"
    add(command, "Path").text = register_command()
    return '<?xml version="1.0" encoding="utf-8"?>\n' + etree.tostring(root, encoding="unicode", pretty_print=True)


def read_blob(answer_file: str) -> str:
    """Return the blob in an answer file that `build_answer_file` made; empty if there is none.

    Raises:
        ValueError: it is no XML.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    try:
        root = etree.fromstring(answer_file.encode(), parser)
    except etree.XMLSyntaxError:
        root = None
    if root is None:  # outside `except`: nothing of the file is in `__context__`
        raise ValueError("its answer file is no XML")
    path = "/".join(f"{{{_NAMESPACE}}}{tag}" for tag in ("settings", "component", *_ACCOUNT_DATA))
    return root.findtext(path) or ""

# SPDX-License-Identifier: Apache-2.0
"""The answer file by which Windows' setup runs what vgpuctl sets up in a guest.

Where Windows has no answer file in %WINDIR%/Panther, it searches drives with removable media for `Unattend.xml`, and
then System32/Sysprep: in its installation, and in the first start of an image that sysprep generalized (Microsoft
Learn, "Windows Setup Automation Overview", "Implicit Answer File Search Order"). It copies the file to its disk, so no
secret is in it. An error of the file's command would stop Windows' setup, so it returns none.
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
    "name": "Microsoft-Windows-Deployment",
    "processorArchitecture": "amd64",
    "publicKeyToken": "31bf3856ad364e35",
    "language": "neutral",
    "versionScope": "nonSxS",
}
_DRIVES = "D E F G H I J K"


def register_command() -> str:
    """Return the command of Windows that has a seed's script run at each start of the guest.

    Which letter the seed's drive has is not known, so it tries those that CD-ROMs get.
    """
    script = rf"%d:\{SCRIPT_FILE}"
    run = f"powershell.exe -NoProfile -NonInteractive -ExecutionPolicy Bypass -File {script} register"
    return f'cmd.exe /c "(for %d in ({_DRIVES}) do if exist {script} {run}) & exit 0"'


def build_answer_file() -> str:
    """Return the answer file: in the pass `specialize`, as Windows' system account, it registers a seed's script."""
    from lxml import etree

    def add(parent: etree._Element, tag: str, attributes: Mapping[str, str] = EMPTY_MAPPING) -> etree._Element:
        return etree.SubElement(parent, f"{{{_NAMESPACE}}}{tag}", dict(attributes))

    root = etree.Element(f"{{{_NAMESPACE}}}unattend", nsmap=cast("Mapping[str, str]", _PREFIXES))
    settings = add(root, "settings", {"pass": "specialize"})
    commands = add(add(settings, "component", _COMPONENT), "RunSynchronous")
    command = add(commands, "RunSynchronousCommand", {f"{{{_PREFIXES['wcm']}}}action": "add"})
    add(command, "Order").text = "1"
    add(command, "Description").text = "What the host's vgpuctl sets up"
    add(command, "Path").text = register_command()
    return '<?xml version="1.0" encoding="utf-8"?>\n' + etree.tostring(root, encoding="unicode", pretty_print=True)

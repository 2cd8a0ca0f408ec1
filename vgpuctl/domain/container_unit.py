# SPDX-License-Identifier: Apache-2.0
"""A unit of systemd that starts a container of a pod in the guest, by podman.

Every word of the manifest is quoted as systemd.service(5) and systemd.syntax(7) have it: in double quotes, with C's
escapes, `%%` for `%` and, in commands, `$$` for `$`. Variables are in a file of their own, because every user of the
guest sees commands and units, and podman itself must not get them. Both are text only: nothing here starts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_UNIT_NAME = re.compile(r"[^a-z0-9-]+", re.ASCII)
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_./:@=+,-]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "%": "%%"}


def unit_name(pod: str, container: str) -> str:
    """Return the name of the unit of a pod's container: letters, digits and `-`."""
    stem = pod if pod == container else f"{pod}-{container}"
    return f"job-{_UNIT_NAME.sub('-', stem.lower()).strip('-')[:100] or 'container'}.service"


def variables_file(name: str) -> str:
    """Return the path of the file with the variables of a unit's container."""
    return f"/etc/vgpuctl/jobs/{name.removesuffix('.service')}.env"


def variables_text(env: Mapping[str, str]) -> str:
    """Return the file with a container's variables, as podman's --env-file reads it: a line each, nothing quoted.

    Raises:
        ValueError: a name or a value cannot be in a line.
    """
    for key, value in env.items():
        if _VARIABLE.fullmatch(key) is None:
            raise ValueError(f"the variable {key[:40]!a}")
        if not value.isprintable():
            raise ValueError(f"the variable {key}: its value has more than one line, or a control character")
    return "".join(f"{key}={value}\n" for key, value in env.items())


def expand(word: str, env: Mapping[str, str]) -> str:
    """Return a word with the values for its `$(NAME)`, as Kubernetes has it: unknown ones stay, `$$` is one `$`."""
    return _REFERENCE.sub(lambda m: "$" if m[1] is None else env.get(m[1], m[0]), word)


def unknown_names(words: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in `$(NAME)` of words that have no value: a shell would run commands of these names."""
    names = (match[1] for word in words for match in _REFERENCE.finditer(word))
    return tuple(dict.fromkeys(name for name in names if name is not None and name not in env))


def full_image_name(image: str) -> str:
    """Return an image's name with its registry: without one Kubernetes takes it from Docker's, and podman asks.

    Raises:
        ValueError: it is no image's name.
    """
    if _IMAGE.fullmatch(image) is None:
        raise ValueError(f"the image {image[:40]!a}" if image else "no image")
    registry, slash, _ = image.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def container_unit(
    name: str,
    image: str,
    command: Sequence[str],
    args: Sequence[str],
    *,
    restart: str,
    has_variables: bool,
    devices: Sequence[str],
    working_dir: str = "",
    shm_mib: int | None = None,
) -> str:
    """Return the unit of a container with devices of the guest, as podman's --device takes them.

    `command` replaces the image's entry point, as in Kubernetes. `restart`: as systemd's Restart= has it.
    `has_variables`: it has a file with them. `working_dir`: empty for the image's. `shm_mib`: the size of /dev/shm, 0
    for no limit, None for podman's own.

    Raises:
        ValueError: a text has a character that no unit can have.
    """
    words = ["/usr/bin/podman", "run", "--rm", "--replace", f"--name={name.removesuffix('.service')}"]
    words += ["--network=host"]  # containers of a pod reach each other at localhost, and others reach their ports
    words += [f"--device={device}" for device in devices]
    words += [f"--env-file={variables_file(name)}"] if has_variables else []
    words += [f"--workdir={working_dir}"] if working_dir else []
    words += [] if shm_mib is None else [f"--shm-size={shm_mib}m" if shm_mib else "--shm-size=0"]
    words += [] if not command else [f"--entrypoint={command[0]}"]
    words += [image, *command[1:], *args]
    return f"""[Unit]
Description={name.removesuffix(".service")}, a container from a manifest
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={" ".join(quote_word(word) for word in words)}
Restart={restart}

[Install]
WantedBy=multi-user.target
"""


def quote_word(word: str) -> str:
    """Return a word of a command as a unit has it.

    Raises:
        ValueError: it has a character that no unit can have.
    """
    return word if _PLAIN.fullmatch(word) else _quote(word).replace("$", "$$")


def _quote(text: str) -> str:
    if any(not character.isprintable() and character not in "\n\r\t" for character in text):
        raise ValueError("a control character or an invisible one")
    return f'"{"".join(_ESCAPES.get(character, character) for character in text)}"'

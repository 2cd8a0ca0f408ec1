# SPDX-License-Identifier: Apache-2.0
"""What is unusual about the machine that libvirt's domain XML describes: one sentence for each kind of element.

Every domain has features, a CPU, a clock, a console and a video card, mostly as virt-install, virt-manager or libvirt
choose them. None of that is taken over, and only what the guest or its users would miss is named. The template
vm.xml.j2 has what a VM of vgpuctl gets. Source of the elements: https://libvirt.org/formatdomain.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vgpuctl.config.foreign_vms.xml_reader import attribute, children, content, first, line_of, local_name, shown

if TYPE_CHECKING:
    from lxml import etree

    from vgpuctl.config.foreign_vms.imported import Source

_FEATURES = frozenset({"acpi", "apic", "pae", "smm", "gic", "vmport", "hyperv", "kvm"})
_NAMED_OF_HYPERVISOR = {"hyperv": frozenset({"vendor_id"}), "kvm": frozenset({"hidden", "dedicated", "hint-dedicated"})}
"""What changes how the guest sees its hypervisor; the other features of these two make it faster."""
_CPU_MODES = ("host-passthrough", "host-model", "maximum")
_NESTED = ("vmx", "svm", "hypervisor")
"""CPU features by which a guest runs VMs, or knows that it is one."""
_TIMERS = frozenset({"rtc", "pit", "hpet", "hypervclock", "kvmclock"})
_VIDEO = frozenset({"virtio", "qxl", "cirrus", "vga", "bochs"})
_LOCAL = (None, "", "127.0.0.1", "::1", "localhost")
_STOPS = {
    "on_poweroff": ("destroy",),
    "on_reboot": ("restart",),
    "on_crash": ("destroy", "restart"),
    "on_lockfailure": (),
}
_PORT_TYPES = frozenset({"pty", "unix", "spicevmc", "spiceport", "qemu-vdagent", "dbus", "null"})
_CHANNELS = ("org.qemu.guest_agent.", "com.redhat.spice.", "org.spice-space.", "org.libguestfs.", "org.vgpuctl.")
_MAX_NAMED = 4


def find_unusual(source: Source, domain: etree._Element, *, is_windows: bool, firmware: str) -> list[str]:
    """Return a sentence with the line for each kind of element that says something unusual."""
    devices = first(domain, "devices")
    is_windows_11 = is_windows and firmware == "uefi"  # `os: windows11`: else the guest is `linux` or `generic`
    kinds = (
        ("features", _features(domain, has_hyperv=is_windows_11), "vgpuctl chooses what the guest sees of KVM"),
        ("cpu", _cpu(domain, names_sockets=is_windows and not is_windows_11), _CPU_REASON),
        ("clock", _timers(domain), "vgpuctl chooses the timers"),
        ("os", _secure_boot(domain) if not is_windows else (), "only os: windows11 has it here"),
        ("pm", _sleep(domain), "vgpuctl chooses the sleep states"),
        ("on_poweroff, on_reboot, on_crash", _stops(domain), "a VM of vgpuctl has destroy, restart and destroy"),
        ("seclabel", _labels(domain), "libvirt chooses the label here"),
        ("video", _video(devices), "a VM spec has display: for a vGPU's screen; else the VM has a VGA card"),
        ("graphics", _graphics(devices), "the console here is VNC on 127.0.0.1 without a password"),
        ("channel, serial, console", _ports(devices), "it leads to something of the other host"),
        ("input", _inputs(devices), "a device of the other host"),
        ("rng", _random(devices), "the guest's random numbers come from /dev/urandom"),
    )
    sentences = []
    for name, parts, reason in kinds:
        unusual = tuple(parts)
        texts = list(dict.fromkeys(source.text(line_of(element), f"<{name}>", text) for element, text in unusual))
        if texts:
            more = f" and {len(texts) - _MAX_NAMED} more" if len(texts) > _MAX_NAMED else ""
            place = source.at(line_of(unusual[0][0]))
            sentences.append(f"{place}: <{name}>: {', '.join(texts[:_MAX_NAMED])}{more}: {reason}")
    return sentences


_CPU_REASON = "vgpuctl chooses the CPU that the guest sees"
_Parts = Iterator[tuple["etree._Element", str]]


def _each(parent: etree._Element | None, *names: str) -> Iterator[etree._Element]:
    return iter(()) if parent is None else children(parent, *names)


def _features(domain: etree._Element, *, has_hyperv: bool) -> _Parts:
    for feature in _each(first(domain, "features")):
        name = local_name(feature)
        if name not in _FEATURES:
            yield feature, shown(feature)
        if name == "hyperv" and not has_hyperv:
            yield feature, shown(feature)
        for part in children(feature):
            if local_name(part) in _NAMED_OF_HYPERVISOR.get(name, ()) and attribute(part, "state") != "off":
                yield part, shown(part)


def _cpu(domain: etree._Element, *, names_sockets: bool) -> _Parts:
    cpu = first(domain, "cpu")
    if cpu is None:
        return
    mode = attribute(cpu, "mode")
    if mode not in _CPU_MODES:
        model = content(first(cpu, "model"))[:80]
        yield cpu, model or f"mode {mode or 'custom'}"
    features = [(attribute(part, "name") or "", part) for part in children(cpu, "feature")]
    for name, part in sorted(features, key=lambda pair: pair[0] not in _NESTED):
        policy = attribute(part, "policy") or "require"
        if name != "hypervisor" or policy in ("disable", "forbid"):  # libvirt's full models require it
            yield part, f"{name[:40]} {policy[:20]}"
    for part in children(cpu, "topology"):
        if names_sockets or any(attribute(part, key) not in (None, "1") for key in ("threads", "dies", "clusters")):
            yield part, shown(part)
    for part in children(cpu, "numa"):
        yield part, shown(part)


def _timers(domain: etree._Element) -> _Parts:
    for timer in _each(first(domain, "clock"), "timer"):
        name, is_off = attribute(timer, "name"), attribute(timer, "present") == "no"
        if name not in _TIMERS or (name == "kvmclock" and is_off):
            yield timer, shown(timer)


def _secure_boot(domain: etree._Element) -> _Parts:
    for feature in _each(first(domain, "os", "firmware"), "feature"):
        if attribute(feature, "name") == "secure-boot" and attribute(feature, "enabled") == "yes":
            yield feature, "secure boot"
    for loader in _each(first(domain, "os"), "loader"):
        if attribute(loader, "secure") == "yes":
            yield loader, "secure boot"


def _sleep(domain: etree._Element) -> _Parts:
    for part in _each(first(domain, "pm")):
        if attribute(part, "enabled") == "yes":
            yield part, shown(part)


def _stops(domain: etree._Element) -> _Parts:
    for part in children(domain, *_STOPS):
        if content(part) not in _STOPS[local_name(part)]:
            yield part, f"{local_name(part)} {content(part)[:40]}"


def _labels(domain: etree._Element) -> _Parts:
    for label in children(domain, "seclabel"):
        if attribute(label, "type") not in (None, "dynamic"):
            yield label, shown(label)


def find_drawing_card(devices: etree._Element | None) -> etree._Element | None:
    """Return the model of a first video card of virtio with acceleration (formatdomain, "video"); None without one."""
    model = first(first(devices, "video"), "model")
    is_accelerated = attribute(first(model, "acceleration"), "accel3d") == "yes"
    return model if is_accelerated and attribute(model, "type") == "virtio" else None


def _video(devices: etree._Element | None) -> _Parts:
    for number, video in enumerate(_each(devices, "video")):
        model = first(video, "model")
        is_usual = attribute(model, "type") in _VIDEO and attribute(model, "heads") in (None, "1") and not number
        is_accelerated = attribute(first(model, "acceleration"), "accel3d") == "yes"
        if model is not None and (not is_usual or (is_accelerated and model is not find_drawing_card(devices))):
            yield video, shown(model)
    for hostdev in _each(devices, "hostdev"):
        if attribute(hostdev, "display") == "on":
            yield hostdev, "<hostdev display='on'>"


def _graphics(devices: etree._Element | None) -> _Parts:
    for graphics in _each(devices, "graphics"):
        kind = attribute(graphics, "type")
        is_drawing = kind == "egl-headless" and find_drawing_card(devices) is not None
        if kind not in ("vnc", "spice") and not is_drawing:
            yield graphics, f"type {(kind or 'unknown')[:20]}"
        if attribute(graphics, "passwd") is not None:
            yield graphics, "a password"
        for gl in children(graphics, "gl"):
            if attribute(gl, "enable") == "yes":
                yield gl, "OpenGL"
        listens = [(graphics, attribute(graphics, "listen"))]
        listens += [(listen, attribute(listen, "address")) for listen in children(graphics, "listen")]
        for element, address in listens:
            if address not in _LOCAL:
                yield element, f"listen {str(address)[:60]}"


def _ports(devices: etree._Element | None) -> _Parts:
    for port in _each(devices, "channel", "serial", "console"):
        target = attribute(first(port, "target"), "name")
        if attribute(port, "type") not in _PORT_TYPES:
            yield port, shown(port)
        elif target is not None and not target.startswith(_CHANNELS):
            yield port, target[:80]


def _inputs(devices: etree._Element | None) -> _Parts:
    for device in _each(devices, "input"):
        if attribute(device, "type") not in ("tablet", "mouse", "keyboard"):
            yield device, shown(device)


def _random(devices: etree._Element | None) -> _Parts:
    for backend in (first(rng, "backend") for rng in _each(devices, "rng")):
        if backend is not None and attribute(backend, "model") not in ("random", "builtin"):
            yield backend, shown(backend)

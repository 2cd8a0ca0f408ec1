# SPDX-License-Identifier: Apache-2.0
"""Elements of libvirt's domain XML that are not taken over: named where they say something unusual, and only there."""

from __future__ import annotations

import pytest

from vgpuctl.config.foreign_vms.imported import ImportedVm
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file

WINDOWS = (
    "<metadata><i:libosinfo xmlns:i='http://libosinfo.org/xmlns/libvirt/domain/1.0'>"
    "<i:os id='http://microsoft.com/win/11'/></i:libosinfo></metadata>"
)
HYPERV = "<hyperv mode='custom'><relaxed state='on'/><vapic state='on'/><spinlocks state='on' retries='8191'/></hyperv>"
USUAL = """<domain type='kvm' id='3'>
  <name>a</name>
  {metadata}
  <memory unit='KiB'>4194304</memory><currentMemory unit='KiB'>4194304</currentMemory>
  <vcpu placement='static'>2</vcpu>
  <resource><partition>/machine</partition></resource>
  <os firmware='efi'><type arch='x86_64'>hvm</type><boot dev='hd'/></os>
  <features>
    <acpi/><apic/><pae/>{hyperv}<kvm><hidden state='off'/></kvm><vmport state='off'/><smm state='on'/>
  </features>
  <cpu mode='host-passthrough' check='none' migratable='on'><topology sockets='1' dies='1' cores='2' threads='1'/></cpu>
  <clock offset='{offset}'>
    <timer name='rtc' tickpolicy='catchup'/><timer name='pit' tickpolicy='delay'/><timer name='hpet' present='no'/>
    <timer name='hypervclock' present='yes'/>
  </clock>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <pm><suspend-to-mem enabled='no'/><suspend-to-disk enabled='no'/></pm>
  <devices>
    <controller type='usb' index='0' model='qemu-xhci' ports='15'/><controller type='pci' index='0' model='pcie-root'/>
    <controller type='virtio-serial' index='0'/>
    <serial type='pty'><target type='isa-serial' port='0'/></serial>
    <console type='pty'><target type='serial' port='0'/></console>
    <channel type='unix'><source mode='bind' path='/x'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <channel type='spicevmc'><target type='virtio' name='com.redhat.spice.0'/></channel>
    <input type='tablet' bus='usb'/><input type='mouse' bus='ps2'/><input type='keyboard' bus='ps2'/>
    <graphics type='spice' port='5900' autoport='yes' listen='127.0.0.1'>
      <listen type='address' address='127.0.0.1'/><image compression='off'/><gl enable='no'/>
    </graphics>
    <audio id='1' type='spice'/>
    <video><model type='{video}' heads='1' primary='yes'><acceleration accel3d='no'/></model></video>
    <memballoon model='virtio'/>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
  </devices>
  <seclabel type='dynamic' model='apparmor' relabel='yes'/>
</domain>
"""
LINUX_XML = USUAL.format(metadata="", hyperv="", offset="utc", video="virtio")
WINDOWS_XML = USUAL.format(metadata=WINDOWS, hyperv=HYPERV, offset="localtime", video="qxl")


def the_vm(text: str) -> ImportedVm:
    (vm,) = parse_foreign_file(text, "f").vms
    return vm


@pytest.mark.parametrize("video", ["virtio", "qxl", "cirrus", "vga", "bochs"])
def test_what_every_domain_has_is_not_named(video):
    for text in (LINUX_XML, WINDOWS_XML):
        assert the_vm(text.replace("type='virtio' heads", f"type='{video}' heads")).left_out == ()


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("<hidden state='off'/>", "<hidden state='on'/>", "<features>: <hidden state='on'>: "),
        ("<pae/>", "<pae/><ioapic driver='qemu'/><pmu state='off'/>",
         "<features>: <ioapic driver='qemu'>, <pmu state='off'>: "),
        ("host-passthrough", "custom", "<cpu>: mode custom: vgpuctl chooses the CPU"),
        ("<topology sockets='1' dies='1' cores='2' threads='1'/>", "<feature policy='disable' name='vmx'/>",
         "<cpu>: vmx disable: "),
        ("<topology sockets", "<feature policy='disable' name='hypervisor'/><topology sockets",
         "<cpu>: hypervisor disable: "),
        ("threads='1'", "threads='2'", "<cpu>: <topology sockets='1' dies='1' cores='2' threads='2'>: "),
        ("name='pit' tickpolicy='delay'", "name='tsc' frequency='9'", "<clock>: <timer name='tsc' frequency='9'>: "),
        ("name='pit' tickpolicy='delay'", "name='kvmclock' present='no'",
         "<clock>: <timer name='kvmclock' present='no'>: "),
        ("<type arch", "<firmware><feature enabled='yes' name='secure-boot'/></firmware><type arch",
         "<os>: secure boot: only os: windows11 has it here"),
        ("<type arch", "<loader secure='yes'/><type arch", "<os>: secure boot: "),
        ("mem enabled='no'", "mem enabled='yes'", "<pm>: <suspend-to-mem enabled='yes'>: "),
        ("<on_crash>destroy", "<on_crash>coredump-restart",
         "<on_poweroff, on_reboot, on_crash>: on_crash coredump-restart: "),
        ("<on_reboot>restart", "<on_reboot>destroy", "<on_poweroff, on_reboot, on_crash>: on_reboot destroy: "),
        ("<seclabel type='dynamic'", "<seclabel type='none'", "<seclabel>: <seclabel type='none'"),
        ("type='virtio' heads", "type='vmvga' heads", "<video>: <model type='vmvga'"),
        ("type='virtio' heads", "type='none' heads", "<video>: <model type='none'"),
        ("heads='1'", "heads='2'", "<video>: <model type='virtio' heads='2'"),
        ("virtio' heads='1' primary='yes'><acceleration accel3d='no'", "qxl'><acceleration accel3d='yes'",
         "<video>: <model type='qxl'"),
        ("<memballoon", "<video><model type='vga'/></video><memballoon", "<video>: <model type='vga'>: "),
        ("type='spice' port", "type='spice' passwd='geheim' port", "<graphics>: a password: the console here is VNC"),
        ("address='127.0.0.1'", "address='0.0.0.0'", "<graphics>: listen 0.0.0.0: "),
        ("<gl enable='no'/>", "<gl enable='yes' rendernode='/dev/dri/renderD128'/>", "<graphics>: OpenGL: "),
        ("<memballoon", "<graphics type='egl-headless'/><memballoon", "<graphics>: type egl-headless: "),
        ("<serial type='pty'", "<serial type='tcp'", "<channel, serial, console>: <serial type='tcp'>: "),
        ("com.redhat.spice.0", "org.example.0", "<channel, serial, console>: org.example.0: "),
        ("<input type='mouse' bus='ps2'/>", "<input type='evdev'/>", "<input>: <input type='evdev'>: "),
        ("<backend model='random'>/dev/urandom", "<backend model='egd' type='udp'>",
         "<rng>: <backend model='egd' type='udp'>: "),
    ],
)  # fmt: skip
def test_what_is_unusual_is_named_in_one_sentence_with_its_line(before, after, sentence):
    assert before in LINUX_XML
    text = LINUX_XML.replace(before, after, 1)
    (line,) = the_vm(text).left_out
    lines = zip(LINUX_XML.split("\n"), text.split("\n"), strict=True)
    assert line.startswith(f"f:{next(n for n, (old, new) in enumerate(lines, 1) if old != new)}: {sentence}")
    assert "geheim" not in line


def test_many_unusual_things_of_one_kind_are_one_sentence_with_the_nested_ones_first():
    features = "".join(f"<feature policy='require' name='f{n}'/>" for n in range(30))
    cpu = f"<cpu mode='custom'><model>Skylake-Server</model>{features}<feature policy='disable' name='svm'/></cpu>"
    left_out = the_vm(f"<domain><name>a</name>{cpu}<features><a/><b/><c/><d/><e/><e/></features></domain>").left_out
    assert left_out == (
        "f:1: <features>: <a>, <b>, <c>, <d> and 1 more: vgpuctl chooses what the guest sees of KVM",
        "f:1: <cpu>: Skylake-Server, svm disable, f0 require, f1 require and 28 more: vgpuctl chooses the CPU that the "
        "guest sees",
    )


def test_windows_with_bios_loses_what_only_windows_11_has_here():
    left_out = the_vm(WINDOWS_XML.replace("<os firmware='efi'>", "<os>")).left_out
    assert [line.split(": ")[:3] for line in left_out] == [
        ["f:9", "<features>", "<hyperv mode='custom'>"],
        ["f:11", "<cpu>", "<topology sockets='1' dies='1' cores='2' threads='1'>"],
    ]
    assert "secure" not in str(the_vm(WINDOWS_XML.replace("<type arch", "<loader secure='yes'/><type arch")).left_out)


def test_a_hypervisor_that_hides_from_windows_is_named():
    text = WINDOWS_XML.replace("</hyperv>", "<vendor_id state='on' value='x'/></hyperv>")
    assert [line.split(": ")[2] for line in the_vm(text).left_out] == ["<vendor_id state='on' value='x'>"]
    assert the_vm(text.replace("<vendor_id state='on'", "<vendor_id state='off'")).left_out == ()


def test_the_screen_of_a_vgpu_is_named():
    vgpu = "<hostdev type='mdev' display='on'><source><address uuid='x'/></source></hostdev>"
    assert any("<hostdev display='on'>: a VM spec has display:" in line
               for line in the_vm(LINUX_XML.replace("<memballoon", f"{vgpu}<memballoon")).left_out)  # fmt: skip


def test_a_device_from_which_the_vm_boots_is_no_gpu():
    source = "<source><address domain='0' bus='0x3b' slot='0' function='0'/></source>"
    disk = f"<hostdev type='pci' mode='subsystem'>{source}<boot order='1'/></hostdev>"
    vm = the_vm(LINUX_XML.replace("<memballoon", f"{disk}<memballoon"))
    assert not vm.gpus
    assert any("the VM boots from it" in line for line in vm.left_out)
    card = disk.replace("<boot order='1'/>", "")
    gpu = the_vm(LINUX_XML.replace("<memballoon", f"{card}<memballoon"))
    assert len(gpu.gpus) == 1

# Runs once in L2 before its snapshot: every test then finds a settled host.
set -eu
systemctl is-system-running --wait > /dev/null || {
    systemctl --failed --no-pager --plain
    exit 1
}
systemctl start libvirtd.service
# libvirt probes QEMU's capabilities now, with KVM there, and keeps the answer.
virsh domcapabilities --virttype kvm > /dev/null
virsh domcapabilities --virttype kvm --machine q35 > /dev/null
virsh capabilities > /dev/null
virsh net-autostart default > /dev/null
virsh net-list --name | grep -qx default || virsh net-start default > /dev/null
virsh pool-info default > /dev/null 2>&1 || {
    virsh pool-define-as default dir --target /var/lib/libvirt/images > /dev/null
    virsh pool-start default > /dev/null
    virsh pool-autostart default > /dev/null
}
virsh nodedev-list > /dev/null
python3 -c 'import libvirt; libvirt.open("qemu:///system").close()'
systemctl stop systemd-tmpfiles-clean.timer
sync

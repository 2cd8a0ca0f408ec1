#!/bin/bash
# Does vgpulab behave as the reference says? Runs inside the virtual host (L2)
# as root, prints one PASS or FAIL line per fact, exits 1 if any failed.
#
#   KO=vgpulab.ko ./check.sh [vendor-vf mdev-vf mdev-pf proc mixed mig fill stub race unplug guests]
#
# Devices are found by id: an igb (8086:10c9) and, for `fill`, an nvme with
# SR-IOV. `guests` needs libvirtd, busybox and a guest kernel (KERNEL=, by
# default the newest in /boot); everything else needs only python3.
set -u
KO=${KO:-./vgpulab.ko}
KERNEL=${KERNEL:-$(ls /boot/vmlinuz-* 2>/dev/null | tail -n 1)}
PCI=/sys/bus/pci/devices
MDEV=/sys/bus/mdev/devices
WORK=$(mktemp -d /var/tmp/vgpulab.XXXXXX)
failed=0
trap 'rm -rf "$WORK"' EXIT

# ---------------------------------------------------------------- helpers

expect() {	# what wanted got
	if [[ $2 == "$3" ]]; then
		echo "PASS $1"
	else
		echo "FAIL $1: wanted '$2', got '$3'"
		failed=1
	fi
}

try() {		# file text -> OK or the errno's name
	python3 -c '
import errno, os, sys
try:
    os.write(os.open(sys.argv[1], os.O_WRONLY), sys.argv[2].encode())
    print("OK")
except OSError as e:
    print(errno.errorcode[e.errno])' "$1" "$2"
}

try_at_once() {	# text file... -> how many succeeded, and the others' errnos
	python3 -c '
import collections, errno, os, sys, threading
files, seen = sys.argv[2:], []
start = threading.Barrier(len(files))
def write(n, name):
    handle = os.open(name, os.O_WRONLY)
    start.wait()
    try:
        os.write(handle, sys.argv[1].replace("%N", f"{n:012d}").encode())
        seen.append("OK")
    except OSError as e:
        seen.append(errno.errorcode[e.errno])
threads = [threading.Thread(target=write, args=a) for a in enumerate(files)]
[t.start() for t in threads]
[t.join() for t in threads]
print(*(f"{k} {v}" for k, v in sorted(collections.Counter(seen).items())))' "$@"
}

find_pf() {	# vendor device least-number-of-VFs
	local d
	for d in "$PCI"/*; do
		[[ $(<"$d/vendor") == "$1" && $(<"$d/device") == "$2" ]] || continue
		[[ $(cat "$d/sriov_totalvfs" 2>/dev/null || echo 0) -ge $3 ]] && basename "$d" && return
	done
}

until_true() {	# seconds command...
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[[ $SECONDS -lt $end ]] || return 1
		sleep 0.2
	done
}

vf() { readlink -f "$PCI/$1/virtfn$2"; }
driver() { basename "$(readlink "$1/driver" 2>/dev/null)" 2>/dev/null; }
load() { insmod "$KO" "$@"; }
unload() { rmmod vgpulab; }
uuid() { printf '00000000-0000-4000-8000-%012d' "$1"; }

# Opens a VFIO device as QEMU does, says what it saw, keeps it open until its
# standard input ends.
cat >"$WORK/hold.py" <<'PY'
import errno, fcntl, os, struct, sys
group, name = sys.argv[1:]
try:
    container = os.open("/dev/vfio/vfio", os.O_RDWR)
    handle = os.open("/dev/vfio/" + group, os.O_RDWR)
    fcntl.ioctl(handle, 0x3B68, struct.pack("i", container))
    fcntl.ioctl(container, 0x3B66, 3)
    device = fcntl.ioctl(handle, 0x3B6A, bytearray(name.encode() + b"\0"))
except OSError as e:
    sys.exit(print(errno.errorcode[e.errno]))
config = os.pread(device, 256, 7 << 40)
ids = struct.unpack_from("<HH", config)
kind = int.from_bytes(config[9:12], "little")
print(f"{len(config)} {ids[0]:04x}:{ids[1]:04x} {kind:06x}", flush=True)
sys.stdin.read()
PY

hold() {	# group name -> first line in $held; release ends it
	exec {gate}> >(exec python3 "$WORK/hold.py" "$1" "$2" >"$WORK/held" 2>&1)
	holder=$!
	until_true 20 test -s "$WORK/held"
	held=$(head -n 1 "$WORK/held")
}
release() {
	exec {gate}>&-
	gate=
	until_true 20 not_alive "$holder"
	rm -f "$WORK/held"
}
alive() { [[ -e /proc/$1 && $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) != Z* ]]; }
not_alive() { ! alive "$1"; }

# The kernel parks who removes a device in use. The writer must not inherit
# the pipe that keeps the holder alive.
remove_in_background() {	# mdev link -> $writer, $where
	where=$(readlink -f "$1")
	if [[ ${gate:-} ]]; then
		(exec {gate}>&- sh -c 'echo 1 >"$0/remove"' "$1") &
	else
		sh -c 'echo 1 >"$0/remove"' "$1" &
	fi
	writer=$!
}

# ------------------------------------------------------------ what is shown

check_pf() {	# pf
	local p=$PCI/$1
	expect "$1 ids" "0x10de 0x20f1 0x030200" "$(<"$p/vendor") $(<"$p/device") $(<"$p/class")"
	expect "$1 driver" nvidia "$(driver "$p")"
	expect "$1 has no nvidia directory" no "$([[ -e $p/nvidia ]] && echo yes || echo no)"
}

check_vfs() {	# pf n
	local i v bad=0
	expect "$1 sriov_numvfs" "$2" "$(<"$PCI/$1/sriov_numvfs")"
	expect "$1 raw write to sriov_numvfs" ENOENT "$(try "$PCI/$1/sriov_numvfs" $(($2 ? 0 : 1)))"
	for ((i = 0; i < $2; i++)); do
		v=$(vf "$1" $i)
		[[ $(<"$v/vendor") == 0x10de && $(<"$v/device") == 0x20f1 &&
		   $(<"$v/class") == 0x030200 && $(driver "$v") == nvidia &&
		   -e $v/iommu_group ]] || bad=$((bad + 1))
	done
	expect "$1 $2 VFs with our ids and driver" 0 $bad
}

check_unload() {	# pf vendor
	unload
	expect "$1 unloads" 0 $?
	expect "$1 ids restored" "$2" "$(<"$PCI/$1/vendor")"
	expect "$1 VFs gone" 0 "$(<"$PCI/$1/sriov_numvfs")"
}

# ------------------------------------------------------------- vendor-vf

check_vendor_vf() {
	local a b c g
	load pf="$igb" form=vendor-vf vfs=7
	expect "vendor-vf loads" 0 $?
	check_pf "$igb"
	check_vfs "$igb" 7
	a=$(vf "$igb" 0)/nvidia b=$(vf "$igb" 1)/nvidia c=$(vf "$igb" 2)/nvidia
	expect "vfio-dev" 1 "$(ls "$(vf "$igb" 0)/vfio-dev" | grep -c '^vfio[0-9]')"
	expect "header line" "ID    : vGPU Name" "$(head -n 1 "$a/creatable_vgpu_types")"
	expect "type line" "468   : GRID A100-4C" "$(sed -n 2p "$a/creatable_vgpu_types")"
	expect "an empty card lists 6 types" 7 "$(wc -l <"$a/creatable_vgpu_types")"
	echo N >/sys/module/vgpulab/parameters/header
	expect "without the header" 6 "$(wc -l <"$a/creatable_vgpu_types")"
	expect "current type" 0 "$(<"$a/current_vgpu_type")"
	expect "modes" "444 644 644 644 644" \
		"$(stat -c %a "$a"/{creatable_vgpu_types,current_vgpu_type,vgpu_params,placement_id,gpu_instance_id} | xargs)"

	expect "junk" EINVAL "$(try "$a/current_vgpu_type" abc)"
	expect "hexadecimal" EINVAL "$(try "$a/current_vgpu_type" 0x1d4)"
	expect "a type's name" EINVAL "$(try "$a/current_vgpu_type" "GRID A100-4C")"
	expect "0 while none" EPERM "$(try "$a/current_vgpu_type" 0)"
	expect "unknown type" EIO "$(try "$a/current_vgpu_type" 999)"
	expect "params without a vGPU" ENXIO "$(try "$a/vgpu_params" frame_rate_limiter=0)"
	expect "4C" OK "$(try "$a/current_vgpu_type" 468)"
	expect "current type" 468 "$(<"$a/current_vgpu_type")"
	expect "another type while set" EPERM "$(try "$a/current_vgpu_type" 469)"
	expect "the same type while set" EPERM "$(try "$a/current_vgpu_type" 468)"
	expect "a VF with a type lists none" "" "$(<"$a/creatable_vgpu_types")"
	expect "others list the same size" "468   : GRID A100-4C" "$(<"$b/creatable_vgpu_types")"
	expect "size conflict" EIO "$(try "$b/current_vgpu_type" 469)"
	expect "params" OK "$(try "$a/vgpu_params" "frame_rate_limiter=0, disable_vnc=1
")"
	expect "params read back" "frame_rate_limiter=0, disable_vnc=1" "$(<"$a/vgpu_params")"
	expect "params too long" E2BIG "$(try "$a/vgpu_params" "$(printf 'x%.0s' {1..1500})")"
	expect "params cleared by a blank" "OK " "$(try "$a/vgpu_params" " ") $(<"$a/vgpu_params")"
	expect "clear" "OK 0" "$(try "$a/current_vgpu_type" 0) $(<"$a/current_vgpu_type")"

	expect "two of 20C, no third" "OK OK EIO" \
		"$(for v in "$a" "$b" "$c"; do try "$v/current_vgpu_type" 472; done | xargs)"
	expect "a full card lists none" "" "$(<"$c/creatable_vgpu_types")"
	expect "emptied" "OK OK" "$(for v in "$a" "$b"; do try "$v/current_vgpu_type" 0; done | xargs)"
	expect "an emptied card lists 6 types" 6 "$(wc -l <"$a/creatable_vgpu_types")"

	g=$(basename "$(readlink "$(vf "$igb" 0)/iommu_group")")
	hold "$g" "$(basename "$(vf "$igb" 0)")"
	expect "open without a type" ENODEV "$held"
	release
	try "$a/current_vgpu_type" 468 >/dev/null
	hold "$g" "$(basename "$(vf "$igb" 0)")"
	expect "open with a type" "256 10de:20f1 030200" "$held"
	expect "0 while in use" EPERM "$(try "$a/current_vgpu_type" 0)"
	expect "params while in use" EPERM "$(try "$a/vgpu_params" x=1)"
	expect "rmmod while in use" 1 "$(rmmod vgpulab 2>/dev/null; echo $?)"
	echo 4000 >/sys/module/vgpulab/parameters/exit_delay_ms
	release
	expect "0 before the plugin is gone" EBUSY "$(try "$a/current_vgpu_type" 0)"
	sleep 4
	expect "0 after it" OK "$(try "$a/current_vgpu_type" 0)"
	check_unload "$igb" 0x8086

	load pf="$igb" form=vendor-vf vfs=0
	expect "VFs off" 0 "$(<"$PCI/$igb/sriov_numvfs")"
	check_vfs "$igb" 0
	check_unload "$igb" 0x8086
	expect "too many VFs" 1 "$(load pf="$igb" vfs=99 2>/dev/null; echo $?)"
	expect "no such function" 1 "$(load pf=0000:ff:1f.7 2>/dev/null; echo $?)"
	expect "no such form" 1 "$(load pf="$igb" form=mdev 2>/dev/null; echo $?)"
}

# ----------------------------------------------------------------- mdev

check_mdev_types() {	# function types
	local d=$PCI/$1/mdev_supported_types
	expect "$1 on the mdev bus" yes "$([[ -d /sys/class/mdev_bus/$1 ]] && echo yes)"
	expect "$1 types" "$2" "$(ls "$d" | sort -t- -k2n | sed 's/nvidia-//' | xargs)"
	expect "name" "GRID A100-4C" "$(<"$d/nvidia-468/name")"
	expect "description" "num_heads=1, frl_config=60, framebuffer=4096M, max_resolution=3840x2400, max_instance=10" \
		"$(<"$d/nvidia-468/description")"
	expect "device_api" vfio-pci "$(<"$d/nvidia-468/device_api")"
}

check_mdev_device() {	# uuid: attributes, in use, a parked removal
	local m=$MDEV/$1
	expect "mdev driver" nvidia-vgpu-vfio "$(driver "$m")"
	expect "mdev_type" nvidia-468 "$(basename "$(readlink "$m/mdev_type")")"
	expect "modes" "644 444" "$(stat -c %a "$m"/nvidia/{vgpu_params,vm_name} | xargs)"
	expect "params" "OK a=1" "$(try "$m/nvidia/vgpu_params" a=1) $(<"$m/nvidia/vgpu_params")"
	expect "params too long" E2BIG "$(try "$m/nvidia/vgpu_params" "$(printf 'x%.0s' {1..1500})")"
	hold "$(basename "$(readlink "$m/iommu_group")")" "$1"
	expect "open" "256 10de:20f1 030200" "$held"
	expect "params while in use" EPERM "$(try "$m/nvidia/vgpu_params" a=2)"
	expect "vm_name while in use" python3 "$(<"$m/nvidia/vm_name")"
	expect "rmmod while in use" 1 "$(rmmod vgpulab 2>/dev/null; echo $?)"
	remove_in_background "$m"
	sleep 3
	expect "removal in use is parked" yes "$(alive "$writer" && echo yes)"
	expect "and the link is gone already" no "$([[ -e $m ]] && echo yes || echo no)"
	release
	until_true 20 not_alive "$writer"
	expect "it ends when the device is released" "no no" \
		"$(alive "$writer" && echo yes || echo no) $([[ -e $where ]] && echo yes || echo no)"
}

check_mdev_vf() {
	local a b
	load pf="$igb" form=mdev-vf vfs=7
	expect "mdev-vf loads" 0 $?
	check_pf "$igb"
	check_vfs "$igb" 7
	expect "the PF is no parent" no "$([[ -e $PCI/$igb/mdev_supported_types ]] && echo yes || echo no)"
	check_mdev_types "$(basename "$(vf "$igb" 0)")" "468 469 470 471 472 473 474 475 476 477 478 706 1053"
	a=$(vf "$igb" 0)/mdev_supported_types b=$(vf "$igb" 1)/mdev_supported_types
	expect "available" "1 1" "$(<"$a/nvidia-468/available_instances") $(<"$a/nvidia-473/available_instances")"
	expect "a malformed UUID" EINVAL "$(try "$a/nvidia-468/create" 1234)"
	expect "create" OK "$(try "$a/nvidia-468/create" "$(uuid 1)")"
	expect "taken VF" 0 "$(<"$a/nvidia-468/available_instances")"
	expect "same size elsewhere" "1 0" "$(<"$b/nvidia-468/available_instances") $(<"$b/nvidia-469/available_instances")"
	expect "a second on one VF" EIO "$(try "$a/nvidia-468/create" "$(uuid 2)")"
	expect "size conflict" EIO "$(try "$b/nvidia-469/create" "$(uuid 2)")"
	expect "the same UUID" EEXIST "$(try "$b/nvidia-468/create" "$(uuid 1)")"
	check_mdev_device "$(uuid 1)"
	expect "available again" "1 1" "$(<"$a/nvidia-468/available_instances") $(<"$a/nvidia-473/available_instances")"
	expect "40C fills the card" "OK 0" "$(try "$b/nvidia-473/create" "$(uuid 3)") $(<"$a/nvidia-473/available_instances")"
	check_unload "$igb" 0x8086
	expect "its mdev is gone with it" no "$([[ -e $MDEV/$(uuid 3) ]] && echo yes || echo no)"
}

check_mdev_pf() {
	local a i
	load pf="$igb" form=mdev-pf
	expect "mdev-pf loads" 0 $?
	check_pf "$igb"
	check_mdev_types "$igb" "468 469 470 471 472 473"
	a=$PCI/$igb/mdev_supported_types
	expect "available" "10 8 5 4 2 1" "$(cat "$a"/*/available_instances | xargs)"
	expect "create" OK "$(try "$a/nvidia-468/create" "$(uuid 1)")"
	expect "available after one" "9 0 0 0 0 0" "$(cat "$a"/*/available_instances | xargs)"
	expect "size conflict" EIO "$(try "$a/nvidia-469/create" "$(uuid 2)")"
	check_mdev_device "$(uuid 1)"
	expect "ten of 4C" 10 "$(for i in {1..10}; do try "$a/nvidia-468/create" "$(uuid "$i")"; done | grep -c OK)"
	expect "no eleventh" EIO "$(try "$a/nvidia-468/create" "$(uuid 11)")"
	expect "full" 0 "$(<"$a/nvidia-468/available_instances")"
	expect "all removed" 10 "$(for i in {1..10}; do try "$MDEV/$(uuid "$i")/remove" 1; done | grep -c OK)"
	expect "available again" "10 8 5 4 2 1" "$(cat "$a"/*/available_instances | xargs)"
	check_unload "$igb" 0x8086
}

# ----------------------------------------------------- 16 VFs, 10 vGPUs

check_proc() {	# the driver's own files: locks, registry words, the scheduler
	local gpu=/proc/driver/nvidia/gpus/$igb words="pci=$igb;RmPVMRL=0x00040013" m="$MDEV/$(uuid 8)"
	scheduler() { sed -n 's/^scheduler //p' "$gpu/vgpulab"; }
	load pf="$igb" form=mdev-pf NVreg_RegistryDwords="RmPVMRL=1" NVreg_RegistryDwordsPerDevice="$words"
	expect "a card's own word goes before the word for all" "3 1 0 4000000" "$(scheduler)"
	expect "the log says so" "GPU at $igb has software scheduler ENABLED with policy FIXED_SHARE on GR" \
		"$(dmesg | sed -n 's/.*NVRM: \(.* software scheduler\)/\1/p' | tail -n 1)"
	expect "params have the words" "RegistryDwordsPerDevice: \"$words\"" "$(grep PerDevice /proc/driver/nvidia/params)"
	expect "a lock" 1 "$(echo 1 >"$gpu/unbindLock" && cat "$gpu/unbindLock")"
	expect "no lock while nvidiactl is open" 0 "$({ echo 1 >"$gpu/unbindLock" && cat "$gpu/unbindLock"; } 9</dev/nvidiactl)"
	expect "adaptive slices" "OK 2 2 33 2083333" "$(try "$gpu/vgpulab" "scheduler 2 0 0 480 0") $(scheduler)"
	expect "too many Hz" EINVAL "$(try "$gpu/vgpulab" "scheduler 2 0 0 961 0")"
	expect "no such policy" EINVAL "$(try "$gpu/vgpulab" "scheduler 4 0 0 0 0")"
	expect "strict slices have no Hz" EINVAL "$(try "$gpu/vgpulab" "scheduler 2 1 0 480 0")"
	uuid 8 >"$PCI/$igb/mdev_supported_types/nvidia-468/create"
	expect "its vGPU" "468 $(uuid 8) 0 65535 4294967295" "$(sed -n 's/^vgpu [0-9]* //p' "$gpu/vgpulab")"
	expect "not while it exists" ENOTSUP "$(try "$gpu/vgpulab" "scheduler 1 0 0 0 0")"
	echo 1 >"$m/remove"
	expect "but then" "OK 1 0 0 0" "$(try "$gpu/vgpulab" "scheduler 1 0 0 0 0") $(scheduler)"
	echo "$igb" >"$PCI/$igb/driver/unbind"
	expect "no files without the driver" no "$([[ -e $gpu ]] && echo yes || echo no)"
	echo "$igb" >/sys/bus/pci/drivers/nvidia/bind
	expect "bound again, it begins anew" "3 1 0 4000000" "$(scheduler)"
	check_unload "$igb" 0x8086
	load pf="$igb" form=mdev-pf driver=595.45.04
	expect "no strict slices since 595" EINVAL "$(try "$gpu/vgpulab" "scheduler 3 1 0 0 4000000")"
	check_unload "$igb" 0x8086
}

# ------------------------------------------- several sizes on one card

read_file() {	# file -> its text or the errno's name
	python3 -c '
import errno, sys
try:
    print(open(sys.argv[1]).read().strip())
except OSError as e:
    print(errno.errorcode[e.errno])' "$1"
}
state() { sed -n "s/^$1 //p" "/proc/driver/nvidia/gpus/$igb/vgpulab"; }
tell() { try "/proc/driver/nvidia/gpus/$igb/vgpulab" "$1"; }
types_of() { sed -n 's/ *: .*//p' "$1/creatable_vgpu_types" | grep -v ID | xargs; }
cycle() {	# what sriov-manage -d or -e does to the card: number of VFs
	local p=$PCI/$igb
	echo pci-pf-stub >"$p/driver_override"
	echo "$igb" >"$p/driver/unbind"
	echo "$igb" >/sys/bus/pci/drivers_probe
	echo "$1" >"$p/sriov_numvfs"
	echo "$igb" >"$p/driver/unbind"
	echo >"$p/driver_override"
	echo "$igb" >/sys/bus/pci/drivers/nvidia/bind
}

check_mixed() {
	local a b c
	modprobe pci-pf-stub
	load pf="$igb" form=vendor-vf vfs=7
	a=$(vf "$igb" 0)/nvidia b=$(vf "$igb" 1)/nvidia c=$(vf "$igb" 2)/nvidia
	expect "no placement without a vGPU" "ENXIO ENXIO" "$(read_file "$a/placement_id") $(try "$a/placement_id" 0)"
	expect "one size: NVML's none, and it cannot be moved" "OK 65535 EIO" \
		"$(try "$a/current_vgpu_type" 472) $(<"$a/placement_id") $(try "$a/placement_id" 20)"
	expect "not while a vGPU exists" EBUSY "$(tell "mixed 1")"
	try "$a/current_vgpu_type" 0 >/dev/null
	expect "several sizes" "OK 1 1" "$(tell "mixed 1") $(state mixed)"
	expect "they stand against fixed share" "ENOTSUP OK" "$(tell "scheduler 3 0 0 0 0") $(tell "scheduler 2 0 0 0 0")"
	expect "the places of 4C" "468 4 0+ 6+ 10+ 16+ 20+ 26+ 30+ 36+" "$(state places | grep ^468)"
	expect "of 5C" "469 5 0+ 5+ 10+ 15+ 20+ 25+ 30+ 35+" "$(state places | grep ^469)"
	expect "of 8C" "470 8 0+ 12+ 20+ 32+" "$(state places | grep ^470)"
	expect "the driver takes the first" "OK 0" "$(try "$a/current_vgpu_type" 472) $(<"$a/placement_id")"
	expect "another size beside it" "OK 20" "$(try "$b/current_vgpu_type" 470) $(<"$b/placement_id")"
	expect "a place moved" "OK 32" "$(try "$b/placement_id" 32) $(<"$b/placement_id")"
	expect "to its own" OK "$(try "$b/placement_id" 32)"
	expect "not to one that is taken, or is none of its type's" "EIO EIO EINVAL" \
		"$(try "$b/placement_id" 12) $(try "$b/placement_id" 21) $(try "$b/placement_id" x)"
	expect "what still fits" "468 469 470 471" "$(types_of "$c")"
	expect "what does not" EIO "$(try "$c/current_vgpu_type" 472)"
	expect "NVML is told" "472 0 4294967295 470 32 4294967295" "$(state vgpu | cut -d' ' -f2,5,6 | xargs)"
	expect "10C beside them" "OK 20 " "$(try "$c/current_vgpu_type" 471) $(<"$c/placement_id") $(types_of "$(vf "$igb" 3)/nvidia")"
	hold "$(basename "$(readlink "$(vf "$igb" 1)/iommu_group")")" "$(basename "$(vf "$igb" 1)")"
	expect "no move under a VM" EPERM "$(try "$b/placement_id" 32)"
	release
	cycle 0
	expect "it is lost with the VFs, and needs them" "1 0 ENOTSUP" "$(state mixed) $(tell "mixed 1")"
	cycle 7
	expect "back in one size" "1 0" "$(state mixed)"
	check_unload "$igb" 0x8086
	load pf="$igb" form=mdev-vf vfs=7
	expect "mdevs of several sizes" "OK OK OK 1 0" "$(tell "mixed 1") $(try "$(vf "$igb" 0)/mdev_supported_types/nvidia-472/create" "$(uuid 1)") \
$(try "$(vf "$igb" 1)/mdev_supported_types/nvidia-470/create" "$(uuid 2)") $(cat "$(vf "$igb" 2)"/mdev_supported_types/nvidia-47[12]/available_instances | xargs)"
	a=/sys/bus/mdev/devices/$(uuid 1)/nvidia b=/sys/bus/mdev/devices/$(uuid 2)/nvidia
	expect "where they are" "0 20" "$(<"$a/placement_id") $(<"$b/placement_id")"
	expect "one moved" "OK 32" "$(try "$b/placement_id" 32) $(<"$b/placement_id")"
	expect "not to one that is taken, or is none of its type's" "EIO EIO EINVAL" \
		"$(try "$b/placement_id" 12) $(try "$b/placement_id" 21) $(try "$b/placement_id" x)"
	check_unload "$igb" 0x8086
	load pf="$igb" form=mdev-vf vfs=7
	try "$(vf "$igb" 0)/mdev_supported_types/nvidia-472/create" "$(uuid 1)" >/dev/null
	expect "one size: no place, and none to be had" "Not Applicable EIO" "$(<"$a/placement_id") $(try "$a/placement_id" 20)"
	check_unload "$igb" 0x8086
	load pf="$igb" form=mdev-vf vfs=7 driver=550.90.05
	try "$(vf "$igb" 0)/mdev_supported_types/nvidia-472/create" "$(uuid 1)" >/dev/null
	expect "no file with an old driver" "vgpu_params vm_name" "$(ls "$a" | xargs)"
	check_unload "$igb" 0x8086
	load pf="$igb" form=mdev-pf
	expect "none without SR-IOV" "0 0 ENOTSUP" "$(state mixed) $(tell "mixed 1")"
	check_unload "$igb" 0x8086
	load pf="$igb" form=vendor-vf vfs=7 model=rtx-pro-6000
	expect "a Blackwell card" "0x2bb5 10" "$(<"$PCI/$igb/device") $(state architecture)"
	tell "mixed 1" >/dev/null
	expect "its places are evenly apart, and 2B takes 3 of them" "1518 3 0+ 3+ 6+ 9+" "$(state places | grep ^1518 | cut -d' ' -f1-6)"
	check_unload "$igb" 0x8086
	load pf="$igb" form=vendor-vf vfs=7 driver=550.144.02
	expect "no such files with an older driver" 0 "$(ls "$(vf "$igb" 0)/nvidia" | grep -c _id)"
	check_unload "$igb" 0x8086
	rmmod pci-pf-stub
}

# ------------------------------------------------------------------- MIG

check_mig() {
	local a b
	modprobe pci-pf-stub
	load pf="$igb" form=vendor-vf vfs=7
	expect "off" "1 0 0" "$(state mig)"
	expect "not while VFs are on, but to what it is" "EBUSY OK" "$(tell "mig 1") $(tell "mig 0")"
	expect "no instance without it" ENOTSUP "$(tell "gi 19 0")"
	cycle 0
	expect "not at once while another has the driver" "OK 1 0 1" "$({ tell "mig 1" && state mig; } 8</dev/nvidiactl 9</dev/nvidiactl | xargs)"
	expect "no reset meanwhile" EBUSY "$({ tell reset; } 9</dev/nvidiactl)"
	expect "a reset makes it so" "OK 1 1 1" "$(tell reset) $(state mig)"
	echo Y >/sys/module/vgpulab/parameters/mig_at_reset
	expect "nor at once when it wants a reset" "OK 1 1 0 OK 1 1 1" "$(tell "mig 0") $(state mig) $(tell "mig 1") $(state mig)"
	echo N >/sys/module/vgpulab/parameters/mig_at_reset
	expect "not with an instance" "OK EBUSY OK" "$(tell "gi 19 6") $(tell "mig 0") $(tell "drop_gi 7")"
	expect "off at once, and on" "OK 1 0 0 OK 1 1 1" "$(tell "mig 0") $(state mig) $(tell "mig 1") $(state mig)"
	cycle 7
	expect "the mode stays" "1 1 1" "$(state mig)"
	a=$(vf "$igb" 0)/nvidia b=$(vf "$igb" 1)/nvidia
	expect "no reset with VFs" EBUSY "$(tell reset)"
	expect "without an instance nothing fits" "" "$(types_of "$a")"
	expect "a type of MIG's without an instance" EIO "$(try "$a/current_vgpu_type" 476)"
	expect "no such profile, place, room" "EINVAL EINVAL" "$(tell "gi 7 0") $(tell "gi 9 1")"
	expect "instances" "OK OK OK" "$(tell "gi 9 0") $(tell "gi 9 4") $(tell "drop_gi 2")"
	expect "a taken place" "ENOSPC OK OK" "$(tell "gi 19 3") $(tell "gi 19 4") $(tell "gi 19")"
	expect "they are" "1 9 0 7 19 4 8 19 5" "$(state gi | xargs)"
	expect "what fits" "474 476" "$(types_of "$a")"
	expect "a type of time's does not" EIO "$(try "$a/current_vgpu_type" 468)"
	expect "no number before" "ENXIO ENXIO" "$(read_file "$a/gpu_instance_id") $(try "$a/gpu_instance_id" 7)"
	expect "a vGPU in the first" "OK 7 65535" "$(try "$a/current_vgpu_type" 474) $(<"$a/gpu_instance_id") $(<"$a/placement_id")"
	expect "moved" "OK 8" "$(try "$a/gpu_instance_id" 8) $(<"$a/gpu_instance_id")"
	expect "not to another profile's, or to none" "EIO EIO" "$(try "$a/gpu_instance_id" 1) $(try "$a/gpu_instance_id" 5)"
	expect "another size beside it" "OK 1" "$(try "$b/current_vgpu_type" 476) $(<"$b/gpu_instance_id")"
	expect "a taken one" EIO "$(try "$(vf "$igb" 2)/nvidia/current_vgpu_type" 476)"
	expect "an instance in use stays" "EBUSY OK ENOENT" "$(tell "drop_gi 8") $(tell "drop_gi 7") $(tell "drop_gi 7")"
	expect "no scheduler of the card's" "ENOTSUP 3 1 0 1000000" "$(tell "scheduler 2 0 0 0 0") $(state scheduler)"
	expect "no mixed size" ENOTSUP "$(tell "mixed 1")"
	try "$a/current_vgpu_type" 0 >/dev/null
	expect "a compute instance holds it too" "OK EBUSY OK OK" \
		"$(tell "ci 8 1") $(tell "drop_gi 8") $(tell "drop_ci 8 0") $(tell "drop_gi 8")"
	expect "as many slices as it has" "OK ENOSPC EINVAL ENOENT" "$(tell "ci 1 2") $(tell "ci 1 2") $(tell "ci 1 4") $(tell "ci 5 1")"
	cycle 7
	expect "the VFs' cycle takes the instances" "" "$(state gi)$(state ci)"
	check_unload "$igb" 0x8086
	load pf="$igb" form=mdev-vf vfs=7 mig=Y
	a=$(vf "$igb" 0)/mdev_supported_types b=$(vf "$igb" 1)/mdev_supported_types
	expect "on from the first" "1 1 1 0 0" "$(state mig) $(cat "$a"/nvidia-{468,476}/available_instances | xargs)"
	expect "one for each instance" "OK 1 OK 0 EIO" "$(tell "gi 9 4") $(<"$a/nvidia-476/available_instances") \
$(try "$a/nvidia-476/create" "$(uuid 1)") $(<"$b/nvidia-476/available_instances") $(try "$b/nvidia-476/create" "$(uuid 2)")"
	check_unload "$igb" 0x8086
	load pf="$igb" form=vendor-vf vfs=7 model=rtx-pro-6000 mig=Y driver=595.45.04
	tell "gi 47 2" >/dev/null
	expect "an instance of Blackwell's has a scheduler of its own" "OK 3 3 2 33 1041666" \
		"$(tell "gi_scheduler 3 3 0 0 0 0") $(state gi_scheduler)"
	expect "Blackwell has several in one, of one size" "1546 1551 1561" "$(types_of "$(vf "$igb" 0)/nvidia")"
	expect "these" "OK OK EIO" "$(for n in 0 1; do try "$(vf "$igb" $n)/nvidia/current_vgpu_type" 1551; done | xargs) \
$(try "$(vf "$igb" 2)/nvidia/current_vgpu_type" 1546)"
	expect "no other scheduler then" ENOTSUP "$(tell "gi_scheduler 3 2 0 0 0 0")"
	check_unload "$igb" 0x8086
	rmmod pci-pf-stub
}

check_fill() {
	local i nvme
	nvme=$(find_pf 0x1b36 0x0010 11)
	expect "an nvme with VFs" yes "$([[ $nvme ]] && echo yes)"
	[[ $nvme ]] || return
	load pf="$nvme" form=vendor-vf vfs=16
	check_pf "$nvme"
	check_vfs "$nvme" 16
	expect "ten of 4C on 16 VFs" 10 "$(for i in {0..9}; do try "$(vf "$nvme" "$i")/nvidia/current_vgpu_type" 468; done | grep -c OK)"
	expect "no eleventh" EIO "$(try "$(vf "$nvme" 10)/nvidia/current_vgpu_type" 468)"
	expect "nothing to list" 1 "$(wc -l <"$(vf "$nvme" 15)/nvidia/creatable_vgpu_types")"
	hold "$(basename "$(readlink "$(vf "$nvme" 0)/iommu_group")")" "$(basename "$(vf "$nvme" 0)")"
	expect "open an nvme's VF" "256 10de:20f1 030200" "$held"
	release
	check_unload "$nvme" 0x1b36
	load pf="$nvme,$igb" form=mdev-vf,vendor-vf vfs=16,7 pci_device=0x20f1,0x20b5
	check_vfs "$nvme" 16
	expect "a second card, another form" "0x20b5 yes" \
		"$(<"$PCI/$igb/device") $([[ -e $(vf "$igb" 6)/nvidia ]] && echo yes)"
	expect "ten of 4C as mdevs" 10 "$(for i in {0..9}; do try "$(vf "$nvme" "$i")/mdev_supported_types/nvidia-468/create" "$(uuid "$i")"; done | grep -c OK)"
	expect "no eleventh" EIO "$(try "$(vf "$nvme" 10)/mdev_supported_types/nvidia-468/create" "$(uuid 11)")"
	expect "the other card is empty" OK "$(try "$(vf "$igb" 0)/nvidia/current_vgpu_type" 473)"
	check_unload "$nvme" 0x1b36
}

# --------------------------------------- VFs by pci-pf-stub (sriov-manage)

check_stub() {
	local p=$PCI/$igb v
	modprobe pci-pf-stub
	load pf="$igb" form=vendor-vf vfs=0
	echo pci-pf-stub >"$p/driver_override"
	echo "$igb" >"$p/driver/unbind"
	echo "$igb" >/sys/bus/pci/drivers_probe
	expect "the stub has the PF" pci-pf-stub "$(driver "$p")"
	expect "it enables VFs" OK "$(try "$p/sriov_numvfs" 7)"
	echo "$igb" >"$p/driver/unbind"
	echo >"$p/driver_override"
	echo "$igb" >/sys/bus/pci/drivers/nvidia/bind
	check_pf "$igb"
	check_vfs "$igb" 7
	expect "they take types" OK "$(try "$(vf "$igb" 6)/nvidia/current_vgpu_type" 468)"
	v=$(vf "$igb" 6)
	echo vfio-pci >"$v/driver_override"
	basename "$v" >"$v/driver/unbind"
	basename "$v" >/sys/bus/pci/drivers_probe
	expect "a VF moved to vfio-pci" vfio-pci "$(driver "$v")"
	echo >"$v/driver_override"
	basename "$v" >"$v/driver/unbind"
	basename "$v" >/sys/bus/pci/drivers_probe
	expect "lost its type on the way" "nvidia 0" "$(driver "$v") $(<"$v/nvidia/current_vgpu_type")"
	expect "and its place on the card is free" OK "$(try "$(vf "$igb" 0)/nvidia/current_vgpu_type" 473)"
	check_unload "$igb" 0x8086
	rmmod pci-pf-stub
}

# -------------------------------------------------- many writers at once

check_race() {
	local d=$PCI/$igb/mdev_supported_types i
	load pf="$igb" form=vendor-vf vfs=7
	for i in {1..10}; do
		expect "7 writers for 2 places" "EIO 5 OK 2" "$(try_at_once 472 "$PCI/$igb"/virtfn?/nvidia/current_vgpu_type)"
		expect "7 clear, 2 have one" "EPERM 5 OK 2" "$(try_at_once 0 "$PCI/$igb"/virtfn?/nvidia/current_vgpu_type)"
	done
	check_unload "$igb" 0x8086
	load pf="$igb" form=mdev-pf
	for i in {1..5}; do
		# shellcheck disable=SC2046
		expect "15 creators for 10 places" "EIO 5 OK 10" \
			"$(try_at_once 00000000-0000-4000-8000-%N $(yes "$d/nvidia-468/create" | head -n 15))"
		expect "10 removed at once" "OK 10" "$(try_at_once 1 "$MDEV"/00000000-0000-4000-8000-*/remove)"
	done
	expect "nothing is left" 10 "$(<"$d/nvidia-468/available_instances")"
	check_unload "$igb" 0x8086
}

# ----------------------------------------- the function itself goes away

check_unplug() {
	local slot
	slot=$(basename "$(dirname "$(readlink -f "$PCI/$igb")")")
	load pf="$igb" form=vendor-vf vfs=3
	try "$(vf "$igb" 0)/nvidia/current_vgpu_type" 468 >/dev/null
	echo 1 >"$PCI/$igb/remove"
	expect "gone" no "$([[ -e $PCI/$igb ]] && echo yes || echo no)"
	unload
	expect "unloads without its function" 0 $?
	echo 1 >"$PCI/$slot/rescan"
	check_back() { [[ $(<"$PCI/$igb/vendor") == 0x8086 ]]; }
	until_true 10 check_back
	load pf="$igb" form=vendor-vf vfs=3
	expect "and again" 0 $?
	check_vfs "$igb" 3
	check_unload "$igb" 0x8086
}

# -------------------------------------------------------------- guests

guest_initrd() {
	local r=$WORK/initrd
	mkdir -p "$r"/{bin,proc,sys,dev}
	cp "$(command -v busybox)" "$r/bin/busybox"
	cat >"$r/init" <<'SH'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
for d in /sys/bus/pci/devices/*; do
	read -r v <$d/vendor; read -r e <$d/device; read -r c <$d/class
	echo "guest-pci $v $e $c"
done
echo guest-ready
/bin/busybox sleep 600
/bin/busybox poweroff -f
SH
	chmod +x "$r/init"
	(cd "$r" && find . | busybox cpio -o -H newc 2>/dev/null | gzip >"$WORK/initrd.gz")
}

start_guest() {	# hostdev XML
	cat >"$WORK/guest.xml" <<XML
<domain type='${TYPE:-kvm}'><name>vgpulab-check</name><memory unit='MiB'>192</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>$KERNEL</kernel><initrd>$WORK/initrd.gz</initrd>
<cmdline>console=ttyS0 quiet mitigations=off</cmdline></os><features><acpi/></features>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<serial type='file'><source path='$WORK/serial'/></serial><memballoon model='none'/>$1</devices></domain>
XML
	chmod 755 "$WORK"
	: >"$WORK/serial"
	virsh -q create "$WORK/guest.xml" >"$WORK/virsh" 2>&1
}

see_guest() {	# what: it must see the vGPU
	until_true 180 grep -q guest-ready "$WORK/serial"
	expect "$1: the guest sees it" "guest-pci 0x10de 0x20f1 0x030200" \
		"$(tr -d '\r' <"$WORK/serial" | grep 'guest-pci 0x10de')"
}

stop_guest() { virsh -q destroy vgpulab-check; }

# libvirt learns of new devices late, the later the more came and went just before.
sees_nvidia() { virsh nodedev-dumpxml "pci_${1//[:.]/_}" | grep -q "vendor id='0x10de'"; }
sees_type() { virsh nodedev-dumpxml "pci_${1//[:.]/_}" | grep -q "type id='nvidia-471'"; }

pci_hostdev() {	# address
	local IFS=:.
	# shellcheck disable=SC2086
	set -- $1
	echo "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x$1' bus='0x$2' slot='0x$3' function='0x$4'/></source></hostdev>"
}

mdev_hostdev() {	# uuid
	echo "<hostdev mode='subsystem' type='mdev' model='vfio-pci' managed='no'><source><address uuid='$1'/></source></hostdev>"
}

check_guest_vendor_vf() {
	local v
	load pf="$igb" form=vendor-vf vfs=7
	v=$(vf "$igb" 3)
	start_guest "$(pci_hostdev "$(basename "$v")")"
	expect "vendor-vf: a guest without a type is refused" "1 1" "$? $(grep -c 'No such device' "$WORK/virsh")"
	try "$v/nvidia/current_vgpu_type" 468 >/dev/null
	expect "lspci's ids" "0302: 10de:20f1" "$(lspci -n -s "$(basename "$v")" | cut -d' ' -f2,3)"
	until_true 90 sees_nvidia "$(basename "$v")"
	expect "libvirt's ids" 0 $?
	start_guest "$(pci_hostdev "$(basename "$v")")"
	expect "vendor-vf: the guest starts" "0 " "$? $(<"$WORK/virsh")"
	see_guest vendor-vf
	expect "vendor-vf: still bound to nvidia" nvidia "$(driver "$v")"
	expect "vendor-vf: 0 under a guest" EPERM "$(try "$v/nvidia/current_vgpu_type" 0)"
	expect "vendor-vf: rmmod under a guest" 1 "$(rmmod vgpulab 2>/dev/null; echo $?)"
	stop_guest
	expect "vendor-vf: 0 after the guest" OK "$(try "$v/nvidia/current_vgpu_type" 0)"
	check_unload "$igb" 0x8086
}

check_guest_mdev() {	# form
	local parent=$PCI/$igb m
	load pf="$igb" form="$1" vfs=7
	[[ $1 == mdev-vf ]] && parent=$(vf "$igb" 3)
	m=$MDEV/$(uuid 7)
	until_true 90 sees_type "$(basename "$parent")"
	expect "$1: libvirt lists the types" 0 $?
	try "$parent/mdev_supported_types/nvidia-471/create" "$(uuid 7)" >/dev/null
	start_guest "$(mdev_hostdev "$(uuid 7)")"
	expect "$1: the guest starts" "0 " "$? $(<"$WORK/virsh")"
	see_guest "$1"
	expect "$1: rmmod under a guest" 1 "$(rmmod vgpulab 2>/dev/null; echo $?)"
	remove_in_background "$m"
	sleep 3
	expect "$1: removal under a guest is parked" yes "$(alive "$writer" && echo yes)"
	stop_guest
	until_true 30 not_alive "$writer"
	expect "$1: and done when the guest is gone" "no no" \
		"$(alive "$writer" && echo yes || echo no) $([[ -e $where ]] && echo yes || echo no)"
	check_unload "$igb" 0x8086
}

check_guests() {
	guest_initrd
	check_guest_vendor_vf
	check_guest_mdev mdev-vf
	check_guest_mdev mdev-pf
}

# ----------------------------------------------------------------- run

modprobe -a mdev vfio-pci vfio_iommu_type1
igb=$(find_pf 0x8086 0x10c9 7)
expect "an igb" yes "$([[ $igb ]] && echo yes)"
[[ $igb ]] || exit 1
mark="vgpulab check $$ $SECONDS $RANDOM"
echo "$mark" >/dev/kmsg
for part in "${@:-vendor-vf mdev-vf mdev-pf proc mixed mig fill stub race unplug guests}"; do
	for p in $part; do
		echo "== $p"
		"check_${p//-/_}"
	done
done
expect "no warning of the kernel's" "" \
	"$(dmesg | awk -v mark="$mark" 'index($0, mark) { n = 0 } { line[n++] = $0 } END { for (i = 0; i < n; i++) print line[i] }' |
	   grep -E 'WARNING:|BUG:|Oops|Call Trace|general protection|refcount_t|hung_task' | head -n 3)"
[[ $failed == 0 ]] && echo "all passed"
exit $failed

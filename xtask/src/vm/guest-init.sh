#!/bin/bash
# Process 1 of the guest, after the RAM disk. The host's root is / (virtiofs) and becomes read-only here; what is
# listed in WRITABLE (one folder a line: the project's target/) stays writable; /tmp and /run are the guest's own;
# a RAM-disk ext4 is on /tmp/mnt. Talks to the host by files in $RUN: ready, out, err, status.
# Variables from lockscope.env: RUN KERNEL_DIR WRITABLE JSZ.
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

fail() { echo "guest-init: $*" > /dev/console; sync; echo o > /proc/sysrq-trigger; sleep 60; }

mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts

# Handles on the writable folders, taken before / goes read-only and /tmp is covered (a target folder may lie there).
mount -t tmpfs tmpfs /media || fail "no /media"
i=0
while IFS= read -r dir; do
  i=$((i + 1))
  mkdir "/media/$i" && mount --bind "$dir" "/media/$i" || fail "cannot bind $dir"
done <<< "$WRITABLE"
mkdir /media/kernel && mount --bind "$KERNEL_DIR" /media/kernel

mount -o remount,bind,ro / || fail "could not make the host's root read-only"
touch /.lockscope-vm-write-test 2> /dev/null && { rm -f /.lockscope-vm-write-test; fail "the host's root is still writable"; }

mount -t tmpfs tmpfs /run
mount -t tmpfs -o size=80%,mode=1777 tmpfs /tmp
mkdir -p /tmp/mnt
i=0
while IFS= read -r dir; do
  i=$((i + 1))
  mkdir -p "$dir" 2> /dev/null
  mount --bind "/media/$i" "$dir" || fail "cannot mount $dir writable"
done <<< "$WRITABLE"

mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
hostname vm

# Every way to ask for a module must find this kernel's: modprobe by hand, and the kernel itself (mount -t xfs).
[ -d /lib/modules ] && mount --bind /media/kernel/lib/modules /lib/modules
mkdir /run/bin
printf '#!/bin/sh\nexec /sbin/modprobe -d /media/kernel "$@"\n' > /run/bin/modprobe
chmod +x /run/bin/modprobe
echo /run/bin/modprobe > /proc/sys/kernel/modprobe

# 1: only what ends the machine is printed; serial output with interrupts off would disturb what is measured.
echo 1 > /proc/sys/kernel/printk
echo 0 > /proc/sys/kernel/kptr_restrict
echo 0 > /proc/sys/kernel/hung_task_timeout_secs 2> /dev/null

for m in ext4 loop xfs; do modprobe -q $m; done
if modprobe -q brd rd_nr=1 rd_size=786432; then
  mke2fs -q -t ext4 -O ^ea_inode -J size="${JSZ:-16}" -b 4096 /dev/ram0 && mount -t ext4 /dev/ram0 /tmp/mnt
fi

echo "$(uname -r), $(nproc) CPUs, $(findmnt -n -o FSTYPE /tmp/mnt || echo no RAM disk) on /tmp/mnt" > "$RUN/ready.new"
mv "$RUN/ready.new" "$RUN/ready"
env -u RUN -u KERNEL_DIR -u WRITABLE -u JSZ bash "$RUN/command.sh" < /dev/null >> "$RUN/out" 2>> "$RUN/err"
status=$?
# Pages of mapped files reach the host only by sync; the host ends the machine as soon as it sees the status.
sync
echo "$status" > "$RUN/status.new"
mv "$RUN/status.new" "$RUN/status"
echo o > /proc/sysrq-trigger
sleep 60

#!/bin/sh
# First script in the guest, run by busybox from the RAM disk: mounts the host's root and hands over.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in /mods/*.ko; do insmod "$m"; done
mount -t virtiofs hostroot /newroot || { echo "lockscope: no virtiofs"; poweroff -f; }
mount -o move /dev /newroot/dev
mount -o move /proc /newroot/proc
mount -o move /sys /newroot/sys
. /lockscope.env
export RUN KERNEL_DIR WRITABLE JSZ
exec switch_root /newroot /bin/bash "$RUN/guest-init.sh"

#!/bin/busybox sh
# The guest's first process: loads the drivers, runs the program, unloads the drivers, powers off. With SHUTDOWN the
# drivers stay loaded, and the kernel shuts their devices down: in the first life for a reboot, in the second for kexec,
# in the third to power off. The machine's clock marks the second life, an argument of the kernel the third. This script
# writes to the kernel's log, so that no line is torn, as "verbless: WORD ...". Only the program writes to the second
# serial port.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/ TERM=dumb NO_COLOR=1
exec </dev/null >/dev/kmsg 2>&1
say() { echo "<5>verbless: $*" >/dev/kmsg; }
load() { while read -r module; do insmod "/modules/$module.ko" || say "failed to load $module"; done </modules/order; }
unload() { for module in $DRIVERS; do rmmod "$module" || return; done; }
. /settings # DEVICES, RELOAD, SHUTDOWN, DRIVERS, OUTPUT
[ "$SHUTDOWN" = 1 ] && [ -z "$LIFE" ] && { [ "$(date +%Y)" = 2001 ] && LIFE=2 || LIFE=1; }
say init
ulimit -l unlimited
ifconfig lo 127.0.0.1
stty -F "$OUTPUT" raw
load
[ -e /prepare ] && { sh /prepare || say "failed to load what /prepare makes"; }
if [ "$RELOAD" = 1 ]; then
    unload; say "unloaded $?"
    for module in mlx5_core mlx5_ib; do insmod "/modules/$module.ko" || say "failed to load $module"; done
fi
tries=0
while [ "$(ls /dev/infiniband 2>/dev/null | grep -c '^uverbs')" -lt "$DEVICES" ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
found=$(ls /dev/infiniband 2>/dev/null | grep -c '^uverbs')
say "devices $found"
if [ "$found" -ge "$DEVICES" ]; then
    sh /command >"$OUTPUT" 2>&1
    say "exit $?"
fi
[ "$SHUTDOWN" = 1 ] || { unload; say "unloaded $?"; }
dmesg -r | grep -E '^<[0-4]>.*(mlx5|rxe|infiniband|ib_core|ib_uverbs)' | head -n 20 | while read -r line; do say "warning ${line#*>}"; done
case "$LIFE" in
1)
    { date -s 2001-01-01 && hwclock -w -u; } || say "failed to load 2001 into the clock"
    say down
    reboot -f ;;
2)
    cd / && find . -xdev ! -name kernel >/tmp/list && cpio -o -H newc </tmp/list >/tmp/root.cpio
    /usr/sbin/kexec -s -l /kernel --initrd=/tmp/root.cpio --command-line="$(cat /proc/cmdline) LIFE=3" || say "failed to load the next kernel"
    say down
    /usr/sbin/kexec -e || say "failed to load by kexec" ;;
esac
say done
poweroff -f

#!/bin/sh
# Runs /payload/run and says its exit code in the last line of the second serial port. /payload/mark holds how that line
# begins.
export PATH=/payload:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root RUST_BACKTRACE=0
stty -F /dev/ttyS1 -opost
cd /payload || exit
exec >/dev/ttyS1 2>&1 </dev/null
./run
code=$?
echo
echo "$(cat mark)$code"
sync
poweroff -f

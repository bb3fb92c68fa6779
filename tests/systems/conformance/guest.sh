#!/bin/sh
# What a guest with clusters is for: `guest.sh COMMAND…` runs a command on the guest's own system, whose disk has what
# clusters are made of in /clusters (scripts/emulated.sh). Programs, holdfast and a tar file of the checkout lie beside
# this. The logs of the clusters go to the guest's second disk, as a tar file.
# shellcheck disable=SC2016
exec nsenter --target 1 --mount sh -c '
	here=/run/outside$1
	shift
	mkdir -p /clusters/debug
	cp "$here/holdfast" /clusters/debug
	tar -xf "$here/checkout.tar" -C /
	cd /
	# As services of nodes have it; maps of a kernel before 5.11 count as locked memory.
	ulimit -l unlimited
	CARGO_TARGET_DIR=/clusters PATH=$here:$PATH "$@"
	status=$?
	tar -cf /dev/vdb -C /clusters/clusters logs
	exit $status
' guest "$(dirname "$0")" "$@"

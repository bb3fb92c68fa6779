#!/usr/bin/env bash
# Runs a command as a process of a machine, in all its namespaces and cgroups.
#
#   enter.sh FIRST CGROUPS COMMAND…
# FIRST is the machine's first process; CGROUPS are folders, separated by blanks.
set -euo pipefail
first=$1 cgroups=$2
shift 2

for cgroup in $cgroups; do
	echo $$ >"$cgroup/cgroup.procs"
done
exec nsenter --target "$first" --mount --pid --net --uts --ipc --cgroup --root --wd \
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/kubernetes:/opt/holdfast HOME=/root \
	KUBECONFIG=/etc/kubernetes/admin.conf "$@"

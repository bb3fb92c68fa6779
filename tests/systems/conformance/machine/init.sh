#!/usr/bin/env bash
# The first process of a machine: runs what lies in /etc/machine/services, and runs it again when it ends.
#
# Each of these files is a script that becomes the service. Beside its log, a service NAME has two files in
# /run/services: NAME.pid, and NAME.stopped while it is to stay away.

run_again_and_again() {
	local name=${1##*/}
	while :; do
		if [[ ! -e /run/services/$name.stopped ]]; then
			bash "$1" >>"/var/log/machine/$name.log" 2>&1 &
			echo $! >"/run/services/$name.pid"
			wait $!
			echo "== $name ended with $?" >>"/var/log/machine/$name.log"
		fi
		sleep 0.2
	done
}

mkdir -p /run/services
for service in /etc/machine/services/*; do
	[[ ! -e $service ]] || run_again_and_again "$service" &
done
# What loses its parent becomes a child of this process, and has to be waited for.
while :; do
	wait -n || sleep 0.1
done

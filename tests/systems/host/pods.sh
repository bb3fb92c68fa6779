#!/bin/bash
# The life of a pod of contrib/kubernetes under a profile of AppArmor, without a runtime: the same places, capabilities
# and commands, by systemd, which changes into the profile as runc does. Fails with what AppArmor denied.
#
#   pods.sh PROFILE    holdfast is at /usr/bin/holdfast, and the profile in /srv/profiles
set -euo pipefail
profile=$1
pod=/srv/pod
binary=/usr/bin/holdfast
socket=--socket=/run/holdfast/admin.sock

# The image has one program; the rest are the mount points that a runtime makes.
make_image() {
	mkdir -p "$pod"/root/{usr/bin,etc/holdfast,run/holdfast,var/lib/holdfast,host/pins,host/cgroup,proc,sys,dev,tmp}
	mkdir -p "$pod"/{config,state,run} /sys/fs/bpf/holdfast
	cp "$binary" "$pod/root/usr/bin/"
	cat >"$pod/config/holdfast.toml" <<-TOML
		[datapath]
		cgroup = "/host/cgroup"
		bpffs = "/host/pins"

		[[service]]
		name = "web"
		frontends = ["10.96.0.10:80"]
		backends = ["127.0.0.1:8081"]
	TOML
}

# The words of daemonset.yaml in systemd's.
in_pod() {
	local unit=$1
	shift
	systemd-run --quiet --collect --unit "$unit" --property=AppArmorProfile="$profile" --property=Type=exec \
		--property=RootDirectory=$pod/root --property=MountAPIVFS=yes --property=NoNewPrivileges=yes \
		--property="CapabilityBoundingSet=CAP_BPF CAP_NET_ADMIN CAP_PERFMON" --property=ReadOnlyPaths=/ \
		--property="BindReadOnlyPaths=$pod/config:/etc/holdfast /sys/fs/cgroup:/host/cgroup" \
		--property="BindPaths=$pod/run:/run/holdfast $pod/state:/var/lib/holdfast /sys/fs/bpf/holdfast:/host/pins" \
		--property="ReadWritePaths=/run/holdfast /var/lib/holdfast /host/pins" "$@"
}

runs() { [[ $(systemctl is-active pod) == active ]]; }

# A probe of kubelet's runs in the pod as well.
wait_until_ready() {
	local said
	for _ in $(seq 100); do
		! said=$(in_pod probe --wait --pipe "$binary" $socket health ready 2>&1) || return 0
		runs || break
		sleep 1
	done
	echo "never ready: $said" >&2
	journalctl --no-pager --output=cat --unit pod --lines 50 >&2
	denied >&2
	return 1
}

start() {
	in_pod pod "$binary" run --config /etc/holdfast/holdfast.toml
	wait_until_ready
	local label
	label=$(cat "/proc/$(systemctl show --value --property MainPID pod)/attr/current")
	[[ $label == "$profile (enforce)" ]] || {
		echo "the pod runs under $label" >&2
		return 1
	}
	curl --silent --fail --retry 60 --retry-delay 1 --retry-connrefused --output /dev/null http://10.96.0.10/
}

denied() {
	journalctl --dmesg --output=cat --no-pager | grep 'apparmor="DENIED"' | grep -F "profile=\"$profile\"" || true
}

trap denied EXIT
apparmor_parser --replace "/srv/profiles/$profile"
make_image
systemd-run --quiet --collect --unit backend python3 -m http.server --bind 127.0.0.1 8081
in_pod prepare --wait "$binary" prepare
start
in_pod command --wait --pipe "$binary" $socket status
systemctl kill --kill-whom=main --signal=KILL pod
while runs; do sleep 0.2; done
start
systemctl stop pod
in_pod cleanup --wait --pipe "$binary" cleanup --config=/etc/holdfast/holdfast.toml --drain
[[ -z $(ls /sys/fs/bpf/holdfast) ]]
systemctl stop backend
rm -r --one-file-system $pod
rmdir /sys/fs/bpf/holdfast
apparmor_parser --remove "/srv/profiles/$profile"
[[ -z $(denied) ]]
echo "pods: under $profile a pod starts, serves, is killed, starts again and cleans up; nothing was denied"

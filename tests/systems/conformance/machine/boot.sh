#!/usr/bin/env bash
# Boots one machine of a cluster: a network that is there already, processes, mounts, names and cgroups of its own, and
# a root of its own over the common one. It ends when its first process does, and takes everything in it along.
#
# The crate calls it (src/machine.rs) with, in the environment:
#   NAME      the machine's
#   FOLDER    its state outside: upper and work for the overlay, log, and what containerd and kubelet keep
#   LOWER     the common root; folders that lie over it come before it, separated by colons
#   PROGRAMS  becomes /opt/kubernetes        HOLDFAST  becomes /opt/holdfast/holdfast        IMAGES  /opt/images.tar
#   NETWORK   a file that is its network namespace
#   CGROUPS   its folder in each hierarchy, separated by blanks; the last part of each hierarchy's mount names it
#   INIT      `script` or `systemd`: what its first process becomes
#   LAYOUT    `pure` if there is one hierarchy, cgroup v2; `hybrid` if v1 hierarchies are beside a v2 called `unified`
set -euo pipefail

# A machine ends with the process that booted it, however that ends: then the other end of this pipe is closed. The
# process that waits for that stays outside of the cgroups of the machine; all that follows has the number of this one.
exec 3<&0
{ cat <&3 && kill -KILL $$; } &>/dev/null &
exec 3<&-

for cgroup in $CGROUPS; do
	echo $$ >"$cgroup/cgroup.procs"
done
mkdir -p "$FOLDER"/{upper,work,root,containerd,kubelet,log}

# What becomes the first process. The shells below expand what they get by themselves.
# shellcheck disable=SC2016,SC2089
first='
	# The process as the machine outside counts it: a command that enters the machine looks for that.
	read -r outer _ </proc/self/stat
	root=$FOLDER/root
	mount -t overlay -o "lowerdir=$LOWER,upperdir=$FOLDER/upper,workdir=$FOLDER/work" overlay "$root"

	# Disk that is not copied up, and what all machines share.
	shared() {
		mkdir -p "$root$2"
		mount --bind "$1" "$root$2"
	}
	shared "$FOLDER/containerd" /var/lib/containerd
	shared "$FOLDER/kubelet" /var/lib/kubelet
	shared "$FOLDER/log" /var/log/machine
	# What the journal keeps stays with the logs.
	if [[ $INIT == systemd ]]; then
		mkdir -p "$FOLDER/log/journal"
		shared "$FOLDER/log/journal" /var/log/journal
	fi
	shared "$PROGRAMS" /opt/kubernetes
	mount -o remount,ro,bind "$root/opt/kubernetes"
	shared "$PROGRAMS/cni" /opt/cni/bin
	mkdir -p "$root/opt/holdfast"
	touch "$root/opt/holdfast/holdfast" "$root/opt/images.tar"
	mount --bind "$HOLDFAST" "$root/opt/holdfast/holdfast"
	mount --bind "$IMAGES" "$root/opt/images.tar"

	# Settings of the whole kernel stay as they are: /proc/sys cannot be written but for the network. The few that
	# kubelet insists on are files of their own, which show what it wants.
	mount -t proc proc "$root/proc"
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	mkdir -p "$root/run/lock" "$root/run/settings"
	mount --bind "$root/proc/sys" "$root/proc/sys"
	mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
	# A boot has its own number, by which kubelet knows one.
	for setting in kernel/random/boot_id=$(<"$root/proc/sys/kernel/random/uuid") \
		vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
		kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
		shown=$root/run/settings/${setting//\//.}
		echo "${setting#*=}" >"$shown"
		mount --bind "$shown" "$root/proc/sys/${setting%%=*}"
	done
	mount -o remount,ro,bind "$root/proc/sys"

	mount -t sysfs sysfs "$root/sys"
	mount -t bpf bpf "$root/sys/fs/bpf"
	if [[ $LAYOUT == pure ]]; then
		mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
		for controller in $(<"$root/sys/fs/cgroup/cgroup.controllers"); do
			echo "+$controller" >"$root/sys/fs/cgroup/cgroup.subtree_control"
		done
	else
		mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
		for cgroup in $CGROUPS; do
			hierarchy=${cgroup#/sys/fs/cgroup/}
			hierarchy=${hierarchy%%/*}
			mkdir "$root/sys/fs/cgroup/$hierarchy"
			case $hierarchy in
			unified) mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified" ;;
			systemd) mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd" ;;
			*) mount -t cgroup -o "$hierarchy" cgroup "$root/sys/fs/cgroup/$hierarchy" ;;
			esac
		done
	fi

	mount -t tmpfs -o mode=755 tmpfs "$root/dev"
	mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
	mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
	mount -t tmpfs tmpfs "$root/dev/shm"
	mount -t mqueue mqueue "$root/dev/mqueue"
	for device in null zero full random urandom tty kmsg; do
		touch "$root/dev/$device"
		mount --bind "/dev/$device" "$root/dev/$device"
	done
	ln -s pts/ptmx "$root/dev/ptmx"
	ln -s /proc/self/fd "$root/dev/fd"
	ln -s fd/0 "$root/dev/stdin"
	ln -s fd/1 "$root/dev/stdout"
	ln -s fd/2 "$root/dev/stderr"

	hostname "$NAME"
	cd "$root"
	mkdir -p old
	pivot_root . old
	umount -l /old
	mount --make-rshared /
	echo "$outer" >/var/log/machine/pid.new
	mv /var/log/machine/pid.new /var/log/machine/pid
	environment=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/kubernetes:/opt/holdfast HOME=/root)
	[[ $INIT == systemd ]] || exec "${environment[@]}" bash /etc/machine/init.sh
	# Nothing of this may change the machine outside. With `container` set systemd leaves its clock and devices alone.
	: >/dev/console
	exec "${environment[@]}" container=machine TERM=dumb setpriv \
		--bounding-set=-sys_module,-sys_rawio,-sys_time,-sys_boot,-mac_admin,-mac_override,-wake_alarm \
		/lib/systemd/systemd
'

# With v2 alone, a cgroup that has controllers for its children has no processes of its own. So all of them, the one
# that waits for the machine too, move into a leaf, as in a container; the cgroup above stays the machine's root. The
# leaf has the name of the one that systemd makes for itself.
# shellcheck disable=SC2090
export first
# shellcheck disable=SC2016
exec nsenter --net="$NETWORK" unshare --cgroup bash -euc '
	for cgroup in $CGROUPS; do
		[[ $LAYOUT == hybrid ]] || mkdir -p "$cgroup/init.scope"
		[[ $LAYOUT == hybrid ]] || echo $$ >"$cgroup/init.scope/cgroup.procs"
	done
	exec unshare --mount --propagation private --pid --uts --ipc --fork --kill-child=KILL bash -euc "$first"
' </dev/null

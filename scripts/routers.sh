#!/usr/bin/env bash
# Unpacks Debian's FRR, BIRD, keepalived and dnsmasq, with the libraries that this machine lacks for them, into the
# folder `routers` of the target folder, which is shared by all clones: tests lay it over the files of their beds.
# Nothing is installed, and no script of a package runs. Silent when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup root

# What apt would install here for them, as NAME=VERSION.
absent() {
	apt-get -q -s install --no-install-recommends frr bird2 keepalived dnsmasq-base |
		sed -n 's/^Inst \([^ ]*\) [^(]*(\([^ ]*\) .*/\1=\2/p'
}
# A fresh image has no package lists, and old lists name packages that are gone.
refresh() { apt-get -q update >&2; }

packages=$(absent) || { refresh && packages=$(absent); }
out=$(echo "$packages" | scripts/cached.sh routers scripts/routers.sh)

# Of two test runs at once, one unpacks and the other waits.
exec 9>"$out/lock"
flock 9
[[ ! -e $out/whole ]] || exit 0
echo "routers: fetching Debian's packages (once)" >&2

# The words are packages. As root, apt would fetch as a user that cannot write there.
# shellcheck disable=SC2086
download() {
	rm -rf "$out/packages"
	mkdir "$out/packages"
	[[ -n $packages ]] || return 0
	(cd "$out/packages" && apt-get -q -o APT::Sandbox::User=root download $packages >&2)
}
download || { refresh && packages=$(absent) && download; }

rm -rf "$out/root"
mkdir -p "$out/root/usr" "$out/root/etc"
shopt -s nullglob
for package in "$out"/packages/*.deb; do
	dpkg-deb -x "$package" "$out/root"
done
# Packages of before the folders were one have libraries there.
for folder in bin sbin lib; do
	[[ ! -d $out/root/$folder ]] || cp -a "$out/root/$folder" "$out/root/usr/"
done
rm -rf "$out/packages"
touch "$out/whole"

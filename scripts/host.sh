#!/usr/bin/env bash
# Builds the packages and tests them on booted systems: systemd as the first process of Debian's releases, in namespaces.
# Each release's root file system is made once, in the target folder. Needs root.
#
#   scripts/host.sh             every release
#   scripts/host.sh bookworm    one of them
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup host

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/host"
target=$(realpath "$target")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# One date for all, also for the packages that a test builds again to compare.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# A second version of the same sources is what an upgrade needs.
HOLDFAST_BINARY=$(scripts/package-build.sh)
export HOLDFAST_BINARY
for kind in deb rpm; do
	scripts/package.sh "$kind"
	PACKAGE_VERSION=${version%.*}.$((${version##*.} + 1)) scripts/package.sh "$kind"
done

# systemd 247, 252 and 257.
releases=("$@")
((${#releases[@]} > 0)) || releases=(bookworm trixie bullseye)
in_root=systemd,systemd-sysv,dbus,iproute2,curl,procps,python3,rpm
status=0
for release in "${releases[@]}"; do
	scripts/debian-root.sh "$target/host/$release" "$release" "$(dpkg --print-architecture)" "$in_root"
	echo "== host: Debian $release"
	HOLDFAST_HOST_ROOT=$target/host/$release HOLDFAST_PACKAGES=$target/packages \
		cargo test --workspace --locked --no-fail-fast --features holdfast-tests/root --test host -- --test-threads 2 --show-output || status=1
done
exit "$status"

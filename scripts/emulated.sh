#!/usr/bin/env bash
# Clusters of real nodes in a kernel of Debian's, emulated: those of scripts/conformance.sh, which builds what they are
# made of. Needs root.
#
#   scripts/emulated.sh KERNEL        Kubernetes' own tests in their short form, or those that FOCUS names
#   scripts/emulated.sh KERNEL drill  the short form of the drills
# The environment chooses, as for `make conformance`: FOCUS NODES CNI FAMILY PROXY PACKETS.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
kernel=$1

# Kubernetes and its tests have limits that cannot be set, and an emulated processor takes ten times as long. So the
# guest's clock goes so many times slower.
slower=12

# The disk of a guest: the root of the machines as its own, and clusters' parts, of which the root is no second copy.
# What is not written takes no space.
make_disk() {
	local from=$1 stage=$1/disk
	rm -rf "$stage"
	mkdir -p "$stage/clusters/conformance"
	cp -al "$from/root/." "$stage"
	cp -al "$from"/{root,bin,images.tar,pause.name} "$stage/clusters/conformance"
	mke2fs -q -F -t ext4 -d "$stage" "$from/disk.ext4.new" 12G >/dev/null
	mv "$from/disk.ext4.new" "$from/disk.ext4"
	rm -rf "$stage"
}

# What is run, and with what.
program=conformance
command=(conformance run --short)
[[ -z ${FOCUS:-} ]] || command=(conformance run --focus "$FOCUS")
if [[ ${2:-} == drill ]]; then
	program=drill
	command=(env KILLS=20 NODES="${NODES:-2}" drill run kill)
	unset NODES CNI FAMILY
fi
for option in NODES CNI FAMILY PROXY PACKETS; do
	[[ -z ${!option:-} ]] || command+=("--${option,,}" "${!option}")
done

scripts/conformance.sh build
scripts/setup vm
parts=$(realpath "$target/conformance")
exec 9>"$parts/lock"
flock 9
[[ $parts/disk.ext4 -nt $parts/images.tar ]] || make_disk "$parts"
exec 9>&-

mkdir -p "$target/clusters"
scratch=$(mktemp -d "$target/clusters/guest.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
tar -cf "$scratch/checkout.tar" -C / "${PWD#/}"/tests/systems/conformance/{machine,baseline,differences.tsv}
truncate -s 1G "$scratch/logs.tar"
files=()
for file in "$scratch/checkout.tar" "$target"/debug/{holdfast,"$program"}; do
	files+=(--with "$file")
done
status=0
"$target/debug/vm" run --disk "$parts/disk.ext4" --second "$scratch/logs.tar" --memory-mib 4096 --seconds 7200 \
	--slower "$slower" "${files[@]}" "$kernel" tests/systems/conformance/guest.sh "${command[@]}" || status=$?
# Where the guest did not get so far, there are none.
tar -xf "$scratch/logs.tar" -C "$target/clusters" 2>/dev/null || true
exit "$status"

#!/usr/bin/env bash
# Makes a container image that holds the one static binary and nothing else, as an OCI layout in one tar:
#
#   scripts/package-image.sh BINARY FILE VERSION ARCHITECTURE
#
# It needs neither a registry nor a container runtime, and a node does not need a registry to load it. Equal binaries
# give equal bytes; every time in it is SOURCE_DATE_EPOCH.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$1 file=$2 version=$3 architecture=$4
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layout=$work/layout
mkdir -p "$layout/blobs/sha256"

# Root's files, one time, one order: the same bytes wherever they are packed.
pack() {
	tar --create --directory "$1" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
		--numeric-owner --mode=u=rwX,go=rX .
}

digest() { sha256sum "$1" | cut -d ' ' -f 1; }

# Puts a file among the blobs, and prints how others refer to it.
blob() {
	local type=$1 from=$2 hash
	hash=$(digest "$from")
	printf '"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d' \
		"$type" "$hash" "$(stat --format=%s "$from")"
	mv "$from" "$layout/blobs/sha256/$hash"
}

# The paths are those of the packages, so that what the guide says holds in here too. The licences go where the binary
# goes.
put() { install -D -m "$1" "$2" "$work/tree/$3"; }
put 755 "$binary" usr/bin/holdfast
for licence in LICENSE LICENSE-BPF packaging/debian/copyright; do
	put 644 "$licence" "usr/share/doc/holdfast/${licence##*/}"
done
pack "$work/tree" >"$work/layer"
content=$(digest "$work/layer")
gzip -9 -n "$work/layer"
layer=$(blob layer.v1.tar+gzip "$work/layer.gz")

labels=$(printf '"org.opencontainers.image.%s":"%s",' title holdfast version "$version" \
	licenses 'Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)')
cat >"$work/config" <<-JSON
	{"created":"$created","architecture":"$architecture","os":"linux",
	"config":{"Env":["PATH=/usr/bin"],"Entrypoint":["/usr/bin/holdfast"],"Cmd":["run"],"Labels":{${labels%,}}},
	"rootfs":{"type":"layers","diff_ids":["sha256:$content"]}}
JSON
config=$(blob config.v1+json "$work/config")

printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{%s},"layers":[{%s}]}' \
	"$config" "$layer" >"$work/manifest"
manifest=$(blob manifest.v1+json "$work/manifest")

# containerd takes the image's name from the first annotation, other programs its tag from the second.
cat >"$layout/index.json" <<-JSON
	{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{$manifest,
	"platform":{"architecture":"$architecture","os":"linux"},
	"annotations":{"io.containerd.image.name":"holdfast.io/holdfast:$version",
	"org.opencontainers.image.ref.name":"$version"}}]}
JSON
echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
pack "$layout" >"$file.new"
mv "$file.new" "$file"

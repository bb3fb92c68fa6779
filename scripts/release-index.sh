#!/usr/bin/env bash
# Joins the images of several architectures, from scripts/package-image.sh, into one: an OCI layout with one entry,
# which is an index of them.
#
#   scripts/release-index.sh FILE VERSION IMAGE...
set -euo pipefail
cd "$(dirname "$0")/.."
file=$1 version=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layout=$work/layout
mkdir "$layout"

# The blobs of all come together; each image's own list goes.
for image; do
	tar --extract --file "$image" --directory "$layout"
	jq '.manifests[0] | del(.annotations)' "$layout/index.json"
done | jq --slurp --compact-output '{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json",
	manifests: .}' >"$work/index"
sum=$(sha256sum "$work/index" | cut -d ' ' -f 1)
size=$(stat --format=%s "$work/index")
mv "$work/index" "$layout/blobs/sha256/$sum"

# The two names are for the same programs as in scripts/package-image.sh.
jq --null-input --compact-output --arg digest "sha256:$sum" --argjson size "$size" --arg version "$version" '{
	schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json",
	manifests: [{
		mediaType: "application/vnd.oci.image.index.v1+json", digest: $digest, size: $size,
		annotations: {
			"io.containerd.image.name": "holdfast.io/holdfast:\($version)",
			"org.opencontainers.image.ref.name": $version
		}
	}]
}' >"$layout/index.json"
scripts/release-pack.sh "$file" "$layout"

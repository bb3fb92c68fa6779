#!/usr/bin/env bash
# Signs an image as cosign does, without a registry:
#
#   scripts/release-image-signature.sh IMAGE FILE KEY    KEY is a private key of ECDSA P-256
#
# FILE is a tar to unpack over the image's layout. It adds the signature, and the list of both under the names that
# cosign gives them: by its annotations in a layout, and as `sha256-DIGEST.sig` in a registry.
set -euo pipefail
cd "$(dirname "$0")/.."
image=$1 file=$2 key=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layout=$work/layout
mkdir -p "$layout/blobs/sha256"

# Moves a file among the blobs, and prints how others refer to it.
blob() {
	local type=$1 from=$2 sum size
	sum=$(sha256sum "$from" | cut -d ' ' -f 1)
	size=$(stat --format=%s "$from")
	mv "$from" "$layout/blobs/sha256/$sum"
	jq --null-input --compact-output --arg type "$type" --arg digest "sha256:$sum" --argjson size "$size" \
		'{mediaType: $type, digest: $digest, size: $size}'
}

tar --extract --file "$image" --to-stdout ./index.json >"$work/index"
digest=$(jq --raw-output '.manifests[0].digest' "$work/index")
jq --null-input --compact-output --join-output --arg digest "$digest" '{
	critical: {identity: {"docker-reference": "holdfast.io/holdfast"}, image: {"docker-manifest-digest": $digest},
		type: "cosign container image signature"},
	optional: null}' >"$work/payload"
openssl dgst -sha256 -sign "$key" -out "$work/signature" "$work/payload"
layer=$(blob application/vnd.dev.cosign.simplesigning.v1+json "$work/payload")

jq --null-input --compact-output --argjson layer "$layer" '{architecture: "", os: "", config: {},
	rootfs: {type: "layers", diff_ids: [$layer.digest]}}' >"$work/config"
config=$(blob application/vnd.oci.image.config.v1+json "$work/config")
jq --null-input --compact-output --argjson config "$config" --argjson layer "$layer" \
	--arg signature "$(base64 --wrap=0 "$work/signature")" '{
	schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: $config,
	layers: [$layer + {annotations: {"dev.cosignproject.cosign/signature": $signature}}]}' >"$work/manifest"
manifest=$(blob application/vnd.oci.image.manifest.v1+json "$work/manifest")

jq --compact-output --argjson manifest "$manifest" --arg tag "${digest/:/-}.sig" '
	.manifests[0].annotations.kind = "dev.cosignproject.cosign/imageIndex" |
	.manifests += [$manifest + {annotations: {kind: "dev.cosignproject.cosign/sigs",
		"org.opencontainers.image.ref.name": $tag}}]' "$work/index" >"$layout/index.json"
scripts/release-pack.sh "$file" "$layout"

#!/usr/bin/env bash
# Writes the list of an artifact's parts beside it, as FILE.cdx.json in CycloneDX 1.5:
#
#   scripts/release-sbom.sh FILE VERSION [COMPONENTS...]    the latter from scripts/release-components.sh
set -euo pipefail
file=$1 version=$2
shift 2
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

sbom() {
	cat /dev/null "${@:2}" | jq --slurp --sort-keys --arg name "${file##*/}" --arg version "$version" \
		--arg created "$created" --arg number "$1" '
		(add // [] | unique_by(."bom-ref")) as $components | {
			bomFormat: "CycloneDX", specVersion: "1.5", version: 1, serialNumber: "urn:uuid:\($number)",
			metadata: {
				timestamp: $created,
				tools: {components: [{type: "application", name: "scripts/release-sbom.sh", version: $version}]},
				component: {type: (if ($name | endswith(".oci.tar")) then "container" else "application" end),
					"bom-ref": $name, name: $name, version: $version,
					licenses: [{expression: (["Apache-2.0", "(GPL-2.0-only OR BSD-2-Clause)"][:($components | length) + 1]
						| join(" AND "))}]}
			},
			components: $components,
			dependencies: [{ref: $name, dependsOn: ($components | map(."bom-ref"))}]
		}'
}

# The number names the content: two lists that differ have two numbers, and equal ones the same.
sum=$(sbom 00000000-0000-8000-8000-000000000000 "$@" | sha256sum)
sbom "${sum:0:8}-${sum:8:4}-8${sum:12:3}-8${sum:15:3}-${sum:18:12}" "$@" >"$file.cdx.json"

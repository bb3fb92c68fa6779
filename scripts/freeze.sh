#!/usr/bin/env bash
# Writes the formats of the present version to tests/formats/VERSION: its state, answers, metrics, keys, exit codes and
# map layouts. Every later version reads them (docs/versions.md). The formats of a version with a tag stay.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
folder=tests/formats/$version

refuse_if_released() {
	if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
		echo "freeze: v$version is released, so $folder stays as it is; raise the version in Cargo.toml first" >&2
		exit 1
	fi
}

# Each of these tests writes what it then compares with.
write_formats() {
	rm -rf "$folder"
	cargo test --locked -p holdfast-agent -p holdfast-api -p holdfast-datapath --lib -- \
		each_released pinned_maps_keep_the_layout
	cargo build --locked --profile test -p holdfast --bin holdfast
	cargo test --locked -p holdfast-tests --test daemon -- \
		each_released_answer each_released_key each_released_command
}

refuse_if_released
FREEZE=1 write_formats
find "$folder" -type f | sort
echo "freeze: commit these files"

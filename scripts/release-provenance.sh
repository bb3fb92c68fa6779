#!/usr/bin/env bash
# Prints how the files of a folder were built, as a statement of in-toto with SLSA's predicate of provenance:
#
#   scripts/release-provenance.sh FOLDER VERSION ARCHITECTURE...
#
# It says nothing of the machine and of the time, so equal builds give equal statements.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 version=$2
shift 2

subjects() {
	(cd "$folder" && sha256sum -- *) |
		jq --raw-input --slurp '[scan("([0-9a-f]{64})  (.*)\n") | {name: .[1], digest: {sha256: .[0]}}]'
}

# What the compilers and the distribution's libraries were. Cargo.lock names each crate by its sum.
inputs() {
	for architecture; do
		scripts/release-inputs.sh "$architecture" | jq --raw-input --slurp --arg architecture "$architecture" '
			split("\n") | map(split("\t") | select(length > 3) |
				{name: .[1], digest: {sha256: .[-1]}, annotations: {for: $architecture, version:
					(if .[0] == "tool" then .[2] else "\(.[4]) \(.[3])" end)}})'
	done | jq --slurp 'add'
}

# Binaries that came from elsewhere are an input as well, and the statement must not claim to have built them.
given() {
	[[ -n ${RELEASE_BINARIES:-} ]] || {
		echo '{}'
		return
	}
	(cd "$RELEASE_BINARIES" && sha256sum "$@") |
		jq --raw-input --slurp '[scan("([0-9a-f]{64})  (.*)\n") | {(.[1]): {sha256: .[0]}}] | {binaries: add}'
}

# A part that cannot be made ends this, so each goes through a file.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
subjects >"$work/subjects"
inputs "$@" >"$work/inputs"
given "$@" >"$work/given"
printf '"%s"\n' "$@" | jq --slurp . >"$work/architectures"

jq --slurp --arg version "$version" --arg commit "$(git rev-parse HEAD)" --arg profile "${PACKAGE_PROFILE:-release}" \
	--arg lock "$(sha256sum Cargo.lock | cut -d ' ' -f 1)" '. as [$subjects, $inputs, $given, $architectures] | {
	_type: "https://in-toto.io/Statement/v1",
	subject: $subjects,
	predicateType: "https://slsa.dev/provenance/v1",
	predicate: {
		buildDefinition: {
			buildType: "https://holdfast.io/build/make-release/v1",
			externalParameters: ({command: "make release VERSION=\($version)", architectures: $architectures,
				profile: $profile} + $given),
			resolvedDependencies: ([{name: "holdfast", digest: {gitCommit: $commit}},
				{name: "Cargo.lock", digest: {sha256: $lock}}] + $inputs)
		},
		runDetails: {builder: {id: "https://holdfast.io/build/maintainer/v1"}}
	}
}' "$work"/{subjects,inputs,given,architectures}

#!/usr/bin/env bash
# Prints the parts of a static binary as CycloneDX's components, in a JSON array:
#
#   scripts/release-components.sh ARCHITECTURE BINARY
#
# A scanner finds no part in a binary without symbols, and cargo knows nothing of libraries in C. So the crates come
# from cargo's own resolution for exactly this build, without those that only run while it compiles, and the libraries
# from the linker.
set -euo pipefail
cd "$(dirname "$0")/.."
architecture=$1 binary=$2
machine=${architecture/amd64/x86_64}
machine=${machine/arm64/aarch64}

# The checksums stand in Cargo.lock alone. The crates of this repository have none, and are on no registry.
crates() {
	cargo tree --locked --quiet --package holdfast --features static --target "$machine-unknown-linux-gnu" \
		--edges normal,no-proc-macro --prefix none --format '{p}|{l}' | sed 's/ (\*)$//' | sort --unique |
		jq --raw-input --slurp --rawfile lock Cargo.lock '
			($lock | split("[[package]]") | map(capture("name = \"(?<name>.*)\"\nversion = \"(?<version>.*)\"\n(.*\n)*?" +
				"checksum = \"(?<sum>.*)\"")? | {"\(.name)@\(.version)": .sum}) | add) as $sums |
			split("\n") | map(select(. != "") | capture("^(?<name>[^ ]+) v(?<version>[^ |]+).*\\|(?<licence>.*)$")) |
			map("\(.name)@\(.version)" as $id | $sums[$id] as $sum | {
				type: "library", "bom-ref": "pkg:cargo/\($id)", name, version,
				licenses: [{expression: (.licence | gsub("(?<! )/(?! )"; " OR "))}]
			} + if $sum then {purl: "pkg:cargo/\($id | gsub("[+]"; "%2B"))", hashes: [{alg: "SHA-256", content: $sum}]}
				else {} end)'
}

# What crates compile from sources in C that they carry: its version follows the crate's own.
vendored() {
	jq '
		def within($crate; $name; $licence):
			.[] | select(.name == $crate) | (.version | split("+")[1] | ltrimstr("v")) as $version |
			{type: "library", "bom-ref": "\($name)@\($version)", name: $name, version: $version,
				licenses: [{expression: $licence}]};
		[within("libbpf-sys"; "libbpf"; "LGPL-2.1-only OR BSD-2-Clause"),
			within("tikv-jemalloc-sys"; "jemalloc"; "BSD-2-Clause")]'
}

# The licences are those that the distribution's packages state; a library without one fails the test of lists.
libraries() {
	scripts/release-inputs.sh "$architecture" | jq --raw-input --slurp '
		{libc: "LGPL-2.1-or-later", libgcc: "GPL-3.0-or-later WITH GCC-exception-3.1",
			libgcc_eh: "GPL-3.0-or-later WITH GCC-exception-3.1", libelf: "LGPL-3.0-or-later OR GPL-2.0-or-later",
			libz: "Zlib", libzstd: "BSD-3-Clause OR GPL-2.0-only"} as $licences |
		split("\n") | map(split("\t")) |
		(map(select(.[0] == "library") | {
			type: "library", "bom-ref": "\(.[1])?arch=\(.[5])", name: .[1], version: .[3],
			purl: "pkg:deb/debian/\(.[4])@\(.[3] | @uri)?arch=\(.[5])",
			licenses: [{expression: $licences[.[1]]}], hashes: [{alg: "SHA-256", content: .[6]}]
		})) + map(select(.[1] == "rustc") | (.[2] | split(" ")[1]) as $version | {
			type: "library", "bom-ref": "rust-std@\($version)", name: "rust-std", version: $version,
			licenses: [{expression: "MIT OR Apache-2.0"}]
		})'
}

own() {
	jq --null-input --arg sum "$(sha256sum "$binary" | cut -d ' ' -f 1)" --arg architecture "$architecture" '[
		{type: "file", "bom-ref": "usr/bin/holdfast?arch=\($architecture)", name: "holdfast",
			description: "the static binary for \($architecture)", hashes: [{alg: "SHA-256", content: $sum}]},
		{type: "library", "bom-ref": "holdfast-bpf", name: "holdfast-bpf", description: "the programs in the kernel",
			licenses: [{expression: "GPL-2.0-only OR BSD-2-Clause"}]}]'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
own >"$work/own"
crates >"$work/crates"
vendored <"$work/crates" >"$work/vendored"
libraries >"$work/libraries"
jq --slurp 'add' "$work"/{own,crates,vendored,libraries}

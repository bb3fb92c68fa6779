#!/usr/bin/env bash
# What to run while you write: the laws of the rules, the house rules, and the lints of the packages that you changed.
# `make test` and `make check` have the last word.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup

# The packages of files that differ from what was committed last, or from the branch that BASE names.
changed() {
	{
		git diff --name-only "${BASE:-HEAD}"
		git ls-files --others --exclude-standard
	} | while read -r path; do
		case $path in
		daemon/src/* | daemon/Cargo.toml) echo holdfast ;;
		daemon/*/*) path=${path#daemon/} && echo "holdfast-${path%%/*}" ;;
		bpf/*) echo holdfast-datapath ;;
		knowledge/*) echo holdfast-knowledge ;;
		tests/systems/conformance/*.rs) echo holdfast-conformance ;;
		tests/fixtures/src/* | tests/fixtures/Cargo.toml) echo holdfast-fixtures ;;
		tests/laws/*) echo holdfast-laws ;;
		tests/remains/*) echo holdfast-remains ;;
		tests/suite/*) echo holdfast-suite ;;
		tests/tidy/*) echo holdfast-tidy ;;
		tests/*.rs) echo holdfast-tests ;;
		esac
	done | sort -u
}

cargo fmt --all --check
cargo test --locked --quiet -p holdfast-tidy
cargo test --locked --quiet -p holdfast-core
mapfile -t packages < <(changed)
if ((${#packages[@]} > 0)); then
	echo "lints of ${packages[*]}"
	cargo clippy --profile test --locked --quiet --all-targets --no-deps "${packages[@]/#/--package=}" -- -D warnings
fi
echo "quick: clean"

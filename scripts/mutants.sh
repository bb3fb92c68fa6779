#!/usr/bin/env bash
# Makes each mistake of tests/mutants.toml in a copy of the tree below the target folder, and shows that tests catch it.
# Arguments go to `suite mutants`.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

cargo build --quiet --locked --profile test -p holdfast-suite --bin suite
# Libraries of others are the same as for the checkout: a new copy begins with them.
copy=$target/mutants/target/debug
if [[ ! -d $copy/deps && -d $target/debug/deps ]]; then
	scripts/copy-libraries.sh "$target/debug" "$copy"
fi
exec "$target/debug/suite" mutants "$@"

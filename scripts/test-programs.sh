#!/usr/bin/env bash
# Builds all test programs, and the programs that tests start (the daemon, `bed_child`, `vm`, `drill`, `conformance`):
# in one way for everything, so that nothing is compiled twice. Where the test programs lie is in the target folder's
# suite/built.json. Arguments go to cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
# The command that runs the tests has built them already.
[[ -z ${TEST_PROGRAMS_BUILT:-} ]] || exit 0
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/suite"

# The same for all builds: libraries in C are compiled anew whenever it changes.
unset SOURCE_DATE_EPOCH
built=$target/suite/built.json
# In a new folder, what cargo keeps for the next build of our own code costs two minutes, and many a clone is tested
# only once. The first change makes it, and from then on a change is compiled in less than one. Without a change all
# builds are of the same kind, so the second one compiles nothing.
is_changed() {
	[[ -e $built && -n $(find Cargo.lock bpf daemon examples knowledge tests -newer "$built" -type f -print -quit) ]]
}
if [[ -z ${CI:-} ]] && { [[ -e $target/suite/incremental ]] || is_changed; }; then
	touch "$target/suite/incremental"
else
	export CARGO_INCREMENTAL=0
fi

# Libraries of others are the same for all clones: a new folder begins with them. Cargo finds out which of them fit.
libraries=$({ rustc --version && echo "${RUSTFLAGS:-}"; } | scripts/cached.sh libraries Cargo.lock Cargo.toml)
if [[ $(cat "$target/suite/libraries" 2>/dev/null) != "$libraries" && -d $libraries/whole ]]; then
	scripts/copy-libraries.sh "$libraries/whole" "$target/debug"
fi
echo "$libraries" >"$target/suite/libraries"

cargo test --workspace --locked --no-run --lib --bins --test '*' --bench '*' --message-format=json-render-diagnostics \
	"$@" >"$built.new"
# A test of cargo's brings the programs of its own package only. The smallest one is built with the rest: only then has
# cargo the same features for what they are made from as for what tests are made from.
cargo build --workspace --locked --profile test --bins --test tidy "$@"
mv "$built.new" "$built"

# Whole or absent, also where two runs do it at once.
if [[ ! -d $libraries/whole ]]; then
	half=$(mktemp -d "$libraries/half.XXXXXX")
	scripts/copy-libraries.sh "$target/debug" "$half"
	mv -T "$half" "$libraries/whole" 2>/dev/null || rm -rf "$half"
fi

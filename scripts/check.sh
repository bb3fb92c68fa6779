#!/usr/bin/env bash
# What a change has to satisfy besides its tests. Runs everything, then says what failed.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup check

failures=()
absent=()
step() {
	local name=$1
	shift
	echo "== $name"
	"$@" || failures+=("$name")
}

step "format" cargo fmt --all --check
# The profile of the tests: what build scripts and macros are made of is then built once.
step "lints" cargo clippy --profile test --workspace --all-targets --all-features --locked -- -D warnings
step "documentation" env RUSTDOCFLAGS="-D warnings" \
	cargo doc --profile test --workspace --no-deps --document-private-items --locked
step "licences, bans, sources" cargo deny --locked check -A unused-wrapper licenses bans sources
if cargo deny fetch db 2>/dev/null; then
	step "advisories" cargo deny --locked check --disable-fetch advisories
else
	absent+=("not run here: advisories (the RustSec database cannot be fetched)")
fi
# needing NAME WHAT COMMAND...: a step that exits with 3 if this machine lacks what it needs. In CI everything is there.
needing() {
	local name=$1 what=$2 status=0
	shift 2
	"$@" || status=$?
	case $status in
	0) ;;
	3)
		absent+=("not run here: $name (needs $what)")
		[[ -z ${CI:-} ]] || failures+=("$name, which was not run")
		;;
	*) failures+=("$name") ;;
	esac
}
needing "alerts" "promtool, of the package prometheus" scripts/promtool.sh
needing "dashboard" "node and npm, and @grafana/schema from there" scripts/dashboard.sh
man_pages() {
	mandoc -T lint -W warning packaging/man/holdfast.1 packaging/man/holdfast.8 &&
		scripts/package-keys.sh | mandoc -T lint -W warning
}
step "man pages" man_pages
step "shell scripts" shellcheck scripts/setup scripts/*.sh examples/demo/*.sh tests/systems/vm/*.sh \
	tests/systems/host/*.sh tests/systems/conformance/machine/*.sh .ci/run packaging/debian/{postinst,prerm,postrm}

((${#absent[@]} == 0)) || printf '%s\n' "${absent[@]}"
((${#failures[@]} == 0)) || {
	printf 'failed: %s\n' "${failures[@]}"
	exit 1
}
echo "check: clean"

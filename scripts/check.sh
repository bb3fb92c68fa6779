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
step "lints" cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked
step "licences, bans, sources" cargo deny --locked check -A unused-wrapper licenses bans sources
if cargo deny fetch db 2>/dev/null; then
	step "advisories" cargo deny --locked check --disable-fetch advisories
else
	absent+=("not run here: advisories (the RustSec database cannot be fetched)")
fi
# Exit code 3: this machine has no promtool, and no package that brings it.
status=0
scripts/promtool.sh || status=$?
case $status in
0) ;;
3) absent+=("not run here: alerts (needs promtool, of the package prometheus)") ;;
*) failures+=("alerts") ;;
esac
status=0
scripts/dashboard.sh || status=$?
case $status in
0) ;;
3) absent+=("not run here: dashboard (needs node and npm, and @grafana/schema from there)") ;;
*) failures+=("dashboard") ;;
esac
step "shell scripts" shellcheck scripts/setup scripts/*.sh tests/vm/*.sh tests/host/*.sh \
	tests/conformance/machine/*.sh .ci/run packaging/debian/{postinst,prerm,postrm}

((${#absent[@]} == 0)) || printf '%s\n' "${absent[@]}"
((${#failures[@]} == 0)) || {
	printf 'failed: %s\n' "${failures[@]}"
	exit 1
}
echo "check: clean"

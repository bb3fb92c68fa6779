#!/usr/bin/env bash
# Runs tests of cargo's. The few that fail are run once more with nothing beside them: clocks and real traffic can be
# late on a machine that others use too, and what is wrong fails twice. What passes then is named, `unsteady: NAME`.
#
#   scripts/steady.sh cargo test … -- …
set -euo pipefail

# More than these at once are no accident.
unsteady_max=3

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$@" 2>&1 | tee "$log" || status=$?
mapfile -t names < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$log" | sort -u)
((status != 0 && ${#names[@]} > 0 && ${#names[@]} <= unsteady_max)) || exit "$status"
# What died did not say which test it was at; and no law waits for a clock.
! grep -qF '(signal: ' "$log" || exit "$status"
! printf '%s\n' "${names[@]}" | grep -qE '(^|::)(any|invariant|scenario|simulation)_' || exit "$status"

echo "== once more, alone: ${names[*]}"
command=("$@")
[[ " ${command[*]} " == *" -- "* ]] || command+=(--)
# In front of each line stands that it is a second try, and so it is not counted as a test of its own.
again=$("${command[@]}" --exact "${names[@]}" 2>&1) || {
	echo "again: ${again//$'\n'/$'\n'again: }"
	exit "$status"
}
passed=$(grep -cE '^test .* \.\.\. ok$' <<<"$again") || true
((passed >= ${#names[@]})) || {
	echo "again: only $passed of ${#names[@]} ran"
	exit "$status"
}
printf 'unsteady: %s\n' "${names[@]}"

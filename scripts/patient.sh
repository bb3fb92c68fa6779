#!/usr/bin/env bash
# Runs a command that fetches something, and up to twice more where the network says that it did not answer in time.
# What fails for another reason fails at once.
#
#   scripts/patient.sh go build ./...
set -euo pipefail

said=$(mktemp)
trap 'rm -f "$said"' EXIT
for pause in 5 30 end; do
	status=0
	"$@" 2> >(tee "$said" >&2) || status=$?
	((status != 0)) && [[ $pause != end ]] || exit "$status"
	# The other end of the pipe may still be writing.
	wait
	grep -qiE 'time-?out|timed out|connection reset|unexpected EOF|temporary failure' "$said" || exit "$status"
	echo "${0##*/}: the network did not answer in time; trying again in $pause s" >&2
	sleep "$pause"
done

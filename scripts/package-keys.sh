#!/usr/bin/env bash
# Writes the man page holdfast.toml(5): the keys and their sentences are those of config.example.toml, so that they are
# written down once.
set -euo pipefail
cd "$(dirname "$0")/.."

keys() {
	awk '
		function plain(text) {
			gsub(/\\/, "\\e", text); gsub(/^\./, "\\\\\\&.", text)
			gsub(/-/, "\\-", text); gsub(/"/, "\\(dq", text)
			return text
		}
		function flush() { said = ""; }
		# The heading of a table, also of one that is only an example.
		/^(##)?\[/ {
			name = $0; sub(/^##/, "", name)
			if (listed) print ".El"
			print ".Ss " plain(name)
			if (said != "") print plain(said)
			print ".Bl -tag -width 2n"
			listed = 1; flush(); next
		}
		# A key with its default, or with an example.
		/^#+[a-z_]+ = / {
			shown = $0; sub(/^#+/, "", shown)
			print ".It Li " plain(shown)
			print plain(said)
			flush(); next
		}
		/^# / {
			line = $0; sub(/^# /, "", line); gsub(/\. /, ".\n", line)
			said = said (said == "" ? "" : said ~ /\.$/ ? "\n" : " ") line; next
		}
		/^$/ { if (!listed) flush() }
		END { if (listed) print ".El" }
	' config.example.toml
}

while IFS= read -r line; do
	if [[ $line == @KEYS@ ]]; then keys; else printf '%s\n' "$line"; fi
done <packaging/man/holdfast.toml.5.in

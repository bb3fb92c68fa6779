#!/usr/bin/env bash
# Copies what cargo has built of libraries of others, from one folder to another: copy-libraries.sh FROM TO
set -euo pipefail
for folder in deps build .fingerprint; do
	mkdir -p "$2/$folder"
	# Of the files, those without a dot in the name are our programs, which are not copied.
	find "$1/$folder" -mindepth 1 -maxdepth 1 ! -name '*holdfast*' \( -type d -o -name '*.*' \) \
		-exec cp -a -n --reflink=auto -t "$2/$folder" {} +
done

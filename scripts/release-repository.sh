#!/usr/bin/env bash
# Makes repository/ in a release's folder, for apt and for dnf, from the packages beside it:
#
#   scripts/release-repository.sh FOLDER
#
# Both have two suites: `candidate` has every package, `stable` those that are no candidate. RELEASE_FORMER is the
# folder of a former release; its packages stay, so that nodes can go back to them. Nothing is signed here.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "$1")
former=${RELEASE_FORMER:+$(realpath "$RELEASE_FORMER")}
root=$folder/repository
rm -rf "$root"
mkdir -p "$root"/{deb/pool,rpm/stable,rpm/candidate}

# A package that was published never changes under its name. Times are in the lists of dnf.
take() {
	local file to=$root/$1
	for file in "${@:2}"; do
		[[ ! -e $to/${file##*/} ]] || cmp -- "$file" "$to/${file##*/}" || return
		cp -- "$file" "$to"
		touch --date="@$SOURCE_DATE_EPOCH" "$to/${file##*/}"
	done
}

stanza() {
	dpkg-deb --field "$1"
	printf 'Filename: %s\nSize: %d\nSHA256: %s\n\n' "$1" "$(stat --format=%s "$1")" "$(sha256sum "$1" | cut -d ' ' -f 1)"
}

release() {
	local suite=$1 file
	printf '%s\n' 'Origin: holdfast' 'Label: holdfast' "Suite: $suite" "Codename: $suite" \
		"Date: $(date --utc --date="@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S UTC')" \
		'Architectures: amd64 arm64' 'Components: main' 'SHA256:'
	(cd "dists/$suite" && find main -type f | sort | while read -r file; do
		printf ' %s %d %s\n' "$(sha256sum "$file" | cut -d ' ' -f 1)" "$(stat --format=%s "$file")" "$file"
	done)
}

# The packages of a suite, sorted.
members() { find pool -type f | sort | if [[ $1 == stable ]]; then sed '/~/d'; else cat; fi; }

apt() {
	local suite=$1 architecture folder package
	for architecture in amd64 arm64; do
		folder=dists/$suite/main/binary-$architecture
		mkdir -p "$folder"
		members "$suite" | sed -n "/_$architecture\.deb$/p" | while read -r package; do stanza "$package"; done \
			>"$folder/Packages"
		xz --keep "$folder/Packages"
	done
	release "$suite" >"dists/$suite/Release.new"
	mv "dists/$suite/Release.new" "dists/$suite/Release"
}

dnf() {
	createrepo_c --quiet --no-database --general-compress-type=gz --revision="$SOURCE_DATE_EPOCH" \
		--set-timestamp-to-revision "$1"
}

[[ -z $former ]] || {
	take deb/pool "$former"/repository/deb/pool/*
	take rpm/candidate "$former"/repository/rpm/candidate/*.rpm
}
take deb/pool "$folder"/*.deb
take rpm/candidate "$folder"/*.rpm
find "$root/rpm/candidate" -name '*.rpm' ! -name '*~*' -exec cp --preserve=timestamps -t "$root/rpm/stable" {} +
for suite in stable candidate; do
	(cd "$root/deb" && apt "$suite")
	(cd "$root/rpm" && dnf "$suite")
done

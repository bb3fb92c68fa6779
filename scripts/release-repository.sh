#!/usr/bin/env bash
# Makes repository/ in a release's folder, for apt and for dnf, from the packages beside it:
#
#   scripts/release-repository.sh FOLDER
#
# Both have two suites: `candidate` has every package, `stable` those that are no candidate. RELEASE_FORMER is the
# folder of a former release; its packages stay, so that nodes can go back to them. So do those of a repository that is
# there already, which signing makes anew. Nothing is signed here.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "$1")
former=${RELEASE_FORMER:+$(realpath "$RELEASE_FORMER")}
root=$folder/repository
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
[[ ! -e $root ]] || mv "$root" "$before/repository"
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

shopt -s nullglob
take deb/pool "$folder"/*.deb ${former:+"$former"/repository/deb/pool/*}
take rpm/candidate "$folder"/*.rpm ${former:+"$former"/repository/rpm/candidate/*.rpm}
cd "$before"
for file in repository/deb/pool/* repository/rpm/candidate/*.rpm; do
	[[ -e $folder/$file ]] || cp --preserve=timestamps "$file" "$folder/$file"
done
find "$root/rpm/candidate" -name '*.rpm' ! -name '*~*' -exec cp --preserve=timestamps -t "$root/rpm/stable" {} +
for suite in stable candidate; do
	(cd "$root/deb" && apt "$suite")
	(cd "$root/rpm" && dnf "$suite")
done

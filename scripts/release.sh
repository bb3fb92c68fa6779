#!/usr/bin/env bash
# Makes a release in target/dist/VERSION: packages, images, static binaries, manifests and the chart, a list of the
# parts of each, how they were built, their sums, and a repository for apt and dnf. docs/release.md is its guide.
#
#   scripts/release.sh VERSION
#
# Equal sources and compilers give equal bytes, but for signatures. RELEASE_KEYS is a folder with the keys that sign it.
# RELEASE_FORMER is a former release, whose packages the repository keeps. RELEASE_ARCHITECTURES instead of both,
# RELEASE_BINARIES a folder with a binary for each instead of a build.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-}
read -ra architectures <<<"${RELEASE_ARCHITECTURES:-amd64 arm64}"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8
umask 022

fail() {
	echo "release: $*" >&2
	exit 64
}
declared=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[[ $version == "$declared" ]] || fail "VERSION=${version:-?}, and these sources are version $declared"
grep -qx "version: $version" contrib/helm/holdfast/Chart.yaml || fail "the Helm chart is of another version"
[[ -z $(git status --porcelain) ]] || fail "there are changes that are not committed, and a release names its commit"
for file in {minisign,image}.{key,pub} packages.key; do
	[[ -z ${RELEASE_KEYS:-} || -r $RELEASE_KEYS/$file ]] || fail "$RELEASE_KEYS/$file cannot be read"
done
dist=$(realpath -m "${CARGO_TARGET_DIR:-target}/dist")
[[ ! -e $dist/$version ]] || fail "$dist/$version is there; a release is never written over"

mkdir -p "$dist"
work=$(mktemp -d "$dist/.$version.XXXXXX")
trap 'rm -rf "$work"' EXIT
# A program that ends well after Ctrl-C would have the rest go on.
trap 'exit 130' INT TERM
out=$work/out
mkdir "$out" "$work/bin"

say() { printf 'release: %4d s  %s\n' "$SECONDS" "$*" >&2; }

# Packs what is committed in a folder of this repository, under a name of its own.
pack_folder() {
	local name=$2
	mkdir -p "$work/tree/$name"
	git archive "HEAD:$1" | tar --extract --directory "$work/tree/$name"
	scripts/release-pack.sh "$out/$3" "$work/tree" "$name"
}

# Beside the binary, what the packages bring, at its place in the sources.
pack_binary() {
	local name=holdfast-$version-linux-$1
	mkdir -p "$work/tree/$name"
	git archive HEAD config.example.toml contrib/systemd contrib/apparmor LICENSE LICENSE-BPF |
		tar --extract --directory "$work/tree/$name"
	install -m 644 packaging/debian/copyright "$work/tree/$name/copyright"
	install -m 755 "$work/bin/$1" "$work/tree/$name/holdfast"
	scripts/release-pack.sh "$out/$name.tar.gz" "$work/tree" "$name"
}

build() {
	local architecture=$1 from kind
	say "the binary for $architecture"
	from=${RELEASE_BINARIES:+$RELEASE_BINARIES/$architecture}
	[[ -n $from ]] || from=$(scripts/package-build.sh "$architecture")
	install -m 755 "$from" "$work/bin/$architecture"
	say "packages for $architecture"
	for kind in deb rpm image; do
		HOLDFAST_BINARY=$work/bin/$architecture PACKAGE_FOLDER=$out scripts/package.sh "$kind" "$architecture"
	done >/dev/null
	pack_binary "$architecture"
	scripts/release-components.sh "$architecture" "$work/bin/$architecture" >"$work/$architecture.json"
}

for architecture in "${architectures[@]}"; do build "$architecture"; done
say "image, manifests and Helm chart for all"
scripts/release-index.sh "$out/holdfast-$version.oci.tar" "$version" "$out"/holdfast-"$version"-*.oci.tar
pack_folder contrib/kubernetes "holdfast-$version-kustomize" "holdfast-$version-kustomize.tar.gz"
pack_folder contrib/helm/holdfast holdfast "holdfast-$version.tgz"

say "lists of parts, provenance, sums and the repository"
for file in "$out"/*; do
	case $file in
	*amd64* | *x86_64*) parts=("$work/amd64.json") ;;
	*arm64* | *aarch64*) parts=("$work/arm64.json") ;;
	*.oci.tar) parts=("${architectures[@]/%/.json}") && parts=("${parts[@]/#/$work/}") ;;
	*) parts=() ;;
	esac
	scripts/release-sbom.sh "$file" "$version" "${parts[@]}"
done
scripts/release-provenance.sh "$out" "$version" "${architectures[@]}" >"$work/provenance"
mv "$work/provenance" "$out/holdfast-$version.provenance.json"
scripts/release-sums.sh "$out"
mv "$out/SHA256SUMS" "$out/UNSIGNED.sha256"
scripts/release-repository.sh "$out"
scripts/release-sums.sh "$out"

[[ -z ${RELEASE_KEYS:-} ]] || scripts/release-sign.sh "$out" >&2
mv --no-target-directory "$out" "$dist/$version"
say "$dist/$version"
[[ -n ${RELEASE_KEYS:-} ]] || echo "release: NOT SIGNED, because RELEASE_KEYS is not set: nobody can verify it" >&2

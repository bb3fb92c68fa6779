#!/usr/bin/env bash
# Signs a release that scripts/release.sh made, with the keys in the folder RELEASE_KEYS:
#
#   scripts/release-sign.sh FOLDER
#
# Run it where the keys are: a release may be built on one machine and signed on another. The folder is exchanged at the
# end, so one that is signed in part is never seen. A signature is never written over.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "$1")
keys=$(realpath "${RELEASE_KEYS:?the folder with the keys, from scripts/release-keys.sh}")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8
umask 022

fail() {
	echo "release: $*" >&2
	exit 1
}
for file in {minisign,image}.{key,pub} packages.key; do
	[[ -r $keys/$file ]] || fail "$keys/$file cannot be read"
done
[[ ! -e $folder/SHA256SUMS.minisig ]] || fail "$folder is signed"
(cd "$folder" && sha256sum --check --quiet UNSIGNED.sha256) || fail "$folder is not as it was built"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[[ -e $folder/holdfast-$version.oci.tar ]] || fail "$folder holds another version than these sources, $version"

# Where gpg asks for a passphrase.
GPG_TTY=$(tty) || GPG_TTY=
GNUPGHOME=$(mktemp -d) work=$folder.signing
export GPG_TTY GNUPGHOME
trap 'gpgconf --kill all; rm -rf "$GNUPGHOME" "$work"' EXIT
trap 'exit 130' INT TERM
rm -rf "$work"
cp --recursive --preserve=timestamps "$folder" "$work"
gpg --quiet --batch --import "$keys/packages.key"

# A copy of the public keys comes with the release, for who has them from nowhere else yet.
for key in minisign image; do install -m 644 "$keys/$key.pub" "$work/holdfast-$key.pub"; done
gpg --armor --export >"$work/holdfast-packages.asc"

rpmsign --define "__gpg $(command -v gpg)" --define "_gpg_path $GNUPGHOME" --define "_gpg_name packages@holdfast.io" \
	--addsign "$work"/*.rpm >/dev/null
scripts/release-image-signature.sh "$work/holdfast-$version.oci.tar" "$work/holdfast-$version.oci.signature.tar" \
	"$keys/image.key"

scripts/release-repository.sh "$work"
for suite in "$work"/repository/deb/dists/*; do
	gpg --clearsign --output "$suite/InRelease" "$suite/Release"
	gpg --armor --detach-sign --output "$suite/Release.gpg" "$suite/Release"
done
for list in "$work"/repository/rpm/*/repodata/repomd.xml; do
	gpg --armor --detach-sign --output "$list.asc" "$list"
done

scripts/release-sums.sh "$work"
# This older form signs the file itself, not its hash: signify of Debian 11 knows it as well.
minisign -S -l -s "$keys/minisign.key" -m "$work/SHA256SUMS" -t "holdfast $version" -c "holdfast"
minisign -V -q -p "$work/holdfast-minisign.pub" -m "$work/SHA256SUMS"

# From here to the end both are whole, and Ctrl-C may not come between.
trap '' INT TERM
mv "$folder" "$folder.unsigned"
mv "$work" "$folder"
rm -rf "$folder.unsigned"
echo "release: signed"

#!/usr/bin/env bash
# Makes the keys that sign releases, in a new folder that is read by its owner alone:
#
#   scripts/release-keys.sh FOLDER              each key asks for a passphrase
#   scripts/release-keys.sh FOLDER unprotected  for tests
#
#   minisign.key  signs the sums of all files (Ed25519)
#   image.key     signs the image as cosign does (ECDSA P-256)
#   packages.key  signs packages and their repository (OpenPGP, RSA: also dnf of older releases knows it)
set -euo pipefail
folder=$1
mkdir -m 700 "$folder"
curve=(-algorithm EC -pkeyopt ec_paramgen_curve:P-256)
minisign=(minisign -G -s "$folder/minisign.key" -p "$folder/minisign.pub")
openssl=(openssl genpkey "${curve[@]}" -out "$folder/image.key")
gpg=(gpg --quiet)
if [[ ${2:-} == unprotected ]]; then
	minisign+=(-W)
	gpg+=(--batch --pinentry-mode loopback --passphrase '')
else
	openssl+=(-aes256)
fi
umask 077
"${minisign[@]}"
"${openssl[@]}"
openssl pkey -in "$folder/image.key" -pubout -out "$folder/image.pub"

# gpg writes keys to its own folder only, and an agent stays for it, which asks for passphrases at the terminal.
GPG_TTY=$(tty) || GPG_TTY=
GNUPGHOME=$(mktemp -d)
export GPG_TTY GNUPGHOME
trap 'gpgconf --kill all; rm -rf "$GNUPGHOME"' EXIT
"${gpg[@]}" --quick-generate-key 'holdfast packages <packages@holdfast.io>' rsa4096 sign never
"${gpg[@]}" --armor --export-secret-keys >"$folder/packages.key"

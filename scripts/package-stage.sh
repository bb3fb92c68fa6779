#!/usr/bin/env bash
# Lays out the files that both packages carry:
#
#   scripts/package-stage.sh BINARY FOLDER ARCHITECTURE
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$1
root=$2
holdfast=("$binary")
# On a machine of another architecture the binary runs in an emulator.
[[ $3 != arm64 || $(uname -m) == aarch64 ]] || holdfast=(scripts/arm64.sh qemu-aarch64 "$binary")

put() { install -D -m "$1" "$2" "$root/$3"; }
page() { gzip -9 -n -c >"$root/usr/share/man/man${1##*.}/$1.gz"; }

put 755 "$binary" usr/bin/holdfast
put 644 config.example.toml etc/holdfast/holdfast.toml
put 644 contrib/systemd/holdfast.service usr/lib/systemd/system/holdfast.service
put 644 contrib/systemd/holdfast.sysusers usr/lib/sysusers.d/holdfast.conf
put 644 contrib/systemd/holdfast.tmpfiles usr/lib/tmpfiles.d/holdfast.conf
put 644 contrib/systemd/holdfast.catalog usr/lib/systemd/catalog/holdfast.catalog
put 644 contrib/selinux/holdfast.cil usr/share/selinux/packages/holdfast.cil
scripts/package-docs.sh "$root"

install -d "$root"/usr/share/{man/man{1,5,8},bash-completion/completions}
install -d "$root"/usr/share/{zsh/vendor-completions,fish/vendor_completions.d}
page holdfast.1 <packaging/man/holdfast.1
page holdfast.8 <packaging/man/holdfast.8
scripts/package-keys.sh | page holdfast.toml.5
"${holdfast[@]}" completions bash >"$root/usr/share/bash-completion/completions/holdfast"
"${holdfast[@]}" completions zsh >"$root/usr/share/zsh/vendor-completions/_holdfast"
"${holdfast[@]}" completions fish >"$root/usr/share/fish/vendor_completions.d/holdfast.fish"
find "$root" -type f ! -path '*/bin/*' -exec chmod 644 {} +
find "$root" -type d -exec chmod 755 {} +

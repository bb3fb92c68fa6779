#!/usr/bin/env bash
# Lays out the documents that both packages carry, and needs no binary for that:
#
#   scripts/package-docs.sh FOLDER
#
# A link leads to a file of the package. Where the package has no such file, only the link's text stays. Pages are not
# compressed, because a link to `page.md` would lead nowhere.
set -euo pipefail
cd "$(dirname "$0")/.."
doc=$1/usr/share/doc/holdfast

put() { install -D -m 644 "$1" "$doc/$2"; }

links=(
	-e 's#\]\(\.\./contrib/kubernetes/rbac\.yaml\)#](examples/rbac.yaml)#g'
	-e 's#\[config\.example\.toml\]\(\.\./config\.example\.toml\)#[holdfast.toml](/etc/holdfast/holdfast.toml)#g'
	-e 's#\]\(\.\./(CHANGELOG|SECURITY)\.md\)#](\1.md)#g'
	-e 's#\]\(docs/#](#g'
	-e 's#!\[([^]]*)\]\([^)]*\)#(Picture: \1)#g'
	-e 's#\[([^]]*)\]\(\.\./[^)]*\)#\1 (in the source)#g'
)

install -d "$doc/examples"
for file in contrib/kubernetes/rbac.yaml examples/demo/manifests/*.yaml contrib/prometheus/holdfast.rules.yaml; do
	put "$file" "examples/${file##*/}"
done
put contrib/grafana/holdfast.json examples/holdfast-dashboard.json
for file in docs/*.md CHANGELOG.md SECURITY.md; do
	sed -E "${links[@]}" "$file" >"$doc/${file##*/}"
done

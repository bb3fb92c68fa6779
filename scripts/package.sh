#!/usr/bin/env bash
# Makes packages and container images from one static binary, in target/packages:
#
#   scripts/package.sh deb            for this machine; `deb arm64` for arm64
#   scripts/package.sh rpm
#   scripts/package.sh image
#
# PACKAGE_VERSION instead of the version in Cargo.toml, HOLDFAST_BINARY instead of a build, PACKAGE_FOLDER instead of
# target/packages. Equal sources give equal bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
architecture=${2:-$(uname -m)}
architecture=${architecture/x86_64/amd64}
architecture=${architecture/aarch64/arm64}

version=${PACKAGE_VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
# Both kinds of packages order a candidate before its release by this sign: 1.0.0~rc.1.
package_version=${version/-/'~'}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8
umask 022

binary=${HOLDFAST_BINARY:-$(scripts/package-build.sh "$architecture")}
out=${PACKAGE_FOLDER:-${CARGO_TARGET_DIR:-target}/packages}
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A program that ends well after Ctrl-C would have the rest go on.
trap 'exit 130' INT TERM
root=$work/root
mkdir "$root"

# Every time in a package is that of the last commit.
settle() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

deb() {
	local doc=$root/usr/share/doc/holdfast size
	install -m 644 packaging/debian/copyright "$doc/copyright"
	install -m 644 LICENSE-BPF "$doc/LICENSE-BPF"
	install -D -m 644 contrib/apparmor/holdfast "$root/etc/apparmor.d/holdfast"
	install -D -m 644 packaging/debian/lintian-overrides "$root/usr/share/lintian/overrides/holdfast"
	{
		printf 'holdfast (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n' "$package_version"
		printf ' -- The holdfast project <packages@holdfast.io>  %s\n' "$(date --rfc-email --date="@$SOURCE_DATE_EPOCH")"
	} | gzip -9 -n >"$doc/changelog.gz"

	mkdir "$root/DEBIAN"
	size=$(du -k -s --apparent-size --exclude=DEBIAN "$root" | cut -f 1)
	sed "s/@VERSION@/$package_version/; s/@ARCHITECTURE@/$architecture/; s/@SIZE@/$size/" packaging/debian/control.in \
		>"$root/DEBIAN/control"
	printf '%s\n' /etc/apparmor.d/holdfast /etc/holdfast/holdfast.toml >"$root/DEBIAN/conffiles"
	install -m 755 packaging/debian/{postinst,prerm,postrm} "$root/DEBIAN"
	(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
	chmod 644 "$root/DEBIAN/md5sums"
	settle "$root"
	dpkg-deb --root-owner-group -Zxz --build "$root" "$out/holdfast_${package_version}_$architecture.deb" >/dev/null
	echo "$out/holdfast_${package_version}_$architecture.deb"
}

rpm() {
	local machine=${architecture/amd64/x86_64}
	machine=${machine/arm64/aarch64}
	install -D -m 644 LICENSE "$root/usr/share/licenses/holdfast/LICENSE"
	install -m 644 LICENSE-BPF "$root/usr/share/licenses/holdfast/LICENSE-BPF"
	cp packaging/rpm/holdfast.spec "$work/holdfast.spec"
	printf '* %s The holdfast project <packages@holdfast.io> - %s-1\n- See CHANGELOG.md.\n' \
		"$(date --date="@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')" "$package_version" >>"$work/holdfast.spec"
	settle "$root"
	rpmbuild -bb --quiet --target "$machine-linux" --define "_topdir $work/rpm" --define "_rpmdir $out" \
		--define "_rpmfilename %{name}-%{version}-%{release}.%{arch}.rpm" --define "staged $root" \
		--define "package_version $package_version" "$work/holdfast.spec"
	echo "$out/holdfast-$package_version-1.$machine.rpm"
}

image() {
	local file=$out/holdfast-$version-$architecture.oci.tar
	scripts/package-image.sh "$binary" "$file" "$version" "$architecture"
	echo "$file"
}

case $kind in
deb | rpm)
	scripts/package-stage.sh "$binary" "$root" "$architecture"
	"$kind"
	;;
image) image ;;
*)
	echo "package: deb, rpm or image" >&2
	exit 64
	;;
esac

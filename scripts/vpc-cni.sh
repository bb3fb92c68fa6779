#!/usr/bin/env bash
# Builds the AWS VPC CNI for clusters with `CNI=vpc`: its plug-ins, what installs them, and stand-ins for its address
# daemon and for EC2's instance metadata. They lie in the folder `vpc-cni` of the target folder, shared by all clones,
# as a layer of the disks of machines: /opt/vpc-cni. Needs Go. Minutes the first time; silent when nothing has changed
# since.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
patient=$PWD/scripts/patient.sh
module=$PWD/tests/systems/conformance/vpc-cni
name=github.com/aws/amazon-vpc-cni-k8s
made_from=(scripts/vpc-cni.sh "$module"/go.{mod,sum} "$module"/{agent,metadata}/main.go)
out=$(go env GOVERSION | scripts/cached.sh vpc-cni "${made_from[@]}")

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
[[ ! -e $out/whole ]] || exit 0
echo "vpc-cni: building AWS's programs (once; takes minutes)" >&2
layer=$out/layer/opt/vpc-cni
sources=$out/sources
export CGO_ENABLED=0 GOFLAGS=-mod=readonly

copy_sources() {
	local from
	from=$(cd "$module" && "$patient" go mod download -json "$name" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	mkdir -p "$sources"
	cp -r "$from"/{cmd,pkg,rpc,utils,misc,go.mod,go.sum} "$sources/"
	chmod -R u+w "$sources"
	rm -r "$sources/cmd/aws-k8s-agent"
	cp -r "$module/agent" "$sources/cmd/aws-k8s-agent"
}

# program FOLDER NAME PACKAGE: builds a program of the module under the name that it has in AWS's image.
program() {
	(cd "$sources" && "$patient" go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$layer/$1/$2" "./cmd/$3")
}

# The folders /app and /init of AWS's two images, and the instance metadata.
build() {
	program app aws-cni routed-eni-cni-plugin
	program app egress-cni egress-cni-plugin
	program app grpc-health-probe grpc-health-probe
	program app aws-vpc-cni aws-vpc-cni
	program app aws-k8s-agent aws-k8s-agent
	program init aws-vpc-cni-init aws-vpc-cni-init
	cp "$sources/misc/10-aws.conflist" "$layer/app/"
	(cd "$module" && go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$layer/metadata" ./metadata)
}

rm -rf --one-file-system "$out/layer" "$sources"
copy_sources
build
rm -rf "$sources"
touch "$out/whole"

// Pins Flannel, which scripts/flannel.sh builds out of its own module.
module holdfast.test/conformance/flannel

go 1.26.0

require github.com/flannel-io/flannel v0.28.10

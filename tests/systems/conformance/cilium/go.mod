// Pins Cilium, which scripts/cilium.sh builds out of its own module.
module holdfast.test/conformance/cilium

go 1.26.0

require github.com/cilium/cilium v1.20.2

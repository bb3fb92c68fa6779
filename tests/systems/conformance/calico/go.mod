// Pins Calico, which scripts/calico.sh builds out of its own module, and the module that its repository has beside it.
module holdfast.test/conformance/calico

go 1.26.0

require (
	github.com/projectcalico/api v0.0.0-20240708202104-e3f70b269c2c
	github.com/projectcalico/calico v1.11.0-cni-plugin.0.20250813170300-a0db560f0520
)

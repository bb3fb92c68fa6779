// Pins kube-router, which scripts/kube-router.sh builds out of its own module.
module holdfast.test/conformance/kube-router

go 1.26.0

require github.com/cloudnativelabs/kube-router/v2 v2.1.0

// Pins the AWS VPC CNI, which scripts/vpc-cni.sh builds out of its own module.
module holdfast.test/conformance/vpc-cni

go 1.26.0

require github.com/aws/amazon-vpc-cni-k8s v1.23.2

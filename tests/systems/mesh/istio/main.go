// Istio's rules for a pod's network, made by Istio's own code in the network namespace of the process.
//
//	istio-rules sidecar ARGUMENTS...  what `pilot-agent istio-iptables ARGUMENTS...` does in an init container
//	istio-rules ambient               what Istio's CNI agent does in a pod's network for ztunnel
package main

import (
	"fmt"
	"net/netip"
	"os"

	"istio.io/istio/cni/pkg/config"
	"istio.io/istio/cni/pkg/iptables"
	"istio.io/istio/pkg/log"
	"istio.io/istio/tools/istio-iptables/pkg/cmd"
	"istio.io/istio/tools/istio-iptables/pkg/dependencies"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	switch {
	case len(words) > 0 && words[0] == "sidecar":
		command := cmd.GetCommand(log.DefaultOptions())
		command.SetArgs(words[1:])
		return command.Execute()
	case len(words) == 1 && words[0] == "ambient":
		return ambient()
	}
	return fmt.Errorf("usage: istio-rules sidecar ARGUMENTS... | ambient")
}

// The defaults of the CNI agent: both families, addresses of probes, and questions to DNS go to ztunnel.
func ambient() error {
	pod := &config.AmbientConfig{
		EnableIPv6:             true,
		RedirectDNS:            true,
		HostProbeSNATAddress:   netip.MustParseAddr("169.254.7.127"),
		HostProbeV6SNATAddress: netip.MustParseAddr("fd16:9254:7127:1337:ffff:ffff:ffff:ffff"),
	}
	real := &dependencies.RealDependencies{}
	_, inPod, err := iptables.NewIptablesConfigurator(pod, pod, real, real, iptables.RealNlDeps())
	if err != nil {
		return err
	}
	return inPod.CreateInpodRules(log.FindScope(log.DefaultScopeName), config.PodLevelOverrides{})
}

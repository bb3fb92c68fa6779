// Upstream's cloud-controller-manager with a cloud that exists nowhere.
//
// Invariant: what is said and when is upstream's; the cloud (cloud.go) only answers.
package main

import (
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	"k8s.io/klog/v2"
)

func main() {
	settings, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Fatalf("unable to initialize command options: %v", err)
	}
	cloud := func(*config.CompletedConfig) cloudprovider.Interface { return newCloud() }
	command := app.NewCloudControllerManagerCommand(settings, cloud, app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), flag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(command))
}

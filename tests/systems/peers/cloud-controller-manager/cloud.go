package main

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// Annotations of a Service say how the cloud answers a call about it: with this error, or, if there is none, well.
// An annotation of a Node says that its machine is gone.
const (
	ensureFails = "cloud.test/ensure"
	updateFails = "cloud.test/update"
	deleteFails = "cloud.test/delete"
	lookFails   = "cloud.test/look"
	isGone      = "cloud.test/gone"

	// The error that is none: the provider forgets to answer.
	forgets = "nil"

	// The address of every load balancer.
	address = "203.0.113.80"
)

// cloud is a provider without machines. It remembers which load balancers it has made.
type cloud struct {
	mutex sync.Mutex
	made  map[types.UID]bool
}

func newCloud() *cloud { return &cloud{made: map[types.UID]bool{}} }

func (c *cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return c, true }
func (c *cloud) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return c, true }
func (c *cloud) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (c *cloud) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (c *cloud) Routes() (cloudprovider.Routes, bool)                              { return nil, false }
func (c *cloud) ProviderName() string                                              { return "test" }
func (c *cloud) HasClusterID() bool                                                { return true }

func (c *cloud) InstanceExists(_ context.Context, node *v1.Node) (bool, error) {
	return node.Annotations[isGone] == "", nil
}

func (c *cloud) InstanceShutdown(context.Context, *v1.Node) (bool, error) { return false, nil }

func (c *cloud) InstanceMetadata(context.Context, *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	return nil, cloudprovider.NotImplemented
}

func (c *cloud) GetLoadBalancerName(_ context.Context, _ string, service *v1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(service)
}

func (c *cloud) GetLoadBalancer(_ context.Context, _ string, service *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	if err := failure(service, lookFails); err != nil {
		return nil, false, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return status(), c.made[service.UID], nil
}

func (c *cloud) EnsureLoadBalancer(_ context.Context, _ string, service *v1.Service, _ []*v1.Node) (*v1.LoadBalancerStatus, error) {
	err := failure(service, ensureFails)
	if err != nil && err.Error() == forgets {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.made[service.UID] = true
	return status(), nil
}

func (c *cloud) UpdateLoadBalancer(_ context.Context, _ string, service *v1.Service, _ []*v1.Node) error {
	return failure(service, updateFails)
}

func (c *cloud) EnsureLoadBalancerDeleted(_ context.Context, _ string, service *v1.Service) error {
	if err := failure(service, deleteFails); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.made, service.UID)
	return nil
}

func failure(service *v1.Service, call string) error {
	if said := service.Annotations[call]; said != "" {
		return errors.New(said)
	}
	return nil
}

func status() *v1.LoadBalancerStatus {
	return &v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: address}}}
}

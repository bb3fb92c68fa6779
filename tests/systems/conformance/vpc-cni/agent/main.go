// Stands in for the AWS VPC CNI's address daemon (aws-k8s-agent), without the APIs of EC2 and of Kubernetes: it learns
// the instance's cards from the instance metadata, has AWS's own code set up the host and the cards, and gives AWS's
// plug-in addresses of AWS's own store. scripts/vpc-cni.sh compiles it in AWS's module.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"
	"github.com/aws/amazon-vpc-cni-k8s/pkg/networkutils"
	"github.com/aws/amazon-vpc-cni-k8s/pkg/utils/logger"
	"github.com/aws/amazon-vpc-cni-k8s/rpc"
	"github.com/aws/amazon-vpc-cni-k8s/utils/imds"
)

const (
	// Where AWS's plug-in and its probe look.
	socket = "/var/run/aws-node/ipamd.sock"
	state  = "/var/run/aws-node/ipam.json"

	// The limit of the instance's type, by which tables are numbered.
	cardsMax = 15
)

var log = logger.Get()

// A card as the instance metadata describes it. The first of its addresses is its own, the others are for pods.
type card struct {
	hardware, id, subnet, subnetID string
	number                         int
	addresses                      []string
}

type node struct {
	rpc.UnimplementedCNIBackendServer
	network networkutils.NetworkAPIs
	store   *datastore.DataStore
	vpc     []string

	// The identifiers of the cards, and whose turn it is.
	turns sync.Mutex
	cards []string
	turn  int
}

func main() {
	node, err := setUp()
	if err == nil {
		err = serve(node)
	}
	log.Errorf("%v", err)
	os.Exit(1)
}

// setUp does what AWS's daemon does at its start, in its order.
func setUp() (*node, error) {
	primary, err := imds.GetMetaData("mac")
	if err != nil {
		return nil, err
	}
	vpc, err := words("network/interfaces/macs/" + primary + "/vpc-ipv4-cidr-blocks")
	if err != nil {
		return nil, err
	}
	own, err := imds.GetMetaData("local-ipv4")
	if err != nil {
		return nil, err
	}
	network, err := networkutils.New()
	if err != nil {
		return nil, err
	}
	address := net.ParseIP(own)
	if err := network.SetupHostNetwork(vpc, primary, &address, false, false); err != nil {
		return nil, err
	}
	store := datastore.InitializeDataStores([]bool{false}, state, false, log).GetDataStore(0)
	node := &node{network: network, store: store, vpc: vpc}
	if err := node.addCards(primary); err != nil {
		return nil, err
	}
	return node, store.ReadBackingStore(false)
}

func (n *node) addCards(primary string) error {
	hardware, err := words("network/interfaces/macs")
	if err != nil {
		return err
	}
	for _, address := range hardware {
		card, err := describe(strings.TrimSuffix(address, "/"))
		if err == nil {
			err = n.addCard(card, card.hardware == primary)
		}
		if err != nil {
			return fmt.Errorf("card %s: %w", address, err)
		}
	}
	return nil
}

func (n *node) addCard(card card, isPrimary bool) error {
	n.cards = append(n.cards, card.id)
	own := card.addresses[0]
	table, hasRule, err := n.network.GetRouteTableNumberForENI(0, own, card.number, cardsMax, false)
	if err != nil {
		return err
	}
	if err := n.store.AddENI(card.id, card.number, isPrimary, false, false, table, card.subnetID); err != nil {
		return err
	}
	if !isPrimary {
		err := n.network.SetupENINetwork(own, card.hardware, 0, card.subnet, cardsMax, false, table, hasRule)
		if err != nil {
			return err
		}
	}
	for _, address := range card.addresses[1:] {
		one := net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)}
		if err := n.store.AddIPv4CidrToStore(card.id, one, false); err != nil {
			return err
		}
	}
	return nil
}

func describe(hardware string) (card, error) {
	folder := "network/interfaces/macs/" + hardware + "/"
	texts := map[string][]string{}
	for _, name := range []string{
		"interface-id", "device-number", "subnet-id", "subnet-ipv4-cidr-block", "local-ipv4s",
	} {
		found, err := words(folder + name)
		if err != nil {
			return card{}, err
		}
		texts[name] = found
	}
	number, err := strconv.Atoi(texts["device-number"][0])
	return card{
		hardware:  hardware,
		id:        texts["interface-id"][0],
		subnet:    texts["subnet-ipv4-cidr-block"][0],
		subnetID:  texts["subnet-id"][0],
		number:    number,
		addresses: texts["local-ipv4s"],
	}, err
}

// words reads an entry of the instance metadata that is not empty.
func words(path string) ([]string, error) {
	text, err := imds.GetMetaData(path)
	if err != nil {
		return nil, err
	}
	found := strings.Fields(text)
	if len(found) == 0 {
		return nil, fmt.Errorf("%s is empty", path)
	}
	return found, nil
}

func serve(node *node) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	rpc.RegisterCNIBackendServer(server, node)
	healthpb.RegisterHealthServer(server, health.NewServer())
	return server.Serve(listener)
}

// assign gives a pod an address of the next card, or of any if that one has none. AWS's store alone takes the first
// card for most pods.
func (n *node) assign(key datastore.IPAMKey, pod datastore.IPAMMetadata) (string, int, int, error) {
	n.turns.Lock()
	defer n.turns.Unlock()
	n.turn = (n.turn + 1) % len(n.cards)
	for number, card := range n.cards {
		if err := n.store.SetENIExcludedForPodIPs(card, number != n.turn); err != nil {
			return "", 0, 0, err
		}
	}
	address, device, table, err := n.store.AssignPodIPv4Address(key, pod)
	if err == nil {
		return address, device, table, nil
	}
	for _, card := range n.cards {
		if err := n.store.SetENIExcludedForPodIPs(card, false); err != nil {
			return "", 0, 0, err
		}
	}
	return n.store.AssignPodIPv4Address(key, pod)
}

// AddNetwork gives a pod an address.
func (n *node) AddNetwork(_ context.Context, asked *rpc.AddNetworkRequest) (*rpc.AddNetworkReply, error) {
	key := datastore.IPAMKey{ContainerID: asked.ContainerID, IfName: asked.IfName, NetworkName: asked.NetworkName}
	pod := datastore.IPAMMetadata{
		K8SPodNamespace: asked.K8S_POD_NAMESPACE, K8SPodName: asked.K8S_POD_NAME, InterfacesCount: 1,
	}
	address, device, table, err := n.assign(key, pod)
	log.Infof("%s/%s: %s of card %d: %v", asked.K8S_POD_NAMESPACE, asked.K8S_POD_NAME, address, device, err)
	if err != nil {
		return &rpc.AddNetworkReply{}, nil
	}
	return &rpc.AddNetworkReply{
		Success:              true,
		IPAllocationMetadata: allocated(address, device, table),
		UseExternalSNAT:      n.network.UseExternalSNAT(),
		VPCv4CIDRs:           slices.Concat(n.vpc, n.network.GetExcludeSNATCIDRs()),
	}, nil
}

// DelNetwork takes a pod's address back. AWS's plug-in knows the error for an unknown pod.
func (n *node) DelNetwork(_ context.Context, asked *rpc.DelNetworkRequest) (*rpc.DelNetworkReply, error) {
	key := datastore.IPAMKey{ContainerID: asked.ContainerID, IfName: asked.IfName, NetworkName: asked.NetworkName}
	_, address, device, _, table, err := n.store.UnassignPodIPAddress(key)
	if err != nil {
		return nil, err
	}
	return &rpc.DelNetworkReply{Success: true, IPAllocationMetadata: allocated(address, device, table)}, nil
}

func allocated(address string, device, table int) []*rpc.IPAllocationMetadata {
	one := &rpc.IPAllocationMetadata{IPv4Addr: address, DeviceNumber: int32(device), RouteTableId: int32(table)}
	return []*rpc.IPAllocationMetadata{one}
}

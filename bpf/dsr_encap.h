/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DSR: the encapsulation of a client's packets to the backend's node.
 *
 * Owns: the outer header (IPIP, or IPv6 in IPv6), the route to the other node, the MTU, and `encap_mtus`. Reads: the
 * FIB, `devices`, `flow_table`. Writes: the packet, and the scratch map.
 *
 * A client's packet goes unchanged behind one more IP header, from this node to the backend. The backend's node shows
 * the backend the client's own address, and the reply goes from there to the client. The outer header names the
 * selected backend: its destination is the address. The port stands in the IP id, or in the last 16 bits of the IPv6
 * flow label. Nothing else needs these fields, because the packet is never fragmented.
 */
#ifndef HOLDFAST_DSR_ENCAP_H
#define HOLDFAST_DSR_ENCAP_H

#include "conntrack.h"
#include "dsr.h"
#include "fib.h"
#include "flow_state.h"
#include "frag.h"
#include "nat.h"
#include "open_flow.h"
#include "packet.h"
#include "reject.h"

/*
 * --- Trailers: bytes of a frame behind its packet, such as a switch's trailer, or the FCS where a card leaves it
 * there. The IP header says where a packet ends; the length of the frame does not. ---
 */

/*
 * Cuts off a trailer. Packets that the kernel has merged have none. A padded frame of minimum size stays as it is: most
 * acknowledgements are such frames, and cutting one costs more than the rest of its handling.
 */
GLOBAL int cut_trailer(struct __sk_buff *skb, __u32 at)
{
	__u8 ip[IP_LENGTH_END];
	__u32 length;

	if (skb->gso_size || skb->len <= ETH_ZLEN || bpf_skb_load_bytes(skb, at, ip, sizeof(ip)))
		return 0;
	length = ip_packet_length(ip);
	return length && skb->len > at + length ? bpf_skb_change_tail(skb, at + length, 0) : 0;
}

/* The kernel's protocol numbers. */
enum { ENCAP_IPV4 = 4, ENCAP_IPV6 = 41 };

/* The TTL of the outer header. */
#define ENCAP_TTL 64
#define DONT_FRAGMENT 0x4000

INLINE __u32 encap_header_size(bool v4)
{
	return v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* --- The route to the other node. --- */

/*
 * Looks the route to the backend up, for a packet of that length: the route by which the stack would send the client's
 * packet. Returns the kernel's result.
 */
INLINE int query_node_route(struct __sk_buff *skb, __u32 length, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct bpf_fib_lookup route = { .tot_len = length };
	const struct tuple *translated;
	int status;

	if (!has_dsr_from || !scratch || length > 0xffff)
		return BPF_FIB_LKUP_RET_UNREACHABLE;
	translated = &scratch->translated;
	status = query_fib(skb, &route, translated->source.address, translated->destination.address,
			   translated->source.port, translated->destination.port, translated->transport, v4);
	scratch->mtu = route.mtu_result;
	scratch->egress_device = route.ifindex;
	scratch->next_family = route.family;
	copy_address(scratch->next, route.ipv6_dst);
	return status;
}

GLOBAL int query_node_route4(struct __sk_buff *skb, __u32 length)
{
	return query_node_route(skb, length, true);
}

GLOBAL int query_node_route6(struct __sk_buff *skb, __u32 length)
{
	return query_node_route(skb, length, false);
}

INLINE int lookup_node_route(struct __sk_buff *skb, __u32 length, bool v4)
{
	return v4 ? query_node_route4(skb, length) : query_node_route6(skb, length);
}

/* The kernel resolves the neighbour when it sends the packet. */
INLINE bool is_route(int status)
{
	return status == BPF_FIB_LKUP_RET_SUCCESS || status == BPF_FIB_LKUP_RET_NO_NEIGH;
}

/* Each IPv6 link carries packets of this length, and no sender makes shorter ones when it is told a smaller MTU. */
#define IPV6_MIN_MTU 1280
/* IPv4 links carry packets of this length. A report of less would cut all packets to pieces. */
#define IPV4_MIN_MTU 576

/*
 * --- The MTU that a router between the nodes reports: see encap_error.h. ---
 *
 * The kernel keeps no path MTU for encapsulated packets, because no socket and no tunnel of it has sent them. A host
 * that forges such reports makes packets to backends shorter, for as long as it could in the kernel.
 */

/* Backends behind a path that is narrower than its first link. The kernel evicts the least recently used entry. */
#define ENCAP_MTUS 4096
/* The seconds until a report counts no more. The kernel uses the same. */
#define ENCAP_MTU_LIFE 600
/* No router has reported an MTU. */
#define NO_MTU (~0U)

struct encap_mtu {
	__u32 mtu;
	/* The second of the report. */
	__u32 second;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ENCAP_MTUS);
	__type(key, struct in6);
	__type(value, struct encap_mtu);
} encap_mtus SEC(".maps");

/* Whether a router has ever reported an MTU. Otherwise no packet needs a look-up. */
__u32 has_encap_mtu;

/* Returns the MTU that counts. */
INLINE __u32 save_encap_mtu(const __u32 *backend, __u32 mtu, bool v4)
{
	__u32 min = v4 ? IPV4_MIN_MTU : IPV6_MIN_MTU;
	struct encap_mtu value = { .mtu = mtu < min ? min : mtu, .second = seconds() };
	struct in6 key;

	copy_address(key.address, backend);
	bpf_map_update_elem(&encap_mtus, &key, &value, BPF_ANY);
	*(volatile __u32 *)&has_encap_mtu = 1;
	return value.mtu;
}

/* The MTU of the path to the backend, as far as a router has reported it lately, or NO_MTU. */
INLINE __u32 find_encap_mtu(const __u32 *backend)
{
	const struct encap_mtu *value;
	struct in6 key;

	if (LIKELY(!READ_ONCE(has_encap_mtu)))
		return NO_MTU;
	copy_address(key.address, backend);
	value = bpf_map_lookup_elem(&encap_mtus, &key);
	return value && seconds() - value->second < ENCAP_MTU_LIFE ? value->mtu : NO_MTU;
}

/* Turns encapsulation off for a client if the route has no room for the outer header. */
GLOBAL int check_encap_mtu6(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct bpf_fib_lookup route = { .tot_len = IPV6_MIN_MTU + sizeof(struct ipv6hdr) };
	const struct tuple *tuple;

	if (!scratch || !scratch->may_encap)
		return 0;
	tuple = &scratch->packet.tuple;
	if (query_fib(skb, &route, tuple->source.address, scratch->backend.address, tuple->source.port,
		      scratch->backend.port, tuple->transport, false) == BPF_FIB_LKUP_RET_FRAG_NEEDED ||
	    find_encap_mtu(scratch->backend.address) < IPV6_MIN_MTU + sizeof(struct ipv6hdr))
		scratch->may_encap = false;
	return 0;
}

/*
 * How the packet fits: as it is; if the kernel cuts it into smaller segments; not at all, so the sender is told; or
 * there is no route.
 */
enum encap_fit { FITS, FITS_RESEGMENTED, TOO_BIG, NO_ROUTE };

/* Whether the kernel will cut the packet into TCP segments, so it may cut smaller ones. */
INLINE bool is_gso_tcp(const struct __sk_buff *skb, const struct packet *packet)
{
	return skb->gso_size && packet->tuple.transport == IPPROTO_TCP;
}

INLINE enum encap_fit check_fit(struct __sk_buff *skb, __u32 length, bool v4)
{
	const struct scratch *scratch = get_scratch();
	__u32 with_header = length + encap_header_size(v4), mtu;
	int status;

	if (!has_dsr_from || !scratch || length > 0xffff)
		return NO_ROUTE;
	mtu = find_encap_mtu(scratch->translated.destination.address);
	status = lookup_node_route(skb, with_header, v4);
	if (LIKELY(is_route(status) && with_header <= mtu))
		return FITS;
	if (!is_route(status))
		status = lookup_node_route(skb, length, v4);
	if (is_route(status) && length <= mtu && is_gso_tcp(skb, &scratch->packet))
		return FITS_RESEGMENTED;
	return is_route(status) || status == BPF_FIB_LKUP_RET_FRAG_NEEDED ? TOO_BIG : NO_ROUTE;
}

GLOBAL int check_fit4(struct __sk_buff *skb, __u32 length)
{
	return check_fit(skb, length, true);
}

GLOBAL int check_fit6(struct __sk_buff *skb, __u32 length)
{
	return check_fit(skb, length, false);
}

/* --- The outer header. --- */

/* Whether the device leads to the backend on another node. */
INLINE bool reaches_backend(const struct device *device, const struct scratch *scratch, bool v4)
{
	return device && leads_outside(device) && !is_local_pod(device, scratch->translated.destination.address, v4);
}

/* Sets the outer source address: this node's at the egress device. `false`: the packet does not leave by the device. */
INLINE bool set_encap_source(const struct scratch *scratch, struct endpoint *from, bool v4)
{
	__u32 number = scratch->egress_device;
	const struct device *device = bpf_map_lookup_elem(&devices, &number);

	if (!reaches_backend(device, scratch, v4))
		return false;
	if (v4)
		endpoint4(from, device->address4, 0);
	else
		set_endpoint(from, device->address6, 0);
	return is_dsr_node(from->address, v4);
}

/*
 * The outer header copies the DSCP, but not the ECN bits: the packet would lose a congestion mark with its outer
 * header. So a congested router drops the packet.
 */
INLINE bool write_encap4(struct __sk_buff *skb, const struct endpoint *from, const struct endpoint *to)
{
	const struct iphdr *inner = get_header(skb, link_header + sizeof(*inner), sizeof(*inner));
	struct iphdr ip = { .version = 4, .ihl = 5, .ttl = ENCAP_TTL, .protocol = ENCAP_IPV4 };

	if (!inner)
		return false;
	ip.tos = inner->tos & 0xfc;
	ip.tot_len = bpf_htons(bpf_ntohs(inner->tot_len) + sizeof(ip));
	ip.id = to->port;
	ip.frag_off = bpf_htons(DONT_FRAGMENT);
	ip.saddr = from->address[3];
	ip.daddr = to->address[3];
	ip.check = ~csum_fold16(csum_add(&ip, sizeof(ip), 0));
	return !bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Four bits of the flow label that the port does not use. They differ between clients, so that ECMP by the label
 * spreads the packets between a node and a backend.
 */
INLINE __u32 label_entropy(const struct endpoint *client)
{
	const __u32 *address = client->address;
	__u32 mixed = address[0] ^ address[1] ^ address[2] ^ address[3] ^ (__u32)client->port << 16;

	return mixed * 0x9e3779b1 >> 28 << 16;
}

INLINE bool write_encap6(struct __sk_buff *skb, const struct endpoint *from, const struct endpoint *to,
			 const struct endpoint *client)
{
	const struct ipv6hdr *inner = get_header(skb, link_header + sizeof(*inner), sizeof(*inner));
	struct ipv6hdr ip = { .nexthdr = ENCAP_IPV6, .hop_limit = ENCAP_TTL };

	if (!inner)
		return false;
	*(__u32 *)&ip = (*(const __u32 *)inner & bpf_htonl(0xffc00000)) |
			bpf_htonl(label_entropy(client) | bpf_ntohs(to->port));
	ip.payload_len = bpf_htons(bpf_ntohs(inner->payload_len) + sizeof(ip));
	copy_address(ip.saddr.in6_u.u6_addr32, from->address);
	copy_address(ip.daddr.in6_u.u6_addr32, to->address);
	return !bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

INLINE bool push_encap(struct __sk_buff *skb, const struct scratch *scratch, const struct endpoint *from, bool is_cut,
		       bool v4)
{
	const struct tuple *translated = &scratch->translated;
	__u64 how = v4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;

	if (!is_cut)
		how |= BPF_F_ADJ_ROOM_FIXED_GSO;
	if (bpf_skb_adjust_room(skb, encap_header_size(v4), BPF_ADJ_ROOM_MAC, how))
		return false;
	return v4 ? write_encap4(skb, from, &translated->destination) :
		    write_encap6(skb, from, &translated->destination, &translated->source);
}

/* --- One packet. --- */

/* Leaves a packet without a flow to the stack, unchanged. */
INLINE int pass_stateless(void)
{
	count_packet(COUNT_MIDSTREAM);
	return TC_ACT_UNSPEC;
}

/* Sets the tuple between the client and the backend of the packet's flow. `false`: the flow is gone. */
INLINE bool set_translated_tuple(struct scratch *scratch)
{
	const struct flow *flow = get_flow(scratch->number);

	if (!flow)
		return false;
	set_endpoint(&scratch->translated.source, flow->client, flow->client_port);
	set_endpoint(&scratch->translated.destination, flow->backend, flow->backend_port);
	scratch->translated.transport = flow->transport;
	return true;
}

/*
 * Drops a packet whose route leads to no other node. Its flow ends, and the client's next datagram or SYN opens one by
 * the new route. An established connection ends if the backend has moved to this node, which does not know the
 * connection. It waits if only the device has lost its node address. A packet without a flow goes on unchanged.
 */
INLINE enum step drop_unroutable(struct scratch *scratch, bool v4)
{
	const struct flow *flow = get_flow(scratch->number);
	__u32 egress_device = scratch->egress_device;

	if (has_no_flow(scratch))
		return finish(pass_stateless());
	count_packet(COUNT_NO_ROUTE);
	if (!flow || (flow->transport == IPPROTO_TCP && !is_syn(flow, &scratch->packet) &&
		      reaches_backend(bpf_map_lookup_elem(&devices, &egress_device), scratch, v4)))
		return STEP_DROP;
	scratch->victim = scratch->number;
	scratch->victim_serial = READ_ONCE(flow->serial);
	return DROP_AND_END_FLOW;
}

/*
 * Writes the outer header, and redirects the packet. The stack does not see it: the stack takes no packet from outside
 * with a source address of this node.
 */
INLINE enum step send_encap(struct __sk_buff *skb, __u32 is_cut, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct bpf_redir_neigh next = {};
	struct endpoint from;

	if (!scratch)
		return STEP_DROP;
	if (!set_encap_source(scratch, &from, v4))
		return drop_unroutable(scratch, v4);
	if (!push_encap(skb, scratch, &from, is_cut, v4)) {
		count_packet(COUNT_UNWRITABLE);
		return STEP_DROP;
	}
	count_packet(COUNT_ENCAP);
	next.nh_family = scratch->next_family;
	copy_address(next.ipv6_nh, scratch->next);
	return finish(bpf_redirect_neigh(scratch->egress_device, &next, sizeof(next), 0));
}

GLOBAL int send_encap4(struct __sk_buff *skb, __u32 is_cut)
{
	return send_encap(skb, is_cut, true);
}

GLOBAL int send_encap6(struct __sk_buff *skb, __u32 is_cut)
{
	return send_encap(skb, is_cut, false);
}

/*
 * The length of the packet on the wire, or TOO_LONG. It cuts off a trailer first, as the stack does with each packet
 * that it takes.
 */
INLINE __u32 ingress_length(struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	const __u8 *ip;

	cut_trailer(skb, packet->ip);
	ip = get_header(skb, packet->ip, sizeof(struct iphdr));
	return ip ? wire_length(skb, packet, ip_packet_length(ip)) : TOO_LONG;
}

/* MTUs that networks commonly have, the greatest first. */
static const __u32 common_mtus[] = { 9001, 9000, 8900, 1500, 1492, 1460, 1450, 1400 };

/*
 * The MTU of the path, after a packet of that length did not fit: that of the route, or a smaller one that a router has
 * reported. Kernels before 5.12 return the length of the query, so this queries the common MTUs.
 */
INLINE __u32 path_mtu(struct __sk_buff *skb, __u32 length, bool v4)
{
	const struct scratch *scratch = get_scratch();
	__u32 mtu, reported;

	if (!has_dsr_from || !scratch)
		return IPV6_MIN_MTU;
	reported = find_encap_mtu(scratch->translated.destination.address);
	mtu = scratch->mtu;
	if (UNLIKELY(mtu == length)) {
		mtu = is_route(lookup_node_route(skb, length, v4)) ? length : IPV6_MIN_MTU;
		for (int at = sizeof(common_mtus) / sizeof(*common_mtus) - 1; at >= 0; at--) {
			if (common_mtus[at] > mtu && is_route(lookup_node_route(skb, common_mtus[at], v4)))
				mtu = common_mtus[at];
		}
	}
	return mtu < reported ? mtu : reported;
}

GLOBAL int path_mtu4(struct __sk_buff *skb, __u32 length)
{
	return path_mtu(skb, length, true);
}

GLOBAL int path_mtu6(struct __sk_buff *skb, __u32 length)
{
	return path_mtu(skb, length, false);
}

/*
 * --- An IPv4 packet that a router may fragment, and that does not fit. ---
 *
 * A program sends one packet. So the packet arrives here once more, with a mark that says how much is sent already, and
 * the program takes that off it.
 */

/* The mark of such a packet. The lower bits count the units of eight bytes that are sent already. */
#define MARK_SPLIT 0x8000

INLINE bool store_ip4(struct __sk_buff *skb, struct iphdr *ip, __u32 length)
{
	ip->tot_len = bpf_htons(length);
	ip->check = 0;
	ip->check = ~csum_fold16(csum_add(ip, sizeof(*ip), 0));
	return !bpf_skb_store_bytes(skb, link_header, ip, sizeof(*ip), BPF_F_RECOMPUTE_CSUM);
}

/*
 * A packet whose checksum the card still has to finish, of all of its bytes, stays whole. So does an ICMP error: its
 * second part would not be known as one.
 */
INLINE bool may_split(struct __sk_buff *skb, const struct packet *packet, const struct iphdr *ip)
{
	return is_transport(packet->tuple.transport) && *(const __u8 *)ip == 0x45 &&
	       !(ip->frag_off & bpf_htons(DONT_FRAGMENT)) && !skb->gso_size &&
	       csum_fold16(csum_add(ip, sizeof(*ip), 0)) == 0xffff &&
	       (packet->part != WHOLE || !is_csum_pending(skb, csum_offset(packet)));
}

/* Cuts the packet down to what fits into the MTU with its outer header. Returns its length, or 0: it stays whole. */
GLOBAL int split_packet4(struct __sk_buff *skb, __u32 mtu)
{
	const struct scratch *scratch = get_scratch();
	__u32 units = (mtu - 2 * sizeof(struct iphdr)) / 8;
	__u32 length = sizeof(struct iphdr) + 8 * units;
	struct iphdr ip;

	if (!has_dsr_from || !scratch || mtu < IPV4_MIN_MTU || units >= MARK_SPLIT ||
	    bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)) || bpf_ntohs(ip.tot_len) <= length ||
	    !may_split(skb, &scratch->packet, &ip))
		return 0;
	if (scratch->packet.part != LATER_FRAGMENT)
		save_fragment(&scratch->packet, ENTRY_WIRE);
	skb->tc_index = MARK_SPLIT | units;
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		length = 0;
	skb->tc_index = 0;
	ip.frag_off |= bpf_htons(MORE_FRAGMENTS);
	return length && !bpf_skb_change_tail(skb, link_header + length, 0) && store_ip4(skb, &ip, length) ? length : 0;
}

/* Takes what is sent already off a packet with MARK_SPLIT. `false`: nothing would be left. */
GLOBAL int take_rest(struct __sk_buff *skb)
{
	__u32 units = skb->tc_index & (MARK_SPLIT - 1), length;
	struct iphdr ip;

	skb->tc_index = 0;
	if (!has_dsr_from || bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)) || *(const __u8 *)&ip != 0x45)
		return false;
	length = bpf_ntohs(ip.tot_len) - 8 * units;
	ip.frag_off = bpf_htons(bpf_ntohs(ip.frag_off) + units);
	return units && length - sizeof(ip) - 1 < 0xffff &&
	       !bpf_skb_adjust_room(skb, -(__s32)(8 * units), BPF_ADJ_ROOM_NET, 0) && store_ip4(skb, &ip, length);
}

/*
 * What becomes of a packet that cannot be encapsulated. It reports the MTU to the sender, unless the packet is an ICMP
 * error. A packet without a flow goes on unchanged.
 */
INLINE int handle_unfit(struct __sk_buff *skb, const struct scratch *scratch, enum encap_fit fits, __u32 mtu, bool v4)
{
	if (has_no_flow(scratch))
		return pass_stateless();
	if (fits == TOO_BIG && !is_icmp(&scratch->packet, v4))
		return v4 ? report_too_big4(skb, mtu - encap_header_size(v4)) :
			    report_too_big6(skb, mtu - encap_header_size(v4));
	count_packet(COUNT_NO_ROUTE);
	return TC_ACT_SHOT;
}

/* Sends a packet encapsulated to the node of its backend. */
INLINE enum step encap(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	__u32 length, split, mtu = 0;
	enum encap_fit fits;

	if (!scratch || (!has_no_flow(scratch) && !set_translated_tuple(scratch)))
		return STEP_DROP;
	length = ingress_length(skb, &scratch->packet, v4);
	fits = v4 ? check_fit4(skb, length) : check_fit6(skb, length);
	if (UNLIKELY(fits == TOO_BIG)) {
		mtu = v4 ? path_mtu4(skb, length) : path_mtu6(skb, length);
		split = v4 && !has_no_flow(scratch) ? split_packet4(skb, mtu) : 0;
		if (split)
			fits = check_fit4(skb, split);
	}
	if (fits == TOO_BIG || fits == NO_ROUTE)
		return finish(handle_unfit(skb, scratch, fits, mtu, v4));
	return v4 ? send_encap4(skb, fits == FITS_RESEGMENTED) : send_encap6(skb, fits == FITS_RESEGMENTED);
}

/* Whether the flow was encapsulated, and this node does not encapsulate any more. */
INLINE bool is_encap_disabled(const struct __sk_buff *skb, const struct flow *flow)
{
	return UNLIKELY(is_encapsulated(flow)) && (!has_dsr_from || uses_ipsec(skb));
}

#endif

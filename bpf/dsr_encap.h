/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a client says goes to the backend's node as it came, behind one more header of IP (protocol 4, or 41 for IPv6):
 * from this node to the backend. That node shows the backend the client's own address, and the answer goes from there
 * to the client.
 *
 * The other header says which backend was chosen: the address is its destination, and the port is its number of the
 * datagram or the last 16 bits of its label, which nothing else needs, because it is never in fragments.
 */
#ifndef HOLDFAST_DSR_ENCAP_H
#define HOLDFAST_DSR_ENCAP_H

#include "conntrack.h"
#include "dsr.h"
#include "fib.h"
#include "flow_state.h"
#include "nat.h"
#include "open_flow.h"
#include "packet.h"
#include "reject.h"

/*
 * Bytes that a frame has behind its packet: trailers of switches, or the sum of the frame where a network card leaves
 * it there. The header of IP says where a packet ends. The length of the frame says nothing of it.
 */

/*
 * Cuts off what the frame has behind the packet whose IP header begins at that place. What the kernel has put
 * together has no such bytes. A frame that was filled up to the least that Ethernet has stays as it is: most
 * acknowledgements are such frames, and to cut costs more than all else that is done with one.
 */
ALONE int cut_trailer(struct __sk_buff *skb, __u32 at)
{
	__u8 ip[LENGTH_END];
	__u32 length;

	if (skb->gso_size || skb->len <= ETH_ZLEN || bpf_skb_load_bytes(skb, at, ip, sizeof(ip)))
		return 0;
	length = length_of_packet(ip);
	return length && skb->len > at + length ? bpf_skb_change_tail(skb, at + length, 0) : 0;
}

/* From the kernel's list of protocols. */
enum { IN_IPV4 = 4, IN_IPV6 = 41 };

/* The number of hops that the other header begins with. */
#define WRAPPED_TTL 64
#define DONT_FRAGMENT 0x4000

INLINE __u32 size_of_wrapper(bool v4)
{
	return v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* --- The way to the other node. --- */

/*
 * Asks by which way the backend is reached, for a packet of that length. It is the way that the stack would send the
 * client's packet. Returns what the kernel says.
 */
INLINE int ask_for_node(struct __sk_buff *skb, __u32 length, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct bpf_fib_lookup route = { .tot_len = length };
	const struct tuple *between;
	int found;

	if (!arrival || length > 0xffff)
		return BPF_FIB_LKUP_RET_UNREACHABLE;
	between = &arrival->between;
	found = ask_way_out(skb, &route, between->source.address, between->destination.address, between->source.port,
			    between->destination.port, between->transport, v4);
	arrival->longest = route.mtu_result;
	arrival->way = route.ifindex;
	arrival->next_family = route.family;
	copy_address(arrival->next, route.ipv6_dst);
	return found;
}

ALONE int ask_for_node4(struct __sk_buff *skb, __u32 length)
{
	return ask_for_node(skb, length, true);
}

ALONE int ask_for_node6(struct __sk_buff *skb, __u32 length)
{
	return ask_for_node(skb, length, false);
}

INLINE int ask_way_to_node(struct __sk_buff *skb, __u32 length, bool v4)
{
	return v4 ? ask_for_node4(skb, length) : ask_for_node6(skb, length);
}

/* The kernel finds the neighbour when the packet is sent. */
INLINE bool is_way(int found)
{
	return found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH;
}

/* Each way of IPv6 takes packets so long, and no sender makes shorter ones where it is told to. */
#define SHORTEST_LENGTH 1280

/* Lets a client's packets go as they came only where the way has room for one more header before such a packet. */
ALONE int look_for_room6(struct __sk_buff *skb)
{
	struct arrival *arrival = the_arrival();
	struct bpf_fib_lookup route = { .tot_len = SHORTEST_LENGTH + sizeof(struct ipv6hdr) };
	const struct tuple *tuple;

	if (!arrival || !arrival->may_wrap)
		return NEXT;
	tuple = &arrival->packet.tuple;
	if (ask_way_out(skb, &route, tuple->source.address, arrival->backend.address, tuple->source.port,
			arrival->backend.port, tuple->transport, false) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		arrival->may_wrap = false;
	return NEXT;
}

/* How the packet fits on its way: as it is; in segments that are cut again; not at all, which its sender is told. */
enum fits { FITS, FITS_IN_SMALLER, FITS_NOT, HAS_NO_WAY };

/* Whether the kernel cuts the packet into segments of TCP, so that it may cut it into smaller ones. */
INLINE bool is_to_be_cut(const struct __sk_buff *skb, const struct packet *packet)
{
	return skb->gso_size && packet->tuple.transport == IPPROTO_TCP;
}

INLINE enum fits fit(struct __sk_buff *skb, const struct arrival *arrival, __u32 length, bool v4)
{
	int found;

	if (LIKELY(is_way(ask_way_to_node(skb, length + size_of_wrapper(v4), v4))))
		return FITS;
	found = ask_way_to_node(skb, length, v4);
	if (is_way(found))
		return is_to_be_cut(skb, &arrival->packet) ? FITS_IN_SMALLER : FITS_NOT;
	return found == BPF_FIB_LKUP_RET_FRAG_NEEDED ? FITS_NOT : HAS_NO_WAY;
}

/* --- The other header. --- */

/* Whether the backend is reached by that device on another node. */
INLINE bool leads_there(const struct device *device, const struct arrival *arrival, bool v4)
{
	return device && leads_to_others(device) && !is_near(device, arrival->between.destination.address, v4);
}

/* From which address of this node the packet goes. `false`: it does not go by that device. */
INLINE bool set_sender(const struct arrival *arrival, struct place *from, bool v4)
{
	__u32 number = arrival->way;
	const struct device *device = bpf_map_lookup_elem(&devices, &number);

	if (!leads_there(device, arrival, v4))
		return false;
	if (v4)
		place4(from, device->address4, 0);
	else
		set_place(from, device->address6, 0);
	return is_of_nodes(from->address, v4);
}

/*
 * The type of service is the packet's own, but for congestion: a router that has to tell of that drops the packet, or
 * the packet would lose the mark with its other header.
 */
INLINE bool write_wrapper4(struct __sk_buff *skb, const struct place *from, const struct place *to)
{
	const struct iphdr *inner = header(skb, link_header + sizeof(*inner), sizeof(*inner));
	struct iphdr ip = { .version = 4, .ihl = 5, .ttl = WRAPPED_TTL, .protocol = IN_IPV4 };

	if (!inner)
		return false;
	ip.tos = inner->tos & 0xfc;
	ip.tot_len = bpf_htons(bpf_ntohs(inner->tot_len) + sizeof(ip));
	ip.id = to->port;
	ip.frag_off = bpf_htons(DONT_FRAGMENT);
	ip.saddr = from->address[3];
	ip.daddr = to->address[3];
	ip.check = ~fold16(sum_of(&ip, sizeof(ip), 0));
	return !bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

/*
 * The bits of the label that do not say the port: four, which differ between clients. So routers and links that share
 * packets out by the label do not send all of a node to one backend the same way.
 */
INLINE __u32 spread_clients(const struct place *client)
{
	const __u32 *address = client->address;
	__u32 mixed = address[0] ^ address[1] ^ address[2] ^ address[3] ^ (__u32)client->port << 16;

	return mixed * 0x9e3779b1 >> 28 << 16;
}

INLINE bool write_wrapper6(struct __sk_buff *skb, const struct place *from, const struct place *to,
			   const struct place *client)
{
	const struct ipv6hdr *inner = header(skb, link_header + sizeof(*inner), sizeof(*inner));
	struct ipv6hdr ip = { .nexthdr = IN_IPV6, .hop_limit = WRAPPED_TTL };

	if (!inner)
		return false;
	*(__u32 *)&ip = (*(const __u32 *)inner & bpf_htonl(0xffc00000)) |
			  bpf_htonl(spread_clients(client) | bpf_ntohs(to->port));
	ip.payload_len = bpf_htons(bpf_ntohs(inner->payload_len) + sizeof(ip));
	copy_address(ip.saddr.in6_u.u6_addr32, from->address);
	copy_address(ip.daddr.in6_u.u6_addr32, to->address);
	return !bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

INLINE bool put_wrapper(struct __sk_buff *skb, const struct arrival *arrival, const struct place *from, bool is_cut,
			bool v4)
{
	const struct tuple *between = &arrival->between;
	__u64 how = v4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;

	if (!is_cut)
		how |= BPF_F_ADJ_ROOM_FIXED_GSO;
	if (bpf_skb_adjust_room(skb, size_of_wrapper(v4), BPF_ADJ_ROOM_MAC, how))
		return false;
	return v4 ? write_wrapper4(skb, from, &between->destination) :
		    write_wrapper6(skb, from, &between->destination, &between->source);
}

/* --- One packet. --- */

/* Leaves a packet without a flow to the stack, as it came. */
INLINE int leave_stateless(void)
{
	count_packet(COUNT_MIDWAY);
	return NEXT;
}

/* Notes the client and the backend of the packet's flow. `false`: there is no such flow any more. */
INLINE bool note_ends_of_flow(struct arrival *arrival)
{
	const struct flow *flow = flow_at(arrival->number);

	if (!flow)
		return false;
	set_place(&arrival->between.source, flow->client, flow->client_port);
	set_place(&arrival->between.destination, flow->backend, flow->backend_port);
	arrival->between.transport = flow->transport;
	return true;
}

/*
 * Drops a packet whose way leads to no other node. The packet's flow ends, and the client begins anew by the way of
 * then: with its next datagram, or when it asks for a connection. A connection that is agreed ends where the backend
 * has come to this node, which knows nothing of it; where only the device has no address of a node, the connection
 * waits for one. A packet without a flow goes on as it is.
 */
INLINE int lose_way(struct arrival *arrival, bool v4)
{
	const struct flow *flow = flow_at(arrival->number);
	__u32 way = arrival->way;

	if (is_stateless(arrival))
		return leave_stateless();
	count_packet(COUNT_NO_WAY);
	if (!flow || (flow->transport == IPPROTO_TCP && !is_syn(flow, &arrival->packet) &&
		      leads_there(bpf_map_lookup_elem(&devices, &way), arrival, v4)))
		return SHOT;
	arrival->rival = arrival->number;
	arrival->rival_serial = READ_ONCE(flow->serial);
	return IS_FOREIGN;
}

/*
 * Writes the other header, and sends the packet to the other node. It does not pass this node's own stack, which takes
 * no packet from outside that bears an address of this node.
 */
INLINE int send_wrapped(struct __sk_buff *skb, __u32 is_cut, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct bpf_redir_neigh next = {};
	struct place from;

	if (!arrival)
		return SHOT;
	if (!set_sender(arrival, &from, v4))
		return lose_way(arrival, v4);
	if (!put_wrapper(skb, arrival, &from, is_cut, v4)) {
		count_packet(COUNT_UNWRITABLE);
		return SHOT;
	}
	count_packet(COUNT_WRAPPED);
	next.nh_family = arrival->next_family;
	copy_address(next.ipv6_nh, arrival->next);
	return bpf_redirect_neigh(arrival->way, &next, sizeof(next), 0);
}

ALONE int send_wrapped4(struct __sk_buff *skb, __u32 is_cut)
{
	return send_wrapped(skb, is_cut, true);
}

ALONE int send_wrapped6(struct __sk_buff *skb, __u32 is_cut)
{
	return send_wrapped(skb, is_cut, false);
}

/*
 * The length that the packet has in the network, as TOO_LONG says too. What the frame has behind the packet is cut off
 * first, as the stack does it with each packet that it takes.
 */
INLINE __u32 length_of_arrived(struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	const __u8 *ip;

	cut_trailer(skb, packet->ip);
	ip = header(skb, packet->ip, sizeof(struct iphdr));
	return ip ? length_in_network(skb, packet, length_of_packet(ip)) : TOO_LONG;
}

/* Lengths that networks take, the longest first, and what each takes that has IPv6. */
static const __u32 usual_lengths[] = { 9001, 9000, 8900, 1500, 1492, 1460, 1450, 1400 };

/*
 * How long a packet may be on its way, of which one of that length was too long with the other header. Kernels before
 * 5.12 give the length back for which they are asked: they are asked for the usual ones.
 */
INLINE __u32 longest_of_way(struct __sk_buff *skb, const struct arrival *arrival, __u32 length, bool v4)
{
	__u32 least;

	if (LIKELY(arrival->longest != length))
		return arrival->longest;
	least = is_way(ask_way_to_node(skb, length, v4)) ? length : SHORTEST_LENGTH;
#pragma unroll
	for (int at = 0; at < sizeof(usual_lengths) / sizeof(*usual_lengths); at++) {
		if (usual_lengths[at] > least && is_way(ask_way_to_node(skb, usual_lengths[at], v4)))
			return usual_lengths[at];
	}
	return least;
}

INLINE int tell_longest(struct __sk_buff *skb, const struct arrival *arrival, __u32 length, bool v4)
{
	__u32 longest = longest_of_way(skb, arrival, length, v4) - size_of_wrapper(v4);

	return v4 ? tell_too_long4(skb, longest) : tell_too_long6(skb, longest);
}

/*
 * What becomes of a packet that does not go to the other node. Its sender is told that it is too long, unless it is an
 * error, about which no error is sent. A packet without a flow goes on as it is.
 */
INLINE int stay_here(struct __sk_buff *skb, const struct arrival *arrival, enum fits fits, __u32 length, bool v4)
{
	if (is_stateless(arrival))
		return leave_stateless();
	if (fits == FITS_NOT && !is_icmp(&arrival->packet, v4))
		return tell_longest(skb, arrival, length, v4);
	count_packet(COUNT_NO_WAY);
	return SHOT;
}

/* Sends a packet to the node of its backend as it came. IS_FOREIGN: the packet's flow is to end. */
INLINE int wrap(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();
	enum fits fits = HAS_NO_WAY;
	__u32 length;

	if (!arrival || (!is_stateless(arrival) && !note_ends_of_flow(arrival)))
		return SHOT;
	length = length_of_arrived(skb, &arrival->packet, v4);
	if (length <= 0xffff)
		fits = fit(skb, arrival, length, v4);
	if (fits == FITS_NOT || fits == HAS_NO_WAY)
		return stay_here(skb, arrival, fits, length, v4);
	return v4 ? send_wrapped4(skb, fits == FITS_IN_SMALLER) : send_wrapped6(skb, fits == FITS_IN_SMALLER);
}

/* Whether the flow's packets were to go to another node as they came, and do so no more. */
INLINE bool has_lost_its_way(const struct __sk_buff *skb, const struct flow *flow)
{
	return UNLIKELY(is_wrapped(flow)) && (!knows_nodes || is_secured(skb));
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The prefilter: a quick test whether a packet may be ours. Nearly all packets of a node are not, and must cost
 * nothing.
 *
 * Owns: the test. Reads: the packet, `packet_ports`, `node_ports`, `backend_ports`, `frontend_blocks`,
 * `packet_settings`. Writes: nothing.
 */
#ifndef HOLDFAST_PREFILTER_H
#define HOLDFAST_PREFILTER_H

#include "conntrack.h"
#include "lb.h"
#include "packet.h"

/* Whether the port is an SNAT port. Without branches, as is_reversed(). */
INLINE bool is_snat_port(const struct packet_settings *settings, __u32 number)
{
	__u64 at, is_in = 0;

	for (int range = 0; range < SNAT_RANGES; range++) {
		at = (__u64)number - settings->snat[range].first;
		is_in |= (at - settings->snat[range].count) >> 63 & ~at >> 63;
	}
	return is_in;
}

INLINE bool has_bit(const __u64 *bits, __u32 number)
{
	return bits && READ_ONCE(*bits) >> (number % 64) & 1;
}

/*
 * Whether a packet to this port of the node may belong to a flow. Most ports are SNAT ports, and other programs use
 * some of them, too. A flow's reply comes from a backend's port.
 */
INLINE bool is_flow_port(__u16 port, __u16 source)
{
	__u32 zero = 0, number = bpf_ntohs(port), at = number / 64;
	const struct packet_settings *settings;
	const struct port_bytes *backends;

	if (LIKELY(!has_bit(bpf_map_lookup_elem(&packet_ports, &at), number)))
		return false;
	if (has_bit(bpf_map_lookup_elem(&node_ports, &at), number))
		return true;
	backends = bpf_map_lookup_elem(&backend_ports, &zero);
	if (!backends || backends->is_set[source])
		return true;
	settings = bpf_map_lookup_elem(&packet_settings, &zero);
	return !settings || !is_snat_port(settings, number);
}

/* Whether an ingress packet may belong to a flow, or open one. */
INLINE bool may_be_ours(const __u32 *address, __u16 port, __u16 source, bool v4)
{
	struct lb_request request = { .v4 = v4 };

	if (is_flow_port(port, source))
		return true;
	copy_address(request.frontend.address, address);
	return may_be_frontend(&request);
}

/* A common packet, without options or extension headers. */
struct plain_packet4 {
	struct iphdr ip;
	__u16 source_port;
	__u16 destination_port;
};

struct plain_packet6 {
	struct ipv6hdr ip;
	__u16 source_port;
	__u16 destination_port;
};

/*
 * The headers of a common packet, whose fields have fixed offsets. NULL: the packet is another one, and the prefilter
 * cannot judge it.
 */
INLINE const struct plain_packet4 *read_plain4(const struct __sk_buff *skb)
{
	const struct plain_packet4 *packet = get_header(skb, link_header, sizeof(*packet));

	if (!packet || *(__u8 *)&packet->ip != 0x45 || !is_transport(packet->ip.protocol) ||
	    packet->ip.frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET))
		return NULL;
	return packet;
}

INLINE const struct plain_packet6 *read_plain6(const struct __sk_buff *skb)
{
	const struct plain_packet6 *packet = get_header(skb, link_header, sizeof(*packet));

	return packet && packet->ip.version == 6 && is_transport(packet->ip.nexthdr) ? packet : NULL;
}

/* The prefilter's result. DECAPSULATED: the packet arrived encapsulated from another node, for a frontend. */
enum ownership { NOT_OURS, MAYBE_OURS, UNPARSED, DECAPSULATED };

INLINE enum ownership prefilter_ingress4(const struct __sk_buff *skb)
{
	const struct plain_packet4 *packet = read_plain4(skb);
	__u32 address[4] = {};

	if (!packet)
		return UNPARSED;
	address[3] = packet->ip.daddr;
	return may_be_ours(address, packet->destination_port, packet->source_port, true) ? MAYBE_OURS : NOT_OURS;
}

INLINE enum ownership prefilter_ingress6(const struct __sk_buff *skb)
{
	const struct plain_packet6 *packet = read_plain6(skb);

	if (!packet)
		return UNPARSED;
	return may_be_ours(packet->ip.daddr.in6_u.u6_addr32, packet->destination_port, packet->source_port, false) ?
		       MAYBE_OURS :
		       NOT_OURS;
}

/* Whether this node may have sent the datagram from the endpoint of a frontend, and expects a reply there. */
INLINE bool may_be_node_datagram(__u8 transport, __u16 source_port)
{
	return transport == IPPROTO_UDP && has_node_port(source_port);
}

INLINE bool is_foreign_egress4(const struct __sk_buff *skb)
{
	const struct plain_packet4 *packet = read_plain4(skb);

	return packet && !may_belong_to_flow(packet->source_port, packet->destination_port) &&
	       !may_be_node_datagram(packet->ip.protocol, packet->source_port);
}

INLINE bool is_foreign_egress6(const struct __sk_buff *skb)
{
	const struct plain_packet6 *packet = read_plain6(skb);

	return packet && !may_belong_to_flow(packet->source_port, packet->destination_port) &&
	       !may_be_node_datagram(packet->ip.nexthdr, packet->source_port);
}

/* Whether a pod's packet has the ports of no flow. */
INLINE bool is_foreign_pod_egress4(const struct __sk_buff *skb)
{
	const struct plain_packet4 *packet = read_plain4(skb);

	return !packet || !may_belong_to_flow(packet->source_port, packet->destination_port);
}

INLINE bool is_foreign_pod_egress6(const struct __sk_buff *skb)
{
	const struct plain_packet6 *packet = read_plain6(skb);

	return !packet || !may_belong_to_flow(packet->source_port, packet->destination_port);
}

#endif

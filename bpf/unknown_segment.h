/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets to a frontend that belong to no flow, and that the stack forwards unchanged: a RST or an end for them.
 *
 * Owns: `unknown_segments`, and the RST. Reads: packets, the FIB. Writes: `unknown_segments`, packets, `packet_counts`.
 *
 * Such a frontend is no address of this node, and no other proxy here has translated the packet. The packet would
 * circle between node and router until its TTL ends, and the client would wait. So a TCP client gets a RST, and other
 * packets are dropped. A packet of another proxy's connection only has to pass the stack: conntrack has translated it
 * by then. So the programs need not know the proxy: they end only what leaves unchanged.
 */
#ifndef HOLDFAST_UNKNOWN_SEGMENT_H
#define HOLDFAST_UNKNOWN_SEGMENT_H

#include "conntrack.h"
#include "fib.h"
#include "nat.h"
#include "packet.h"
#include "reject.h"

/* A packet to a frontend that this CPU left to the stack. The same CPU forwards it. */
struct unknown_segment {
	/* Of a later fragment only the addresses. */
	struct tuple tuple;
	/* Of a later fragment the datagram's id, otherwise 0. */
	__u32 id;
	/* enum segment_action */
	__u32 action;
	/* The second in which the stack got it. */
	__u32 second;
};

/* What to do with the packet when it leaves: nothing, because it is none of these; drop it; reset its connection. */
enum segment_action { SEGMENT_NONE, SEGMENT_DROP, SEGMENT_RESET };

/*
 * How many packets a CPU remembers: a power of two. The kernel hands a few packets to the stack at once. If two of them
 * share a slot, the first one leaves for the router once more.
 */
#define UNKNOWN_SEGMENTS 256

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UNKNOWN_SEGMENTS);
	__type(key, __u32);
	__type(value, struct unknown_segment);
} unknown_segments SEC(".maps");

/* The second in which any CPU last left such a packet to the stack. 0: long ago, so egress need not compare. */
__u32 unknown_segment_at;

INLINE struct unknown_segment *get_unknown_segment(const struct tuple *tuple, __u32 id)
{
	__u64 mixed = mix_endpoint(id, tuple->source.address, tuple->source.port);
	__u32 at;

	mixed = mix_endpoint(mixed, tuple->destination.address, tuple->destination.port);
	at = mixed >> 32 & (UNKNOWN_SEGMENTS - 1);
	return bpf_map_lookup_elem(&unknown_segments, &at);
}

INLINE void set_fragment_tuple(struct tuple *tuple, const struct packet *packet)
{
	*tuple = packet->tuple;
	tuple->source.port = tuple->destination.port = 0;
	tuple->transport = 0;
}

/*
 * Saves the packet in the scratch map. A TCP segment that has ACK and no RST may get a RST. Any other one opens or ends
 * a connection, and is dropped. So is a later fragment, which may have no ports. A global function, as
 * `ingress_lookup`.
 */
GLOBAL int save_unknown_segment(__u32 is_dropped)
{
	const struct scratch *scratch = get_scratch();
	struct unknown_segment *segment;
	const struct packet *packet;
	struct tuple tuple;
	__u32 id = 0;

	if (!scratch)
		return 0;
	packet = &scratch->packet;
	tuple = packet->tuple;
	if (packet->part == LATER_FRAGMENT) {
		set_fragment_tuple(&tuple, packet);
		id = packet->id;
	}
	segment = get_unknown_segment(&tuple, id);
	if (!segment)
		return 0;
	segment->tuple = tuple;
	segment->id = id;
	segment->action = tuple.transport == IPPROTO_TCP && packet->part == WHOLE && !is_dropped &&
					  (packet->flags & (TCP_ACK | TCP_RST)) == TCP_ACK ?
				  SEGMENT_RESET :
				  SEGMENT_DROP;
	segment->second = seconds();
	*(volatile __u32 *)&unknown_segment_at = segment->second;
	return 0;
}

INLINE bool has_unknown_segment(void)
{
	return READ_ONCE(unknown_segment_at);
}

/*
 * Reads the packet's identity. A fragment counts only by the device that it arrived by: it may be for another host
 * whose address is near to a frontend's.
 */
INLINE bool read_identity(struct __sk_buff *skb, struct packet *packet, __u32 *id, bool v4)
{
	if (!parse(skb, packet, v4))
		return false;
	if (UNLIKELY(packet->part == LATER_FRAGMENT)) {
		set_fragment_tuple(&packet->tuple, packet);
		*id = packet->id;
		return skb->ingress_ifindex == skb->ifindex;
	}
	*id = 0;
	return is_transport(packet->tuple.transport) && parse_transport(skb, packet);
}

/* What to do with a packet that leaves: enum segment_action. The node's own packets have no ingress device. */
INLINE int find_unknown_segment(struct __sk_buff *skb, bool v4)
{
	const struct unknown_segment *segment;
	struct packet packet = {};
	__u32 now = seconds(), id;

	if (now - READ_ONCE(unknown_segment_at) > 1)
		*(volatile __u32 *)&unknown_segment_at = 0;
	if (!skb->ingress_ifindex || !read_identity(skb, &packet, &id, v4))
		return SEGMENT_NONE;
	segment = get_unknown_segment(&packet.tuple, id);
	if (!segment || now - segment->second > 1 || segment->id != id ||
	    segment->tuple.transport != packet.tuple.transport ||
	    !same_endpoint(&packet.tuple.source, segment->tuple.source.address, segment->tuple.source.port, false) ||
	    !same_endpoint(&packet.tuple.destination, segment->tuple.destination.address,
			   segment->tuple.destination.port, false))
		return SEGMENT_NONE;
	return segment->action;
}

/* Sets the length in the IP header to that of a bare TCP header. */
INLINE bool set_ip_length4(struct __sk_buff *skb, const struct packet *packet)
{
	struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	__u16 before;

	if (!ip)
		return false;
	before = ip->tot_len;
	ip->tot_len = bpf_htons(packet->transport - packet->ip + sizeof(struct tcphdr));
	ip->check = ~csum_fold16((__u16)~ip->check + (__u64)(__u16)~before + ip->tot_len);
	return true;
}

INLINE bool set_ip_length6(struct __sk_buff *skb, const struct packet *packet)
{
	struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	__u16 before, after;

	if (!ip)
		return false;
	before = ip->payload_len;
	after = bpf_htons(packet->transport - packet->ip - sizeof(*ip) + sizeof(struct tcphdr));
	ip->payload_len = after;
	update_skb_csum(skb, (__u64)(__u16)~before + after);
	return true;
}

/*
 * The length of the segment behind the IP header, without padding. A very large packet does not have its length in the
 * header.
 */
INLINE __u32 segment_length(struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	const struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	__u32 of_ip = packet->transport - packet->ip;
	__u32 all = skb->len - packet->ip, ip_length;

	if (!ip)
		return all - of_ip;
	ip_length = bpf_ntohs(v4 ? ip->tot_len : ((const struct ipv6hdr *)ip)->payload_len);
	ip_length += v4 || !ip_length ? 0 : sizeof(struct ipv6hdr);
	return (ip_length >= of_ip + sizeof(struct tcphdr) && ip_length < all ? ip_length : all) - of_ip;
}

/*
 * Cuts off everything behind the TCP header, and returns the new length. The kernel cuts nothing off a packet that was
 * encapsulated on the same host, as where nodes are containers. Then the length stays, and the rest counts as data.
 */
INLINE __u32 trim_segment(struct __sk_buff *skb, const struct packet *packet, __u32 length, bool v4)
{
	if (bpf_skb_change_tail(skb, packet->transport + sizeof(struct tcphdr), 0))
		return length;
	return (v4 ? set_ip_length4(skb, packet) : set_ip_length6(skb, packet)) ? sizeof(struct tcphdr) : 0;
}

/*
 * Turns the segment into a RST. If everything behind its header is gone, the checksum still tells its sum, of which the
 * card may have to finish all but the addresses and the length. `before` and `length`: the segment's length before and
 * now.
 */
INLINE bool write_unknown_rst(struct __sk_buff *skb, const struct packet *packet, __u32 before, __u32 length, bool v4)
{
	struct tcphdr *tcp = get_header(skb, packet->transport, sizeof(*tcp));
	__u32 at = packet->transport + offsetof(struct tcphdr, check);
	struct tcphdr rst = {};
	__u64 lengths, sum;

	if (!tcp)
		return false;
	rst.source = packet->tuple.destination.port;
	rst.dest = packet->tuple.source.port;
	rst.seq = tcp->ack_seq;
	rst.check = tcp->check;
	((__u16 *)&rst)[6] = bpf_htons(sizeof(rst) / 4 << 12 | TCP_RST);
	sum = length == before ? (__u16)~csum_fold16(csum_add(tcp, sizeof(*tcp), 0)) :
				 pseudo_header_csum(&packet->tuple, before, IPPROTO_TCP, v4);
	sum = csum_add(&rst, sizeof(rst), sum);
	*tcp = rst;
	lengths = csum_diff(0, bpf_htonl(before), bpf_htonl(length));
	return !bpf_l4_csum_replace(skb, at, 0, csum_fold32(lengths), BPF_F_PSEUDO_HDR) &&
	       !bpf_l4_csum_replace(skb, at, 0, csum_fold32(sum), 0);
}

/*
 * Sends a packet to the client, by the device of the kernel's route, because what it replies to may have arrived by
 * another node. If the kernel tells none, by the ingress device. `received`: what the client has sent.
 */
INLINE int redirect_to_client(struct __sk_buff *skb, const struct tuple *received, bool v4)
{
	__u32 device = lookup_egress(skb, received->destination.address, received->source.address,
				     received->destination.port, received->source.port, received->transport, v4);

	return bpf_redirect_neigh(device && device != EGRESS_UNKNOWN ? device : skb->ingress_ifindex, NULL, 0, 0);
}

/*
 * Sends the RST to the segment's sender. Without a link header it cannot leave by another device, so the stack gets it
 * as if it had arrived here, and forwards it.
 */
INLINE int send_rst(struct __sk_buff *skb, const struct tuple *received, bool v4)
{
	count_packet(COUNT_REJECTS);
	return link_header ? redirect_to_client(skb, received, v4) : bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Builds the RST that tells the sender that there is no such connection. */
INLINE bool build_rst(struct __sk_buff *skb, struct packet *packet, bool v4)
{
	__u32 before, length;

	if (!parse(skb, packet, v4) || !parse_transport(skb, packet) ||
	    !is_unicast_sender(skb, packet->tuple.source.address, v4) || !may_reject(seconds()))
		return false;
	before = segment_length(skb, packet, v4);
	length = trim_segment(skb, packet, before, v4);
	return length && (v4 ? reverse_ip4(skb, packet) : reverse_ip6(skb, packet)) &&
	       write_unknown_rst(skb, packet, before, length, v4);
}

INLINE int reset_unknown_segment(struct __sk_buff *skb, bool v4)
{
	struct packet packet = {};

	if (build_rst(skb, &packet, v4))
		return send_rst(skb, &packet.tuple, v4);
	count_packet(COUNT_UNANSWERABLE);
	return TC_ACT_SHOT;
}

#endif

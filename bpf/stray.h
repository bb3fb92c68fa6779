/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments that go astray: they come for a frontend, are of no flow, and leave this node again as they came, because
 * the frontend is none of its addresses and no other proxy here has translated them. They would circle between node and
 * router until their TTL ends, and the client would go on waiting. The client is told instead that there is no such
 * connection.
 *
 * A segment of another proxy's connection only has to pass the stack: conntrack has sent it to its backend by then. So
 * the proxy of a segment need not be known, and only what leaves as it came is answered.
 */
#ifndef HOLDFAST_STRAY_H
#define HOLDFAST_STRAY_H

#include "answer.h"
#include "flow.h"
#include "packet.h"
#include "rewrite.h"

/* The last segment for a frontend that this CPU left to the stack. What the stack forwards leaves by the same CPU. */
struct stray {
	struct tuple tuple;
	/* enum astray */
	__u32 state;
};

/*
 * What is to be done with the segment when it leaves: nothing, because it has left already; drop it without an answer;
 * answer it.
 */
enum astray { GONE, DROPPED, DENIABLE };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stray);
} strays SEC(".maps");

/*
 * The second in which any CPU last left such a segment to the stack; 0: long ago, so what leaves need not be compared
 * with any.
 */
__u32 strayed_at;

INLINE struct stray *the_stray(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&strays, &zero);
}

/*
 * Notes a segment of TCP that acknowledges something and is no RST. All others begin or end a connection, and get no
 * such answer.
 */
INLINE void note_stray(const struct packet *packet, bool is_dropped)
{
	struct stray *stray = the_stray();

	if (!stray || packet->tuple.transport != IPPROTO_TCP || (packet->flags & (TCP_ACK | TCP_RST)) != TCP_ACK)
		return;
	stray->tuple = packet->tuple;
	stray->state = is_dropped ? DROPPED : DENIABLE;
	*(volatile __u32 *)&strayed_at = seconds();
}

INLINE bool any_stray(void)
{
	return READ_ONCE(strayed_at);
}

/* Whether the packet is the segment that was noted: enum astray. */
INLINE int find_stray(struct __sk_buff *skb, bool v4)
{
	struct stray *stray = the_stray();
	struct packet packet = {};
	__u32 state;

	if (seconds() - READ_ONCE(strayed_at) > 1)
		*(volatile __u32 *)&strayed_at = 0;
	/* A packet of this node's own is no stray. */
	if (!skb->ingress_ifindex || !stray || stray->state == GONE || !parse(skb, &packet, v4) ||
	    packet.tuple.transport != IPPROTO_TCP || packet.part != WHOLE || !parse_transport(skb, &packet) ||
	    !same_place(&packet.tuple.source, stray->tuple.source.address, stray->tuple.source.port, false) ||
	    !same_place(&packet.tuple.destination, stray->tuple.destination.address, stray->tuple.destination.port,
			false))
		return GONE;
	state = stray->state;
	stray->state = GONE;
	return state;
}

/* Makes the header of IP say that a TCP header alone is left behind it. */
INLINE bool shorten4(struct __sk_buff *skb, const struct packet *packet)
{
	struct iphdr *ip = header(skb, packet->ip, sizeof(*ip));
	__u16 before;

	if (!ip)
		return false;
	before = ip->tot_len;
	ip->tot_len = bpf_htons(packet->transport - packet->ip + sizeof(struct tcphdr));
	ip->check = ~fold16((__u16)~ip->check + (__u64)(__u16)~before + ip->tot_len);
	return true;
}

INLINE bool shorten6(struct __sk_buff *skb, const struct packet *packet)
{
	struct ipv6hdr *ip = header(skb, packet->ip, sizeof(*ip));
	__u16 before, after;

	if (!ip)
		return false;
	before = ip->payload_len;
	after = bpf_htons(packet->transport - packet->ip - sizeof(*ip) + sizeof(struct tcphdr));
	ip->payload_len = after;
	note_change(skb, (__u64)(__u16)~before + after);
	return true;
}

/*
 * Makes of the segment a header alone, which says what a host says that knows no such connection. What the segment said
 * before is known from its sum, of which a network card may still have to finish all but the addresses and the length.
 * `length`: how long the segment was.
 */
INLINE bool deny_segment(struct __sk_buff *skb, const struct packet *packet, __u32 length, bool v4)
{
	struct tcphdr *tcp = header(skb, packet->transport, sizeof(*tcp));
	__u32 at = packet->transport + offsetof(struct tcphdr, check);
	struct tcphdr denied = {};
	__u64 lengths, sum;

	if (!tcp)
		return false;
	denied.source = packet->tuple.destination.port;
	denied.dest = packet->tuple.source.port;
	denied.seq = tcp->ack_seq;
	((__u16 *)&denied)[6] = bpf_htons(sizeof(denied) / 4 << 12 | TCP_RST);
	sum = sum_of(&denied, sizeof(denied), pseudo_header(&packet->tuple, length, IPPROTO_TCP, v4)) + tcp->check;
	denied.check = tcp->check;
	*tcp = denied;
	lengths = delta(0, bpf_htonl(length), bpf_htonl(sizeof(denied)));
	return !bpf_l4_csum_replace(skb, at, 0, fold32(lengths), BPF_F_PSEUDO_HDR) &&
	       !bpf_l4_csum_replace(skb, at, 0, fold32(sum), 0);
}

/* Sends the packet to its sender, by the device by which it came. */
INLINE int send_back(struct __sk_buff *skb)
{
	count_packet(COUNT_ANSWERS);
	return link_header ? bpf_redirect_neigh(skb->ingress_ifindex, NULL, 0, 0) : bpf_redirect(skb->ifindex, 0);
}

INLINE int deny(struct __sk_buff *skb, bool v4)
{
	struct packet packet = {};
	__u32 length;

	if (!parse(skb, &packet, v4) || !parse_transport(skb, &packet) || !may_answer(seconds())) {
		count_packet(COUNT_UNANSWERABLE);
		return SHOT;
	}
	length = skb->len - packet.transport;
	if (bpf_skb_change_tail(skb, packet.transport + sizeof(struct tcphdr), 0))
		return SHOT;
	if (v4 ? !shorten4(skb, &packet) || !turn_ip4(skb, &packet) : !shorten6(skb, &packet) || !turn_ip6(skb, &packet))
		return SHOT;
	return deny_segment(skb, &packet, length, v4) ? send_back(skb) : SHOT;
}

#endif

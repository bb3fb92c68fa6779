/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How long a client's segments may be where its packets come by another node: shorter by the header that they come
 * behind than the backend says, so that they fit on that way.
 */
#ifndef HOLDFAST_SEGMENT_H
#define HOLDFAST_SEGMENT_H

#include "flow.h"
#include "packet.h"

enum { OPTION_END = 0, OPTION_NONE = 1, OPTION_LONGEST = 2, OPTION_LONGEST_SIZE = 4 };

/* How many options are looked at. Hosts say this one first. */
#define OPTIONS_MOST 8

/* How much of an option is read. */
struct tcp_option {
	__u8 kind;
	__u8 length;
	__u16 value;
};

INLINE int write_longest(struct __sk_buff *skb, __u32 transport, __u32 at, __u16 before, __u32 less)
{
	__u32 longest = bpf_ntohs(before);
	__u16 after = bpf_htons(longest - less);

	if (longest <= less || bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0))
		return 0;
	return bpf_l4_csum_replace(skb, transport + offsetof(struct tcphdr, check), before, after, sizeof(after));
}

/* Lowers what a SYN or its answer says of the longest segment by that many bytes. */
ALONE int shorten_segments(struct __sk_buff *skb, __u32 transport, __u32 less)
{
	__u32 at = transport + sizeof(struct tcphdr), end;
	__u8 length;

	if (bpf_skb_load_bytes(skb, transport + 12, &length, sizeof(length)))
		return 0;
	end = transport + (length >> 4) * 4;
	for (int seen = 0; seen < OPTIONS_MOST; seen++) {
		struct tcp_option option;

		if (at + sizeof(option) > end || bpf_skb_load_bytes(skb, at, &option, sizeof(option)))
			return 0;
		/* The sum has words of two bytes, and this one begins with such a word. */
		if (option.kind == OPTION_LONGEST && option.length == OPTION_LONGEST_SIZE && !((at - transport) & 1))
			return write_longest(skb, transport, at + offsetof(struct tcp_option, value), option.value,
					     less);
		if (option.kind == OPTION_END || (option.kind != OPTION_NONE && option.length < 2))
			return 0;
		at += option.kind == OPTION_NONE ? 1 : option.length;
	}
	return 0;
}

/* Whether the backend agrees to a connection over TCP that came by another node. */
INLINE bool agrees_by_node(const struct flow *flow, const struct packet *packet)
{
	return packet->flags & TCP_SYN && flow->of_backend & CAME_WRAPPED && flow->transport == IPPROTO_TCP &&
	       packet->part == WHOLE;
}

#endif

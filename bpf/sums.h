/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sums of 16-bit words in one's complement, as IP, TCP and UDP have them, and by how much they change. */
#ifndef HOLDFAST_SUMS_H
#define HOLDFAST_SUMS_H

#include <linux/bpf.h>
#include "dial.h"

/* What is added to a sum when `from` becomes `to`. */
INLINE __u64 delta(__u64 sum, __u32 from, __u32 to)
{
	return sum + (__u32)~from + to;
}

INLINE __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

INLINE __u16 fold16(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/*
 * Notes a change in the sum that a network card may have made of the whole packet: what is changed there, and made up
 * for by no sum inside the packet, has to be in the card's sum too. Where the card has made none, there is nothing to
 * be done, which the helper calls a failure.
 */
INLINE void note_change(struct __sk_buff *skb, __u64 sum)
{
	bpf_csum_update(skb, fold32(sum));
}

/*
 * Whether the network card is still to finish the sum that stands there. Programs are not told, but
 * bpf_l4_csum_replace() shows it: the helper leaves such a sum as it is, and changes any other one. That change goes
 * back at once: the card's sum of the whole packet does not have it. Negative: there are no such bytes.
 */
INLINE int is_pending(struct __sk_buff *skb, __u32 place)
{
	__u16 before, after;

	if (bpf_skb_load_bytes(skb, place, &before, sizeof(before)) || bpf_l4_csum_replace(skb, place, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, place, &after, sizeof(after)))
		return -1;
	if (before == after)
		return 1;
	return bpf_skb_store_bytes(skb, place, &before, sizeof(before), 0) ? -1 : 0;
}

#endif

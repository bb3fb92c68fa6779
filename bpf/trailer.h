/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Bytes that a frame has behind its packet: trailers of switches, or the sum of the frame where a network card leaves
 * it there. The header of IP says where a packet ends. The length of the frame says nothing of it.
 */
#ifndef HOLDFAST_TRAILER_H
#define HOLDFAST_TRAILER_H

#include "packet.h"

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

#endif

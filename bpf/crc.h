/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The sum of SCTP, a CRC32c over the whole packet of SCTP. It is linear: how much it changes depends on which bits
 * changed and on how many bytes follow them, and not on what those bytes are. It does not cover the addresses.
 *
 * As everywhere here, a right sum before is a right one after, and a wrong one stays wrong.
 */
#ifndef HOLDFAST_CRC_H
#define HOLDFAST_CRC_H

#include <stddef.h>
#include "said.h"
#include "sums.h"

/* The polynomial, in the order of bits in which a sum stands: the highest bit is that of the power 0. */
#define CRC32C 0x82f63b78

/* What a difference is multiplied by if 1, 2, 4, 8 and so on bytes lie from its beginning to the packet's end. */
#define FACTORS 16
static const __u32 factors[FACTORS] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955, 0xb8fdb1e7,
	0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
};

/* The product of two polynomials. Without branches, as is_turned(). */
ALONE int times(__u32 a, __u32 b)
{
	__u32 product = 0;

	for (int power = 0; power < 32; power++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = b >> 1 ^ (CRC32C & -(b & 1));
	}
	return product;
}

/*
 * Makes up in the sum for a change of the ports, which are the first four bytes. `differs`: the bits that changed, as
 * they stand there. The kernel's SCTP leaves 0 in a packet for a device that makes the sum, but a sum may also be 0.
 * Returns 0 if that was done.
 */
ALONE int make_up(struct __sk_buff *skb, __u32 at, __u32 transport, __u32 differs)
{
	__u32 place = transport + offsetof(struct sctp, sum), before, after, length;
	__u8 ip[LENGTH_END];

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)) || bpf_skb_load_bytes(skb, place, &before, sizeof(before)))
		return -1;
	if (!before && is_pending(skb, place))
		return 0;
	length = length_of_packet(ip) - (transport - at);
	if (length < sizeof(struct sctp) || length >> FACTORS)
		return -1;
	for (int bit = 0; bit < FACTORS; bit++) {
		if (length >> bit & 1)
			differs = times(differs, factors[bit]);
	}
	after = before ^ differs;
	note_change(skb, delta(0, before, after));
	return bpf_skb_store_bytes(skb, place, &after, sizeof(after), 0);
}

#endif

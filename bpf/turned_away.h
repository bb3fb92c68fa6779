/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the program at a driver has to know before it turns clients away: that the program behind it has just done so
 * with one, who came by the same device, for the same hardware, on the same CPU, in the same second.
 *
 * So the driver turns a client away only where that program is in place and sees what the driver sees; and that program
 * gets the first such client of each second.
 */
#ifndef HOLDFAST_TURNED_AWAY_H
#define HOLDFAST_TURNED_AWAY_H

#include <linux/if_packet.h>
#include "flow.h"
#include "packet.h"

/* Of so many devices a CPU knows it at once. Two that share a place let each other's clients through to the program. */
#define TURNED_AWAY_DEVICES 16

struct turned_away {
	__u32 second;
	__u32 device;
	/* The hardware address of the device. */
	__u8 own[ETH_ALEN];
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TURNED_AWAY_DEVICES);
	__type(key, __u32);
	__type(value, struct turned_away);
} turned_away SEC(".maps");

INLINE struct turned_away *turned_away_at(__u32 device)
{
	__u32 at = device & (TURNED_AWAY_DEVICES - 1);

	return bpf_map_lookup_elem(&turned_away, &at);
}

/* Notes that a client was turned away, where a program at the driver may do so with the next one. */
INLINE void note_turned_away(const struct __sk_buff *skb, __u32 device_flags)
{
	const struct ethhdr *link = header(skb, 0, sizeof(*link));
	struct turned_away *noted;

	if (LIKELY(!(device_flags & DEVICE_FRAMES)) || link_header != ETH_HLEN || !link ||
	    skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return;
	noted = turned_away_at(skb->ifindex);
	if (!noted)
		return;
	noted->second = seconds();
	noted->device = skb->ifindex;
	__builtin_memcpy(noted->own, link->h_dest, ETH_ALEN);
}

#endif

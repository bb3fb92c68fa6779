/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which way the kernel would send a packet on, by its own routes and rules. */
#ifndef HOLDFAST_WAY_H
#define HOLDFAST_WAY_H

#include "dial.h"

#define FAMILY4 2
#define FAMILY6 10

/* The kernel does not say by which device: a packet gets another header on that way. No device has this number. */
#define WAY_UNTOLD (~0U)

/* The device by which a packet leaves, by what the kernel says; 0: it stays on this node, or has no route. */
INLINE __u32 way_told(long found, const struct bpf_fib_lookup *route)
{
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
	    found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return route->ifindex;
	return found == BPF_FIB_LKUP_RET_UNSUPP_LWT ? WAY_UNTOLD : 0;
}

/* The number of the loopback, in each network namespace. */
#define LOOPBACK_NUMBER 1

/*
 * Asks the kernel for a way. A device that takes router advertisements is set not to forward IPv6, and programs hear no
 * way of what came by it; the stack forwards that all the same where all devices together are set to. So it is asked
 * for the way of what comes by the loopback, which is set as all are.
 */
INLINE long look_up(struct __sk_buff *skb, struct bpf_fib_lookup *route)
{
	long found = bpf_fib_lookup(skb, route, sizeof(*route), 0);

	if (LIKELY(found != BPF_FIB_LKUP_RET_FWD_DISABLED) || route->family != FAMILY6)
		return found;
	route->ifindex = LOOPBACK_NUMBER;
	return bpf_fib_lookup(skb, route, sizeof(*route), 0);
}

/* What the kernel says of the way of a packet that came by this device. */
INLINE long ask_way_out(struct __sk_buff *skb, struct bpf_fib_lookup *route, const __u32 *from, const __u32 *to,
			__u16 from_port, __u16 to_port, __u8 transport, bool v4)
{
	route->family = v4 ? FAMILY4 : FAMILY6;
	route->l4_protocol = transport;
	route->sport = from_port;
	route->dport = to_port;
	route->ifindex = skb->ifindex;
	if (v4) {
		route->ipv4_src = from[3];
		route->ipv4_dst = to[3];
	} else {
		copy_address(route->ipv6_src, from);
		copy_address(route->ipv6_dst, to);
	}
	return look_up(skb, route);
}

/* The device by which a packet would leave, had it come by this one: see way_told(). */
INLINE __u32 way_out(struct __sk_buff *skb, const __u32 *from, const __u32 *to, __u16 from_port, __u16 to_port,
		     __u8 transport, bool v4)
{
	struct bpf_fib_lookup route = {};

	return way_told(ask_way_out(skb, &route, from, to, from_port, to_port, transport, v4), &route);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the steps of a client's first packet tell each other. */
#ifndef HOLDFAST_ARRIVED_H
#define HOLDFAST_ARRIVED_H

#include "packet.h"

/*
 * What is known of a client that arrives. It stands in a map, and each step reads it back from there: so the verifier
 * keeps no values of it, and looks at what follows once, not once for each way that leads there.
 */
struct arrival {
	struct packet packet;
	/* The backend that the client got, and for which port. */
	struct place backend;
	__u32 port_index;
	/* The number of a namespace: the flow is a part of that namespace's share of the table. */
	__u32 share;
	__u32 device;
	/* What is known of the device by which it came, as enum device_flag. */
	__u32 flags;
	/* A client that came by a device of a pod is inside of this node. */
	__u32 from_pod;
	/* The backend is to see the port that the client sends from, where it can. */
	__u32 keeps_port;
	/* The service asks for its clients' addresses (policy Local), so the backend is one of this node's. */
	__u32 is_local;
	/* 0, or by which list that backend is to be remembered: see enum heard. */
	__u32 sticks;
	/* 0, or IS_BY_ADDRESS: answers go as the frontend's address is routed. */
	__u32 by_address;
	/* Where the backend is on another node, the packet may go there as it came: see wrap.h. */
	__u32 may_wrap;
	/* 0, or CAME_WRAPPED: another node has sent the packet, and has chosen this backend. */
	__u32 came_wrapped;
	/* The packet is of a connection that another node has let in: it goes to a third node, or to the stack. */
	__u32 joins;
	struct place proposed;
	/* How a packet looks between the client and this backend, or the one to which a packet goes as it came. */
	struct tuple between;
	/* The number of the flow that is made, or of which a packet takes the shortcut. NO_FLOW: see is_stateless(). */
	__u32 number;
	/* Of a packet that takes the shortcut: enum direction, and the serial of its flow. */
	__u32 direction;
	__u32 serial;
	/* The number, counted from 1, of a flow whose next packet does not go straight to its pod. 0: no such flow. */
	__u32 unheard;
	/* The second program has nothing to look at in the packet. */
	__u32 is_whole;
	/* The device by which it leaves. */
	__u32 way;
	/*
	 * Of a packet that goes to another node: the next host's address, of which family, and how long packets may be.
	 */
	__u32 next[4];
	__u32 next_family;
	__u32 longest;
	/* The number of the flow that gives way to the new one, that the packet goes past, or that ends with the packet. */
	__u32 rival;
	__u32 rival_serial;
	/* How readily that one is given up. */
	__u32 readiness;
	/* The same of the one that would be given up next. */
	__u32 second;
	__u32 second_serial;
	__u32 second_readiness;
	/* A backend that is sought in a list, and the part of the list that is left to search: see listed.h. */
	struct place sought;
	__u32 first;
	__u32 left;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrival);
} arrivals SEC(".maps");

INLINE struct arrival *the_arrival(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&arrivals, &zero);
}

/* No record has this number. */
#define NO_FLOW (~0U)

/*
 * Whether a packet of no flow goes to another node as it came, and opens none: a reset, or an error about an answer, of
 * a connection that another node has let in.
 */
INLINE bool is_stateless(const struct arrival *arrival)
{
	return arrival->number == NO_FLOW;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flow of a packet that was taken out from behind another node's header.
 *
 * It is with a backend of this node. A flow of the same client and frontend may lead to another node: one of what came
 * here by itself, maybe long ago, when the frontend's packets came in by this node. The two stand beside each other:
 * that one has the entry of the client's packets, and this one is found by the backend that the other node names.
 */
#ifndef HOLDFAST_TAKEN_H
#define HOLDFAST_TAKEN_H

#include "arrived.h"
#include "flow.h"

/* Whether a packet is of that flow's client, as far as is needed here: what follows the flow looks again. */
INLINE bool is_of_client(const struct flow *flow, const struct tuple *tuple, bool v4)
{
	return flow->transport == tuple->transport && flow->v4 == v4 &&
	       same_place(&tuple->source, flow->client, flow->client_port, v4) &&
	       same_place(&tuple->destination, flow->frontend, flow->frontend_port, v4);
}

/* Nothing leads anywhere there. No record has this number. */
#define NO_ENTRY (~1U)

/*
 * The number to which that leads which stands as `between` in the map of arrivals, if it is that of a flow of the
 * client with a backend of this node. NO_FLOW: it leads elsewhere.
 */
INLINE __u32 find_led_here(enum leg leg, bool v4)
{
	const struct arrival *arrival = the_arrival();
	const __u32 *entry = arrival ? find_entry(&arrival->between, leg, v4) : NULL;
	const struct flow *flow;
	__u32 number;

	if (!entry)
		return NO_ENTRY;
	number = *entry;
	flow = flow_at(number);
	return flow && !leads_away(flow) && is_of_client(flow, &arrival->packet.tuple, v4) ? number : NO_FLOW;
}

/* A step of its own, which the verifier looks at once, and not for each segment. */
ALONE int find_between4(void)
{
	return find_led_here(LEG_THROUGH, true);
}

/*
 * How many segments a packet has at most that is cut again behind the other header. For each further one the kernel
 * counts the number of the datagram up, which says the backend's port: see wrap.h.
 */
#define SEGMENTS_MOST 64

/* Finds a flow by the backend that the other header names, of which any of so many segments may be; one by IPv6. */
INLINE __u32 find_named(struct arrival *arrival, int segments, bool v4)
{
	__u16 named = bpf_ntohs(arrival->proposed.port);
	__u32 number;

	arrival->between.destination = arrival->proposed;
	if (!v4)
		return find_led_here(LEG_THROUGH, false);
	for (int segment = 0; segment < segments; segment++) {
		arrival->between.destination.port = bpf_htons(named - segment);
		number = find_between4();
		if (number < NO_ENTRY)
			return number;
	}
	return NO_FLOW;
}

/*
 * Puts in the way there that another flow had until it ended, so that the next segments need not name the backend. A
 * flow that has ended meanwhile does not take that away any more.
 */
ALONE int take_way_there4(__u32 number)
{
	const struct arrival *arrival = the_arrival();
	const struct flow *flow = flow_at(number);

	if (arrival && flow && !add_entry(&arrival->packet.tuple, LEG_IN, number, true) && !READ_ONCE(flow->serial))
		remove_entry(&arrival->packet.tuple, LEG_IN, true);
	return NEXT;
}

/* Finds the flow of the packet that stands in the map of arrivals. */
INLINE __u32 find_taken(bool v4)
{
	struct arrival *arrival = the_arrival();
	__u32 led, number;

	if (!arrival)
		return NO_FLOW;
	arrival->between = arrival->packet.tuple;
	led = find_led_here(LEG_IN, v4);
	if (LIKELY(led < NO_ENTRY))
		return led;
	number = find_named(arrival, led == NO_FLOW ? SEGMENTS_MOST : 1, v4);
	if (number >= NO_ENTRY)
		return NO_FLOW;
	if (v4 && led == NO_ENTRY)
		take_way_there4(number);
	return number;
}

ALONE int find_taken4(void)
{
	return find_taken(true);
}

ALONE int find_taken6(void)
{
	return find_taken(false);
}

/* The number of the flow of a packet that looks like that; NO_FLOW: it is of none. */
INLINE __u32 flow_of_taken(const struct tuple *tuple, bool v4)
{
	struct arrival *arrival = the_arrival();

	if (!arrival)
		return NO_FLOW;
	arrival->packet.tuple = *tuple;
	return v4 ? find_taken4() : find_taken6();
}

#endif

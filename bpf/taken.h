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

/* The number that an entry leads to, if that is a flow of the client with a backend of this node. */
INLINE __u32 led_here(const __u32 *entry, const struct tuple *tuple, bool v4)
{
	__u32 number = entry ? *entry : NO_FLOW;
	const struct flow *flow = flow_at(number);

	return flow && !leads_away(flow) && is_of_client(flow, tuple, v4) ? number : NO_FLOW;
}

/* Finds the flow of the packet that stands in the map of arrivals. */
INLINE __u32 find_taken(bool v4)
{
	struct arrival *arrival = the_arrival();
	const struct tuple *tuple;
	__u32 number;

	if (!arrival)
		return NO_FLOW;
	tuple = &arrival->packet.tuple;
	number = led_here(find_entry(tuple, LEG_IN, v4), tuple, v4);
	if (LIKELY(number != NO_FLOW))
		return number;
	arrival->between.source = tuple->source;
	arrival->between.destination = arrival->proposed;
	arrival->between.transport = tuple->transport;
	return led_here(find_entry(&arrival->between, LEG_THROUGH, v4), tuple, v4);
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

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a backend's answer says of its flow, and whether it is the flow's at all. */
#ifndef HOLDFAST_ANSWERED_H
#define HOLDFAST_ANSWERED_H

#include "arrival.h"
#include "arrived.h"
#include "flow.h"
#include "heard.h"
#include "listed.h"
#include "packet.h"

/*
 * Whether the backend of a flow serves no more. What counts is the port that the frontend leads to now: the port index
 * from when the flow began may be another port's.
 */
INLINE bool serves_no_more(__u32 number, bool v4)
{
	struct flow *flow = flow_at(number);
	struct dial dial = {};
	struct tuple tuple;
	struct port *port;
	__u64 word;

	if (!flow)
		return false;
	from_client(&tuple, flow);
	dial_of(&dial, &tuple, v4);
	if (!find_frontend(&dial))
		return true;
	set_place(&dial.backend, flow->backend, flow->backend_port);
	if (is_member(&dial, SCOPE_SERVING))
		return false;
	port = port_of(&dial);
	word = port ? READ_ONCE(port->cluster) : 0;
	return !word_count(word) || word_flags(word) & WORD_MEMBERS;
}

ALONE int serves_no_more4(__u32 number)
{
	return serves_no_more(number, true);
}

ALONE int serves_no_more6(__u32 number)
{
	return serves_no_more(number, false);
}

/*
 * Whether the client is to leave its backend, because that serves no more. Over UDP it leaves at once; of a connection
 * only the two can tell whether they are done.
 */
INLINE bool has_left(const struct flow *flow, __u32 number, bool v4)
{
	return flow->transport == IPPROTO_UDP && (v4 ? serves_no_more4(number) : serves_no_more6(number));
}

/*
 * Notes what an answer says of its flow. A late answer is passed on, but revives nothing: the flow may be about to be
 * taken away. An answer of a backend that serves no more is passed on too, and keeps no client with that backend.
 */
INLINE void note_answer(struct flow *flow, __u32 number, const struct packet *packet, bool v4)
{
	__u32 now = seconds();
	bool is_first = flow->seen != now;

	if (UNLIKELY(is_first && has_expired(flow, now)))
		return;
	if (packet->part != LATER_FRAGMENT)
		hear_backend(flow, packet);
	if (UNLIKELY(is_first && !has_left(flow, number, v4)))
		flow->seen = now;
}

/* Whether a client is to come back to this backend, and is not remembered with it yet. */
INLINE bool is_to_come_back(const struct flow *flow)
{
	return flow->of_client & (STICKS_CLUSTER | STICKS_LOCAL) && !(flow->of_backend & IS_REMEMBERED);
}

/*
 * Whether the program at the other device would have nothing to look at in this packet of a flow that takes the
 * shortcut. Where a backend agrees to a connection, or a client is still to be remembered, that program decides.
 */
INLINE bool is_known_there(const struct flow *flow, const struct packet *packet, enum direction direction)
{
	return direction == TO_BACKEND || !(packet->flags & TCP_SYN || is_to_come_back(flow));
}

/* Whether the packet came back from another node, and so to a port that is the flow's alone. */
INLINE bool is_by_own_port(const struct flow *flow, enum direction direction)
{
	return flow->nat_port && direction == TO_CLIENT;
}

/*
 * Whether the packet may be of something else than the flow: the same two may have a connection without any frontend,
 * and a stranger may have sent the first packet in the client's name. Until the backend agrees, only what begins a
 * connection, or refuses it, is of the flow.
 */
INLINE bool is_of_others(const struct flow *flow, const struct packet *packet, enum direction direction)
{
	return makes_connections(flow->transport) && !(flow->of_backend & HEARD_SYN) &&
	       !(packet->flags & (TCP_SYN | TCP_RST)) && !is_by_own_port(flow, direction);
}

#endif

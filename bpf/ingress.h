/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packet programs, at the devices by which others reach this node: on its way in a client's packet is sent to a
 * backend, on its way out the answer gets the address that the client dialled. In between the stack and all other
 * programs see client and backend.
 */
#ifndef HOLDFAST_INGRESS_H
#define HOLDFAST_INGRESS_H

#include "conntrack.h"
#include "dsr_decap.h"
#include "dsr_encap.h"
#include "fast_path.h"
#include "flow_state.h"
#include "frag.h"
#include "nat.h"
#include "open_flow.h"
#include "packet.h"
#include "prefilter.h"

/* As write(), for a packet that comes. */
INLINE int write_in(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, bool v4)
{
	int verdict = write(skb, packet, to, v4);

	if (verdict == NEXT)
		note_written_in(skb);
	return verdict;
}

/*
 * Whether the frontend of a flow leads to other backends than that of the flow, or is none any more. For a client that
 * begins, the list that the frontend leads to counts; for one that goes on, whether the backend still serves. So it
 * does where the backend's answers do not come here, because it could not say that a connection lives, until the client
 * has said its last.
 */
INLINE bool leads_elsewhere(__u32 number, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct flow *flow = flow_at(number);
	struct dial dial = {};
	struct tuple tuple;
	struct port *port;

	if (!flow || !arrival)
		return false;
	from_client(&tuple, flow);
	dial_of(&dial, &tuple, v4);
	if (!find_frontend(&dial))
		return true;
	port = port_of(&dial);
	if (!port)
		return true;
	set_place(&dial.backend, flow->backend, flow->backend_port);
	arrival->sought = dial.backend;
	if (UNLIKELY(is_wrapped(flow)) && !is_left_by_client(flow) && is_member(&dial, SCOPE_SERVING))
		return false;
	return !is_listed(arrival, &dial, SCOPE_CLUSTER, READ_ONCE(port->cluster), v4) &&
	       !is_listed(arrival, &dial, SCOPE_LOCAL, READ_ONCE(port->local), v4);
}

ALONE int leads_elsewhere4(__u32 number)
{
	return leads_elsewhere(number, true);
}

ALONE int leads_elsewhere6(__u32 number)
{
	return leads_elsewhere(number, false);
}

/* Whether a client begins anew with the tuple of a connection that is over. */
INLINE bool begins_anew(const struct flow *flow, const struct packet *packet)
{
	return is_syn(flow, packet) && is_over(flow);
}

/*
 * Whether a client has had no answer. A backend that lives answers at once, even to a stranger that asks in the name of
 * a client that goes on: it says that it knows of a connection. So a flow without an answer in the second before has no
 * connection that could be cut. Where the backend is not heard, a client that has said its last and has been silent
 * since awaits none.
 */
INLINE bool has_no_answer(const struct flow *flow, __u32 now)
{
	return (flow->state == FLOW_OPENING && !(flow->of_backend & HEARD_SYN)) ||
	       (flow->waits && flow->seen != now) || (is_left_by_client(flow) && silence(flow, now) > LIFE_CROWDED);
}

/*
 * Whether a client begins anew with the tuple of a connection that has a silent backend, while the frontend leads to
 * other backends now.
 */
INLINE bool begins_elsewhere(const struct flow *flow, __u32 number, const struct packet *packet, __u32 now, bool v4)
{
	return is_syn(flow, packet) && has_no_answer(flow, now) &&
	       (v4 ? leads_elsewhere4(number) : leads_elsewhere6(number));
}

/* Whether a packet of a client may not follow its flow any more. If so, the flow is ended. */
INLINE bool ends(struct __sk_buff *skb, struct flow *flow, __u32 number, const struct packet *packet, __u32 now,
		 bool v4)
{
	bool is_lost = has_lost_its_way(skb, flow);

	if (LIKELY(flow->seen == now && !is_reset(flow) && !is_closed(flow)) && !is_lost)
		return false;
	if (!is_lost && !has_expired(flow, now) && !begins_anew(flow, packet) &&
	    !has_left(flow, number, v4) &&
	    !begins_elsewhere(flow, number, packet, now, v4) &&
	    (flow->seen == now || !needs_another_address(skb, flow, number, packet, v4)))
		return false;
	end(number, READ_ONCE(flow->serial), v4);
	return true;
}

/* Lets an incoming packet follow its flow. `false`: it is of no flow. */
INLINE bool follow_in(struct __sk_buff *skb, const struct packet *packet, enum whose whose, int *verdict, bool v4)
{
	__u32 number = UNLIKELY(whose == TAKEN_OUT) ? flow_of_taken(&packet->tuple, v4) :
						      flow_of_arrived(&packet->tuple, v4);
	struct flow *flow = flow_at(number);
	enum direction direction;
	struct tuple to;
	__u32 now, serial;

	if (!flow)
		return false;
	serial = READ_ONCE(flow->serial);
	direction = turn_in(flow, &packet->tuple, &to, v4);
	if (direction == NOWHERE)
		return false;
	if (must_wait(packet)) {
		*verdict = SHOT;
		return true;
	}
	if (direction == TO_BACKEND) {
		now = seconds();
		if (UNLIKELY(ends(skb, flow, number, packet, now, v4)))
			return false;
		if (UNLIKELY(flow->seen != now)) {
			note_silence(flow, number);
			note_client(skb, flow, packet, now);
			note_bridge_of(skb);
		}
		if (packet->part != LATER_FRAGMENT)
			hear_client(flow, packet);
	}
	mark_for_firewall(skb);
	if (UNLIKELY(is_wrapped(flow)))
		*verdict = note_passage(packet, number, serial, direction, false) == MAY_PASS ? WRAPS : SHOT;
	else if (takes_shortcut(flow))
		*verdict = note_passage(packet, number, serial, direction, is_known_there(flow, packet, direction));
	else
		*verdict = write_in(skb, packet, &to, v4);
	return true;
}

/* Notes what the next steps have to know of a packet that may be a new client's. */
INLINE int note_arrival(const struct __sk_buff *skb, const struct packet *packet)
{
	struct arrival *arrival = the_arrival();

	if (!arrival)
		return NEXT;
	arrival->packet = *packet;
	arrival->device = skb->ifindex;
	return ARRIVES;
}

INLINE int come(struct __sk_buff *skb, enum whose whose, bool v4)
{
	struct packet packet = {};
	int verdict = IS_LEFT_ALONE;

	if (!parse(skb, &packet, v4))
		return IS_LEFT_ALONE;
	if (UNLIKELY(is_icmp(&packet, v4)))
		return IS_ERROR;
	if (!know_ports(skb, &packet, LEG_IN, v4))
		return IS_LEFT_ALONE;
	if (whose == UNKNOWN && !may_be_ours(packet.tuple.destination.address, packet.tuple.destination.port,
					     packet.tuple.source.port, v4))
		return IS_LEFT_ALONE;
	if (UNLIKELY(packet.part == FIRST_FRAGMENT))
		remember_fragment(&packet, LEG_IN);
	if (LIKELY(follow_in(skb, &packet, whose, &verdict, v4)) || packet.part == LATER_FRAGMENT)
		return verdict;
	return note_arrival(skb, &packet);
}

#endif

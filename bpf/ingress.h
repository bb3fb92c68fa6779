/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ingress: the flow of a packet that arrives from a client or from a backend on another node.
 *
 * Owns: the decision whether a packet follows its flow, or ends it. Reads: `flow_table`, `entries4/6`, the frontends
 * and lists. Writes: the packet, the scratch map, the flow; it ends flows.
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

/* As nat_or_drop(), at ingress. */
INLINE int nat_ingress(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, bool v4)
{
	int verdict = nat_or_drop(skb, packet, to, v4);

	if (verdict == TC_ACT_UNSPEC)
		mark_translated(skb);
	return verdict;
}

/*
 * Whether the frontend of a flow is gone, or leads to other backends. For a new connection the frontend's list decides.
 * For a client whose backend replies directly it is whether the backend serves, until the client has sent FIN: such a
 * backend cannot show here that a connection lives.
 */
INLINE bool is_frontend_moved(__u32 number, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct flow *flow = get_flow(number);
	struct lb_request request = {};
	struct port *port;

	if (!flow || !scratch)
		return false;
	if (!find_flow_frontend(&request, number, v4))
		return true;
	port = lookup_port(&request);
	if (!port)
		return true;
	set_endpoint(&request.backend, flow->backend, flow->backend_port);
	scratch->wanted_backend = request.backend;
	if (UNLIKELY(is_encapsulated(flow)) && !is_closed_by_client(flow) && is_member(&request, SCOPE_SERVING))
		return false;
	return !is_in_list(scratch, &request, SCOPE_CLUSTER, READ_ONCE(port->cluster), v4) &&
	       !is_in_list(scratch, &request, SCOPE_LOCAL, READ_ONCE(port->local), v4);
}

GLOBAL int is_frontend_moved4(__u32 number)
{
	return is_frontend_moved(number, true);
}

GLOBAL int is_frontend_moved6(__u32 number)
{
	return is_frontend_moved(number, false);
}

/* Whether a client opens a new connection with the tuple of a closed one. */
INLINE bool reopens(const struct flow *flow, const struct packet *packet)
{
	return is_syn(flow, packet) && is_closed(flow);
}

/*
 * Whether a client has had no reply, or has reset what it never agreed to. A live backend replies at once, also to a
 * forged SYN on a running connection: it reports that it knows the connection. So a flow without a reply in the last
 * second has no connection that could be cut. If the backend replies directly, a client that has sent FIN and been
 * silent since expects no reply.
 */
INLINE bool has_no_reply(const struct flow *flow, __u32 now)
{
	return (flow->state == FLOW_OPENING &&
		(!(flow->backend_flags & FLOW_SYN_SEEN) || flow->client_flags & FLOW_RST_SEEN)) ||
	       (flow->unacked && flow->seen != now) ||
	       (is_closed_by_client(flow) && idle_time(flow, now) > LIFE_UNDER_PRESSURE);
}

/*
 * Whether a client opens a new connection with the tuple of one whose backend is silent, and the frontend leads to
 * other backends now.
 */
INLINE bool reopens_elsewhere(const struct flow *flow, __u32 number, const struct packet *packet, __u32 now, bool v4)
{
	return is_syn(flow, packet) && has_no_reply(flow, now) &&
	       (v4 ? is_frontend_moved4(number) : is_frontend_moved6(number));
}

/* Whether the client's packet in the scratch map may not follow its flow any more. */
INLINE bool is_stale(struct __sk_buff *skb, __u32 number, bool v4)
{
	const struct scratch *scratch = get_scratch();
	const struct flow *flow = get_flow(number);
	__u32 now = seconds();

	if (!scratch || !flow)
		return false;
	return is_encap_disabled(skb, flow) || has_expired(flow, now) || reopens(flow, &scratch->packet) ||
	       is_udp_backend_gone(flow, number, v4) || reopens_elsewhere(flow, number, &scratch->packet, now, v4) ||
	       (flow->seen != now && needs_other_snat_address(skb, flow, number, &scratch->packet, v4));
}

GLOBAL int is_stale4(struct __sk_buff *skb, __u32 number)
{
	return is_stale(skb, number, true);
}

GLOBAL int is_stale6(struct __sk_buff *skb, __u32 number)
{
	return is_stale(skb, number, false);
}

/*
 * Whether a client's packet may not follow its flow any more. If so, it ends the flow. The packets of one second are
 * alike, so most of them cost two comparisons.
 */
INLINE bool end_stale_flow(struct __sk_buff *skb, struct flow *flow, __u32 number, __u32 now, bool v4)
{
	if (LIKELY(flow->seen == now && !is_reset(flow) && !has_both_fins(flow)) && !is_encap_disabled(skb, flow))
		return false;
	if (!(v4 ? is_stale4(skb, number) : is_stale6(skb, number)))
		return false;
	end_flow(number, READ_ONCE(flow->serial), v4);
	return true;
}

/* Makes an ingress packet follow its flow. `false`: the packet has none. */
INLINE bool follow_ingress(struct __sk_buff *skb, const struct packet *packet, enum ownership ownership,
			   enum step *next, bool v4)
{
	__u32 number = has_dsr_from && UNLIKELY(ownership == DECAPSULATED) ? get_decap_flow(&packet->tuple, v4) :
							     find_ingress_flow(&packet->tuple, v4);
	struct flow *flow = get_flow(number);
	enum direction direction;
	struct tuple to;
	__u32 now, serial;

	if (!flow)
		return false;
	serial = READ_ONCE(flow->serial);
	direction = translate_ingress(flow, &packet->tuple, &to, v4);
	if (direction == NO_DIRECTION)
		return false;
	if (must_wait_for_table(packet)) {
		*next = STEP_DROP;
		return true;
	}
	if (direction == TO_BACKEND) {
		now = seconds();
		if (UNLIKELY(end_stale_flow(skb, flow, number, now, v4)))
			return false;
		if (UNLIKELY(flow->seen != now)) {
			note_silent_backend(flow, number);
			note_client_packet(skb, flow, packet, now);
			note_ingress_bridge(skb);
		}
		if (packet->part != LATER_FRAGMENT)
			track_client(flow, packet);
	}
	set_forward_mark(skb);
	if (UNLIKELY(is_encapsulated(flow)))
		*next = has_dsr_from && save_fast_path(number, serial, direction, false) == STEP_FAST_PATH ?
				STEP_ENCAP :
				STEP_DROP;
	else if (has_fast_path(flow))
		*next = save_fast_path(number, serial, direction, may_skip_egress(flow, packet, direction));
	else
		*next = finish(nat_ingress(skb, packet, &to, v4));
	return true;
}

INLINE enum step ingress_lookup(struct __sk_buff *skb, enum ownership ownership, bool v4)
{
	int result = v4 ? parse_packet4(skb, ENTRY_WIRE) : parse_packet6(skb, ENTRY_WIRE);
	struct scratch *scratch = get_scratch();
	enum step next = STEP_NOT_OURS;
	const struct packet *packet;

	if (result == PARSE_ICMP)
		return STEP_ICMP_ERROR;
	if (result != PARSE_OK || !scratch)
		return STEP_NOT_OURS;
	packet = &scratch->packet;
	if (ownership == UNPARSED && !may_be_ours(packet->tuple.destination.address, packet->tuple.destination.port,
						  packet->tuple.source.port, v4))
		return STEP_NOT_OURS;
	if (UNLIKELY(packet->part == FIRST_FRAGMENT))
		save_fragment(packet, ENTRY_WIRE);
	if (LIKELY(follow_ingress(skb, packet, ownership, &next, v4)))
		return next;
	if (UNLIKELY(packet->part == LATER_FRAGMENT)) {
		if ((v4 ? find_dialled_target4() : find_dialled_target6()) != TARGET_NONE)
			save_unknown_segment(true);
		return next;
	}
	scratch->device = skb->ifindex;
	return STEP_SELECT_BACKEND;
}

#endif

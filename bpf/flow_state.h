/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The state of a flow: what client and backend have sent, whether a reply is due, and whether the backend is gone.
 *
 * Owns: the state machine of TCP, SCTP and UDP flows, and the search of a backend in a list. Reads: packets, frontends,
 * `ports`, the lists, `members`. Writes: the state, the flags, `seen` and `unacked` of a flow, and the scratch map.
 *
 * Any host may send packets in a client's name. So a client's packets decide nothing that the backend could contradict.
 */
#ifndef HOLDFAST_FLOW_STATE_H
#define HOLDFAST_FLOW_STATE_H

#include "conntrack.h"
#include "lb.h"
#include "packet.h"
#include "select_backend.h"

INLINE __u8 seen_flags(__u8 flags)
{
	return (flags & TCP_SYN ? FLOW_SYN_SEEN : 0) | (flags & TCP_FIN ? FLOW_FIN_SEEN : 0) |
	       (flags & TCP_RST ? FLOW_RST_SEEN : 0);
}

/*
 * Notes the second of a flow's last packet, once in a second: a write for each packet would make the CPUs wait for each
 * other. An expired flow stays expired, because the daemon may be ending it.
 */
INLINE void touch_flow(struct flow *flow, __u32 now)
{
	if (UNLIKELY(flow->seen != now && !has_expired(flow, now)))
		flow->seen = now;
}

INLINE void update_seen(__u8 *side_flags, __u8 flags)
{
	__u8 now = seen_flags(flags);
	__u8 before = *side_flags;
	__u8 after = (now & FLOW_RST_SEEN ? before : before & ~FLOW_RST_SEEN) | now;

	if (UNLIKELY(after != before))
		*side_flags = after;
}

/* Clears the end of the former connection, because a new one with the same ports has begun. */
INLINE void clear_ends(__u8 *side_flags)
{
	*side_flags &= ~(FLOW_FIN_SEEN | FLOW_RST_SEEN);
}

INLINE void clear_all_ends(struct flow *flow)
{
	clear_ends(&flow->client_flags);
	clear_ends(&flow->backend_flags);
}

/* Whether a client requests a connection. */
INLINE bool is_syn(const struct flow *flow, const struct packet *packet)
{
	return is_connection_oriented(flow->transport) && (packet->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Whether the backend has to reply to this packet. Over UDP it may have to. */
INLINE bool expects_reply(struct __sk_buff *skb, const struct packet *packet)
{
	if (packet->tuple.transport == IPPROTO_UDP)
		return true;
	if (UNLIKELY(packet->tuple.transport == IPPROTO_SCTP))
		return packet->flags & EXPECTS_REPLY;
	return has_data(skb, packet->ip, packet->transport);
}

/*
 * Notes the first packet of a client in a second. A client without a reply that gives up or opens another connection
 * does not prolong a flow. Data is looked for once in a second: a client without a reply repeats it.
 */
INLINE void note_client_packet(struct __sk_buff *skb, struct flow *flow, const struct packet *packet, __u32 now)
{
	if (flow->state == FLOW_OPEN && flow->unacked && packet->flags & (TCP_SYN | TCP_RST))
		return;
	touch_flow(flow, now);
	if (packet->part == WHOLE && !flow->unacked && !is_encapsulated(flow) && expects_reply(skb, packet))
		flow->unacked = UNACKED_DATA;
}

/*
 * Tracks a client whose backend replies directly. A connection counts as established when the client acknowledges
 * something, and a UDP conversation when it is more than one query: nothing more is visible here. A SYN on an
 * established connection goes to the backend, which decides. If the client sends nothing else afterwards, the backend
 * may be gone. If the client goes on, its connection lives, and earlier ends are cleared.
 */
INLINE void track_client_one_way(struct flow *flow, const struct packet *packet)
{
	if (flow->transport == IPPROTO_UDP) {
		if (flow->state == FLOW_OPENING && is_stream(flow))
			flow->state = FLOW_OPEN;
		return;
	}
	if (flow->state == FLOW_OPEN && is_syn(flow, packet)) {
		flow->unacked = UNACKED_SYN;
		return;
	}
	if (UNLIKELY(flow->unacked) && !(packet->flags & TCP_RST)) {
		flow->unacked = UNACKED_NOTHING;
		clear_ends(&flow->client_flags);
	}
	update_seen(&flow->client_flags, packet->flags);
	if (flow->state == FLOW_OPENING && (packet->flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK)
		flow->state = FLOW_OPEN;
}

/* Tracks what a client sends. A SYN of another connection does not change the established one. */
INLINE void track_client(struct flow *flow, const struct packet *packet)
{
	if (has_dsr_from && UNLIKELY(is_encapsulated(flow)))
		return track_client_one_way(flow, packet);
	if (!is_connection_oriented(flow->transport))
		return;
	if (UNLIKELY(flow->state == FLOW_OPEN && is_syn(flow, packet))) {
		flow->unacked = UNACKED_SYN;
		return;
	}
	update_seen(&flow->client_flags, packet->flags);
	if (UNLIKELY(flow->state == FLOW_OPENING && flow->backend_flags & FLOW_SYN_SEEN &&
		     (packet->flags & (TCP_ACK | TCP_RST)) == TCP_ACK) &&
	    flow->transport == IPPROTO_TCP)
		flow->state = FLOW_OPEN;
}

/*
 * Tracks what a backend sends over SCTP. It replies to each INIT, also to a forged one on an existing association, and
 * does not repeat that reply. So the reply to an INIT changes nothing. Everything else follows the client's cookie.
 */
INLINE void track_sctp_backend(struct flow *flow, const struct packet *packet)
{
	update_seen(&flow->backend_flags, packet->flags);
	if (flow->state == FLOW_OPENING && (packet->flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK)
		flow->state = FLOW_OPEN;
}

/*
 * Tracks what a backend sends. A TCP backend that repeats its SYN has not been acknowledged, whatever came in the
 * client's name. A client that receives the SYN acknowledges it again. Such a backend has no older connection, so
 * earlier ends are cleared. If the backend itself has closed the connection, a new connection has another flow, and a
 * SYN here is late.
 */
INLINE void track_backend(struct flow *flow, const struct packet *packet)
{
	if (UNLIKELY(flow->unacked))
		flow->unacked = UNACKED_NOTHING;
	if (flow->transport == IPPROTO_TCP) {
		if (UNLIKELY(packet->flags & TCP_SYN && flow->state == FLOW_OPEN)) {
			if (!is_closed(flow))
				clear_all_ends(flow);
			flow->state = FLOW_OPENING;
		}
		update_seen(&flow->backend_flags, packet->flags);
		return;
	}
	if (UNLIKELY(flow->transport == IPPROTO_SCTP))
		return track_sctp_backend(flow, packet);
	if (UNLIKELY(flow->backend_flags & FLOW_UNREACHABLE_SEEN))
		flow->backend_flags &= ~FLOW_UNREACHABLE_SEEN;
	if (UNLIKELY(flow->state == FLOW_OPENING))
		flow->state = FLOW_OPEN;
}

/*
 * --- Whether a backend is in a list. ---
 *
 * A table is unsorted, and its backends are members. Every other list is sorted. The scratch map holds the search
 * range, and each step is a global function: older verifiers would follow every step from every state before it.
 */

/* No list has more than one slot left after so many halvings. */
#define LIST_SEARCH_STEPS (WORD_FLAGS_AT - WORD_COUNT_AT + 1)

/* The result of one search step. */
enum list_search { LIST_FOUND, LIST_MISSING, LIST_UNDECIDED };

/* The order of two endpoints so far. Both are 0 or 1: a branch in each step would multiply the verifier's work. */
struct order {
	__u64 is_before;
	__u64 is_same;
};

/* Goes on with the next number of both endpoints, as lists sort them: by address, then by port. */
INLINE void order_by(struct order *order, __u64 one, __u64 other)
{
	order->is_before |= order->is_same & (one - other) >> 63;
	order->is_same &= ((one ^ other) - 1) >> 63;
	/* The barrier stops clang 21 from loading all numbers first: it would keep them on the stack of 512 bytes. */
	asm volatile("" : "+r"(order->is_before), "+r"(order->is_same) : : "memory");
}

/*
 * Orders a slot and the searched backend. `false`: the slot is empty. It compares in place, because calls share 512
 * bytes of stack.
 */
INLINE bool order_slot(struct order *order, __u32 at, const struct endpoint *wanted, bool v4)
{
	__u16 port;

	if (v4) {
		struct slot4 *slot = bpf_map_lookup_elem(&backends4, &at);

		if (UNLIKELY(!slot))
			return false;
		port = READ_ONCE(slot->port);
		order_by(order, bpf_ntohl(slot->address), bpf_ntohl(wanted->address[3]));
	} else {
		struct slot6 *slot = bpf_map_lookup_elem(&backends6, &at);

		if (UNLIKELY(!slot))
			return false;
		port = READ_ONCE(slot->port);
		for (int word = 0; word < 4; word++)
			order_by(order, bpf_ntohl(slot->address[word]), bpf_ntohl(wanted->address[word]));
	}
	order_by(order, bpf_ntohs(port), bpf_ntohs(wanted->port));
	return port;
}

/*
 * Compares the middle slot, and keeps the half that may hold the backend. The daemon may be writing the list: at an
 * empty slot the backend counts as found.
 */
INLINE enum list_search search_step(bool v4)
{
	struct scratch *scratch = get_scratch();
	struct order order = { .is_same = 1 };
	__u32 half, before;

	if (!scratch)
		return LIST_FOUND;
	if (!scratch->remaining)
		return LIST_MISSING;
	half = scratch->remaining / 2;
	if (!order_slot(&order, scratch->search_first + half, &scratch->wanted_backend, v4) || order.is_same)
		return LIST_FOUND;
	before = -(__u32)order.is_before;
	scratch->search_first += (half + 1) & before;
	scratch->remaining = (half & ~before) | ((scratch->remaining - half - 1) & before);
	return LIST_UNDECIDED;
}

GLOBAL int search_step4(void)
{
	return search_step(true);
}

GLOBAL int search_step6(void)
{
	return search_step(false);
}

INLINE bool is_in_sorted_list(struct scratch *scratch, __u64 word, bool v4)
{
	/* One return: for a second one clang 21 compares in a register that was never written. */
	int result = LIST_UNDECIDED;

	scratch->search_first = word_base(word);
	scratch->remaining = word_count(word);
	for (int step = 0; step < LIST_SEARCH_STEPS && result == LIST_UNDECIDED; step++)
		result = v4 ? search_step4() : search_step6();
	return result == LIST_FOUND;
}

/* Whether the request's backend, which is the searched one, is in the list of that scope. */
INLINE bool is_in_list(struct scratch *scratch, const struct lb_request *request, __u32 scope, __u64 word, bool v4)
{
	if (word_flags(word) & WORD_TABLE)
		return is_member(request, scope);
	return is_in_sorted_list(scratch, word, v4);
}

/* --- Replies. --- */

/*
 * Whether the backend of a flow serves no more. The port that the frontend has now decides: the flow's port index may
 * belong to another port by now.
 */
INLINE bool is_backend_gone(__u32 number, bool v4)
{
	struct flow *flow = get_flow(number);
	struct lb_request request = {};
	struct port *port;
	__u64 word;

	if (!flow)
		return false;
	if (!find_flow_frontend(&request, number, v4))
		return true;
	set_endpoint(&request.backend, flow->backend, flow->backend_port);
	if (is_member(&request, SCOPE_SERVING))
		return false;
	port = lookup_port(&request);
	word = port ? READ_ONCE(port->cluster) : 0;
	return !word_count(word) || word_flags(word) & WORD_MEMBERS;
}

GLOBAL int is_backend_gone4(__u32 number)
{
	return is_backend_gone(number, true);
}

GLOBAL int is_backend_gone6(__u32 number)
{
	return is_backend_gone(number, false);
}

/*
 * Whether the client has to leave its backend. Over UDP it does so at once. Of a connection only the two ends know
 * whether it is done.
 */
INLINE bool is_udp_backend_gone(const struct flow *flow, __u32 number, bool v4)
{
	return flow->transport == IPPROTO_UDP && (v4 ? is_backend_gone4(number) : is_backend_gone6(number));
}

/*
 * Notes a reply. A late reply is passed on, but does not revive its flow, because the daemon may be ending it. A reply
 * of a backend that serves no more is passed on, too, but does not keep the client there.
 */
INLINE void note_reply(struct flow *flow, __u32 number, const struct packet *packet, bool v4)
{
	__u32 now = seconds();
	bool is_first = flow->seen != now;

	if (UNLIKELY(is_first && has_expired(flow, now)))
		return;
	if (packet->part != LATER_FRAGMENT)
		track_backend(flow, packet);
	if (UNLIKELY(is_first && !is_udp_backend_gone(flow, number, v4)))
		flow->seen = now;
}

/* Whether the client has affinity to this backend, and is not saved yet. */
INLINE bool needs_client_save(const struct flow *flow)
{
	return flow->client_flags & (FLOW_AFFINITY_CLUSTER | FLOW_AFFINITY_LOCAL) &&
	       !(flow->backend_flags & FLOW_CLIENT_SAVED);
}

/*
 * Whether this goes to a client that has requested a new connection with the tuple of an old one. The backend has not
 * replied since: one that knows the old connection replies at once that it lives.
 */
INLINE bool awaits_reply_to_syn(const struct flow *flow, enum direction direction)
{
	return direction == TO_CLIENT && flow->transport == IPPROTO_TCP && flow->state == FLOW_OPEN &&
	       flow->unacked == UNACKED_SYN;
}

/* Whether a backend accepts a connection, or may refuse one that the client has requested on an established one. */
INLINE bool may_reply_to_syn(const struct flow *flow, const struct packet *packet)
{
	return packet->flags & TCP_SYN || (packet->flags & TCP_RST && flow->unacked == UNACKED_SYN);
}

/*
 * Whether the egress program would change nothing in this packet of a fast path. It decides about a backend's reply to
 * a SYN, and about a client that is still to be saved.
 */
INLINE bool may_skip_egress(const struct flow *flow, const struct packet *packet, enum direction direction)
{
	return direction == TO_BACKEND || !(may_reply_to_syn(flow, packet) || needs_client_save(flow));
}

/* Whether the packet is a reply to the flow's own SNAT port. */
INLINE bool is_snat_reply(const struct flow *flow, enum direction direction)
{
	return flow->nat_port && direction == TO_CLIENT;
}

/*
 * Whether the packet may belong to another connection: the same two hosts may have one without a frontend, or the
 * client's first packet was forged. Until the backend agrees, only a SYN or RST belongs to the flow.
 */
INLINE bool may_be_foreign(const struct flow *flow, const struct packet *packet, enum direction direction)
{
	return is_connection_oriented(flow->transport) && !(flow->backend_flags & FLOW_SYN_SEEN) &&
	       !(packet->flags & (TCP_SYN | TCP_RST)) && !is_snat_reply(flow, direction);
}

#endif

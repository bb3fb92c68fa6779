/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What packets say of their flow: how far client and backend have come, and whether the one waits for the other.
 *
 * Any host may send packets in a client's name. So what they say decides nothing that the backend could contradict.
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
 * Notes the second of a flow's last packet, if that is another one than before: a write for each packet would have the
 * CPUs wait for each other. A flow that has expired stays so: it may be about to be taken away.
 */
INLINE void touch_flow(struct flow *flow, __u32 now)
{
	if (UNLIKELY(flow->seen != now && !has_expired(flow, now)))
		flow->seen = now;
}

INLINE void update_seen(__u8 *heard, __u8 flags)
{
	__u8 now = seen_flags(flags);
	__u8 before = *heard;
	__u8 after = (now & FLOW_RST_SEEN ? before : before & ~FLOW_RST_SEEN) | now;

	if (UNLIKELY(after != before))
		*heard = after;
}

/*
 * Forgets that the former connection of a flow has ended, because another one has begun by the same ports: the ends of
 * the one are none of the other.
 */
INLINE void clear_ends(__u8 *heard)
{
	*heard &= ~(FLOW_FIN_SEEN | FLOW_RST_SEEN);
}

INLINE void clear_all_ends(struct flow *flow)
{
	clear_ends(&flow->client_flags);
	clear_ends(&flow->backend_flags);
}

/* Whether a client asks for a connection. */
INLINE bool is_syn(const struct flow *flow, const struct packet *packet)
{
	return is_connection_oriented(flow->transport) && (packet->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Whether the backend has to answer this packet of its client; over UDP it may have to. */
INLINE bool expects_reply(struct __sk_buff *skb, const struct packet *packet)
{
	if (packet->tuple.transport == IPPROTO_UDP)
		return true;
	if (UNLIKELY(packet->tuple.transport == IPPROTO_SCTP))
		return packet->flags & EXPECTS_REPLY;
	return has_data(skb, packet->ip, packet->transport);
}

/*
 * Notes the first packet of a client in a second. A client that has had no answer, and gives up or asks for another
 * connection, gives no new life to a flow. Whether there is data is looked at once a second: a client that is not heard
 * says it again.
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
 * Notes what the client says, where the backend answers past this node. A connection counts as agreed when the client
 * acknowledges something, and a conversation once it is more than a question: that is all that can be known here. A SYN
 * on a connection that is agreed goes to the backend, which knows better. Where the client says nothing else after it,
 * the backend may be gone: a client that goes on, or that the backend has answered, says more. It has a connection
 * then, whatever has ended before.
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

/*
 * Notes what a client says of its connection. A SYN that begins another connection says nothing of the one that is
 * there.
 */
INLINE void track_client(struct flow *flow, const struct packet *packet)
{
	if (UNLIKELY(is_encapsulated(flow)))
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
 * Notes what a backend says by SCTP. It answers each INIT, also one in the name of a client with which it has an
 * association, and does not repeat that answer: so the answer to an INIT says nothing of the flow. Whatever else it
 * says, it says to a client that has shown its cookie.
 */
INLINE void track_sctp_backend(struct flow *flow, const struct packet *packet)
{
	update_seen(&flow->backend_flags, packet->flags);
	if (flow->state == FLOW_OPENING && (packet->flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK)
		flow->state = FLOW_OPEN;
}

/*
 * Notes what a backend says of its connection. A backend that says SYN again by TCP has not been acknowledged, whatever
 * was sent in the client's name. A client that has heard the SYN acknowledges it again. Nor has such a backend a former
 * connection that could go on, and what was heard of the end of that one is forgotten. Where the backend itself has
 * said that it is over, a client that begins anew has another flow, and a SYN here is a late one.
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
 * Whether a backend is in a list. A table is in no order, and its backends are members. Every other list is sorted: how
 * far the search has come stands in a map, and each step is on its own, because older verifiers would follow every step
 * from every state of those before it.
 */

/* After so many halvings nothing is left of any list. */
#define LIST_SEARCH_STEPS (WORD_FLAGS_AT - WORD_COUNT_AT + 1)

/* What one step of a search says. */
enum list_search { LIST_FOUND, LIST_MISSING, LIST_UNDECIDED };

/*
 * All ones if the one comes before the other as lists are sorted: by address, then by port. Without branches, each of
 * which the verifier would follow in each step of a search.
 */
INLINE __u32 orders_before(const struct endpoint *one, const struct endpoint *other, __u32 *is_same)
{
	__u64 before = 0, same = 1, a, b;

	for (int at = 0; at < 4; at++) {
		a = bpf_ntohl(one->address[at]);
		b = bpf_ntohl(other->address[at]);
		before |= same & (a - b) >> 63;
		same &= ((a ^ b) - 1) >> 63;
	}
	a = bpf_ntohs(one->port);
	b = bpf_ntohs(other->port);
	before |= same & (a - b) >> 63;
	*is_same = same & ((a ^ b) - 1) >> 63;
	return -(__u32)before;
}

/*
 * Compares the middle of what is left of the list, and keeps the half in which the backend may be. The daemon may be
 * writing the list meanwhile: where a slot is empty, the backend counts as listed.
 */
INLINE enum list_search search_step(bool v4)
{
	struct scratch *scratch = get_scratch();
	struct lb_request request = { .v4 = v4 };
	struct endpoint endpoint = {};
	__u32 half, before, is_same;

	if (!scratch)
		return LIST_FOUND;
	if (!scratch->left)
		return LIST_MISSING;
	half = scratch->left / 2;
	if (!read_slot(&request, scratch->first + half, &endpoint))
		return LIST_FOUND;
	before = orders_before(&endpoint, &scratch->searched, &is_same);
	if (is_same)
		return LIST_FOUND;
	scratch->first += (half + 1) & before;
	scratch->left = (half & ~before) | ((scratch->left - half - 1) & before);
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
	int result;

	scratch->first = word_base(word);
	scratch->left = word_count(word);
	for (int step = 0; step < LIST_SEARCH_STEPS; step++) {
		result = v4 ? search_step4() : search_step6();
		if (result != LIST_UNDECIDED)
			return result == LIST_FOUND;
	}
	return false;
}

/* Whether the backend of a dial, which is the one that is sought, is in the list of that scope. */
INLINE bool is_in_list(struct scratch *scratch, const struct lb_request *request, __u32 scope, __u64 word, bool v4)
{
	if (word_flags(word) & WORD_TABLE)
		return is_member(request, scope);
	return is_in_sorted_list(scratch, word, v4);
}

/* What a backend's answer says of its flow, and whether it is the flow's at all. */

/*
 * Whether the backend of a flow serves no more. What counts is the port that the frontend leads to now: the port index
 * from when the flow began may be another port's.
 */
INLINE bool is_backend_gone(__u32 number, bool v4)
{
	struct flow *flow = get_flow(number);
	struct lb_request request = {};
	struct tuple tuple;
	struct port *port;
	__u64 word;

	if (!flow)
		return false;
	original_tuple(&tuple, flow);
	set_request(&request, &tuple, v4);
	if (!find_frontend(&request))
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
 * Whether the client is to leave its backend, because that serves no more. Over UDP it leaves at once; of a connection
 * only the two can tell whether they are done.
 */
INLINE bool is_udp_backend_gone(const struct flow *flow, __u32 number, bool v4)
{
	return flow->transport == IPPROTO_UDP && (v4 ? is_backend_gone4(number) : is_backend_gone6(number));
}

/*
 * Notes what an answer says of its flow. A late answer is passed on, but revives nothing: the flow may be about to be
 * taken away. An answer of a backend that serves no more is passed on too, and keeps no client with that backend.
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

/* Whether a client is to come back to this backend, and is not remembered with it yet. */
INLINE bool needs_client_save(const struct flow *flow)
{
	return flow->client_flags & (FLOW_AFFINITY_CLUSTER | FLOW_AFFINITY_LOCAL) &&
	       !(flow->backend_flags & FLOW_CLIENT_SAVED);
}

/*
 * Whether the program at the other device would have nothing to look at in this packet of a flow that takes the
 * shortcut. Where a backend agrees to a connection, or a client is still to be remembered, that program decides.
 */
INLINE bool may_skip_egress(const struct flow *flow, const struct packet *packet, enum direction direction)
{
	return direction == TO_BACKEND || !(packet->flags & TCP_SYN || needs_client_save(flow));
}

/* Whether the packet came back from another node, and so to a port that is the flow's alone. */
INLINE bool is_snat_reply(const struct flow *flow, enum direction direction)
{
	return flow->nat_port && direction == TO_CLIENT;
}

/*
 * Whether the packet may be of something else than the flow: the same two may have a connection without any frontend,
 * and a stranger may have sent the first packet in the client's name. Until the backend agrees, only what begins a
 * connection, or refuses it, is of the flow.
 */
INLINE bool may_be_foreign(const struct flow *flow, const struct packet *packet, enum direction direction)
{
	return is_connection_oriented(flow->transport) && !(flow->backend_flags & FLOW_SYN_SEEN) &&
	       !(packet->flags & (TCP_SYN | TCP_RST)) && !is_snat_reply(flow, direction);
}

#endif

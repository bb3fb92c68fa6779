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

INLINE __u8 heard_in(__u8 flags)
{
	return (flags & TCP_SYN ? HEARD_SYN : 0) | (flags & TCP_FIN ? HEARD_FIN : 0) | (flags & TCP_RST ? HEARD_RST : 0);
}

/*
 * Notes the second of a flow's last packet, if that is another one than before: a write for each packet would have the
 * CPUs wait for each other. A flow that has expired stays so: it may be about to be taken away.
 */
INLINE void note_seen(struct flow *flow, __u32 now)
{
	if (UNLIKELY(flow->seen != now && !has_expired(flow, now)))
		flow->seen = now;
}

INLINE void hear(__u8 *heard, __u8 flags)
{
	__u8 now = heard_in(flags);
	__u8 before = *heard;
	__u8 after = (now & HEARD_RST ? before : before & ~HEARD_RST) | now;

	if (UNLIKELY(after != before))
		*heard = after;
}

/*
 * Forgets that the former connection of a flow has ended, because another one has begun by the same ports: the ends of
 * the one are none of the other.
 */
INLINE void forget_ends(__u8 *heard)
{
	*heard &= ~(HEARD_FIN | HEARD_RST);
}

INLINE void forget_all_ends(struct flow *flow)
{
	forget_ends(&flow->of_client);
	forget_ends(&flow->of_backend);
}

/* Whether a client asks for a connection. */
INLINE bool is_syn(const struct flow *flow, const struct packet *packet)
{
	return makes_connections(flow->transport) && (packet->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Whether the backend has to answer this packet of its client; over UDP it may have to. */
INLINE bool asks(struct __sk_buff *skb, const struct packet *packet)
{
	if (packet->tuple.transport == IPPROTO_UDP)
		return true;
	if (UNLIKELY(packet->tuple.transport == IPPROTO_SCTP))
		return packet->flags & ASKS;
	return has_data(skb, packet->ip, packet->transport);
}

/*
 * Notes the first packet of a client in a second. A client that has had no answer, and gives up or asks for another
 * connection, gives no new life to a flow. Whether there is data is looked at once a second: a client that is not heard
 * says it again.
 */
INLINE void note_client(struct __sk_buff *skb, struct flow *flow, const struct packet *packet, __u32 now)
{
	if (flow->state == FLOW_OPEN && flow->waits && packet->flags & (TCP_SYN | TCP_RST))
		return;
	note_seen(flow, now);
	if (packet->part == WHOLE && !flow->waits && !is_wrapped(flow) && asks(skb, packet))
		flow->waits = WAITS_FOR_ANSWER;
}

/*
 * Notes what the client says, where the backend answers past this node. A connection counts as agreed when the client
 * acknowledges something, and a conversation once it is more than a question: that is all that can be known here. A SYN
 * on a connection that is agreed goes to the backend, which knows better. Where the client says nothing else after it,
 * the backend may be gone: a client that goes on, or that the backend has answered, says more. It has a connection
 * then, whatever has ended before.
 */
INLINE void hear_alone(struct flow *flow, const struct packet *packet)
{
	if (flow->transport == IPPROTO_UDP) {
		if (flow->state == FLOW_OPENING && is_stream(flow))
			flow->state = FLOW_OPEN;
		return;
	}
	if (flow->state == FLOW_OPEN && is_syn(flow, packet)) {
		flow->waits = WAITS_FOR_SYN;
		return;
	}
	if (UNLIKELY(flow->waits) && !(packet->flags & TCP_RST)) {
		flow->waits = WAITS_FOR_NOTHING;
		forget_ends(&flow->of_client);
	}
	hear(&flow->of_client, packet->flags);
	if (flow->state == FLOW_OPENING && (packet->flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK)
		flow->state = FLOW_OPEN;
}

/*
 * Notes what a client says of its connection. A SYN that begins another connection says nothing of the one that is
 * there.
 */
INLINE void hear_client(struct flow *flow, const struct packet *packet)
{
	if (UNLIKELY(is_wrapped(flow)))
		return hear_alone(flow, packet);
	if (!makes_connections(flow->transport))
		return;
	if (UNLIKELY(flow->state == FLOW_OPEN && is_syn(flow, packet))) {
		flow->waits = WAITS_FOR_SYN;
		return;
	}
	hear(&flow->of_client, packet->flags);
	if (UNLIKELY(flow->state == FLOW_OPENING && flow->of_backend & HEARD_SYN &&
		     (packet->flags & (TCP_ACK | TCP_RST)) == TCP_ACK) &&
	    flow->transport == IPPROTO_TCP)
		flow->state = FLOW_OPEN;
}

/*
 * Notes what a backend says by SCTP. It answers each INIT, also one in the name of a client with which it has an
 * association, and does not repeat that answer: so the answer to an INIT says nothing of the flow. Whatever else it
 * says, it says to a client that has shown its cookie.
 */
INLINE void hear_associated(struct flow *flow, const struct packet *packet)
{
	hear(&flow->of_backend, packet->flags);
	if (flow->state == FLOW_OPENING && (packet->flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK)
		flow->state = FLOW_OPEN;
}

/*
 * Notes what a backend says of its connection. A backend that says SYN again by TCP has not been acknowledged, whatever
 * was sent in the client's name. A client that has heard the SYN acknowledges it again. Nor has such a backend a former
 * connection that could go on, and what was heard of the end of that one is forgotten. Where the backend itself has
 * said that it is over, a client that begins anew has another flow, and a SYN here is a late one.
 */
INLINE void hear_backend(struct flow *flow, const struct packet *packet)
{
	if (UNLIKELY(flow->waits))
		flow->waits = WAITS_FOR_NOTHING;
	if (flow->transport == IPPROTO_TCP) {
		if (UNLIKELY(packet->flags & TCP_SYN && flow->state == FLOW_OPEN)) {
			if (!is_over(flow))
				forget_all_ends(flow);
			flow->state = FLOW_OPENING;
		}
		hear(&flow->of_backend, packet->flags);
		return;
	}
	if (UNLIKELY(flow->transport == IPPROTO_SCTP))
		return hear_associated(flow, packet);
	if (UNLIKELY(flow->of_backend & HEARD_REFUSAL))
		flow->of_backend &= ~HEARD_REFUSAL;
	if (UNLIKELY(flow->state == FLOW_OPENING))
		flow->state = FLOW_OPEN;
}

/*
 * Whether a backend is in a list. A table is in no order, and its backends are members. Every other list is sorted: how
 * far the search has come stands in a map, and each step is on its own, because older verifiers would follow every step
 * from every state of those before it.
 */

/* After so many halvings nothing is left of any list. */
#define LIST_HALVES (WORD_FLAGS_AT - WORD_COUNT_AT + 1)

/* What one step of a search says. */
enum listed { IS_LISTED, IS_NOT_LISTED, IS_OPEN };

/*
 * All ones if the one comes before the other as lists are sorted: by address, then by port. Without branches, each of
 * which the verifier would follow in each step of a search.
 */
INLINE __u32 comes_before(const struct place *one, const struct place *other, __u32 *is_same)
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
INLINE enum listed halve(bool v4)
{
	struct arrival *arrival = the_arrival();
	struct dial dial = { .v4 = v4 };
	struct place place = {};
	__u32 half, before, is_same;

	if (!arrival)
		return IS_LISTED;
	if (!arrival->left)
		return IS_NOT_LISTED;
	half = arrival->left / 2;
	if (!read_slot(&dial, arrival->first + half, &place))
		return IS_LISTED;
	before = comes_before(&place, &arrival->sought, &is_same);
	if (is_same)
		return IS_LISTED;
	arrival->first += (half + 1) & before;
	arrival->left = (half & ~before) | ((arrival->left - half - 1) & before);
	return IS_OPEN;
}

ALONE int halve4(void)
{
	return halve(true);
}

ALONE int halve6(void)
{
	return halve(false);
}

INLINE bool is_sorted_in(struct arrival *arrival, __u64 word, bool v4)
{
	int listed;

	arrival->first = word_base(word);
	arrival->left = word_count(word);
	for (int step = 0; step < LIST_HALVES; step++) {
		listed = v4 ? halve4() : halve6();
		if (listed != IS_OPEN)
			return listed == IS_LISTED;
	}
	return false;
}

/* Whether the backend of a dial, which is the one that is sought, is in the list of that scope. */
INLINE bool is_listed(struct arrival *arrival, const struct dial *dial, __u32 scope, __u64 word, bool v4)
{
	if (word_flags(word) & WORD_TABLE)
		return is_member(dial, scope);
	return is_sorted_in(arrival, word, v4);
}

/* What a backend's answer says of its flow, and whether it is the flow's at all. */

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

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What packets say of their flow: how far client and backend have come, and whether the one waits for the other.
 *
 * Any host may send packets in a client's name. So what they say decides nothing that the backend could contradict.
 */
#ifndef HOLDFAST_HEARD_H
#define HOLDFAST_HEARD_H

#include "flow.h"
#include "packet.h"

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

#endif

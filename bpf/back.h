/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a pod of this node answers to a client of a flow that takes the shortcut.
 *
 * A packet that is of no such flow goes on as it is. The program at the device by which the answer leaves looks at all
 * that may end a flow or begin another one, as it does with answers that come through the stack.
 */
#ifndef HOLDFAST_BACK_H
#define HOLDFAST_BACK_H

#include "answered.h"
#include "fragments.h"
#include "glance.h"
#include "shortcut.h"

/* Whether a packet that a pod sends is of no flow that takes the shortcut, by a look at its ports. */
INLINE bool comes_from_nobody4(const struct __sk_buff *skb)
{
	const struct plain4 *packet = plain4(skb);

	return !packet || !may_be_of_flow(packet->source_port, packet->destination_port);
}

INLINE bool comes_from_nobody6(const struct __sk_buff *skb)
{
	const struct plain6 *packet = plain6(skb);

	return !packet || !may_be_of_flow(packet->source_port, packet->destination_port);
}

/* Lets a pod's answer follow its flow. */
INLINE int follow_back(struct __sk_buff *skb, const struct packet *packet, __u32 number, struct flow *flow, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial);
	struct tuple to;

	if (turn_out(flow, &packet->tuple, &to, v4) != TO_CLIENT || !comes_back(flow, skb))
		return NEXT;
	if (must_wait(packet))
		return SHOT;
	if (UNLIKELY(flow->state == FLOW_OPENING) && is_of_others(flow, packet, TO_CLIENT))
		return NEXT;
	return note_passage(packet, number, serial, TO_CLIENT, is_known_there(flow, packet, TO_CLIENT));
}

INLINE int back(struct __sk_buff *skb, bool v4)
{
	struct packet packet = {};
	struct flow *flow;
	__u32 *entry, number;

	if (!parse(skb, &packet, v4) || packet.part != WHOLE || !know_ports(skb, &packet, LEG_THROUGH, v4))
		return NEXT;
	entry = find_entry(&packet.tuple, LEG_THROUGH, v4);
	number = entry ? *entry : 0;
	flow = entry ? flow_at(number) : NULL;
	return flow ? follow_back(skb, &packet, number, flow, v4) : NEXT;
}

#endif

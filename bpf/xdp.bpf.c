// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What needs no packet at the driver: frames of flows with other nodes' backends leave before the kernel makes packets
 * of them, and those of clients that are turned away end there.
 *
 * The program only repeats what the program behind it (packet_in) did with a packet of the same flow, in the same
 * direction, by the same device, on the same CPU, in the same second. It writes nothing but the frame. Whatever that
 * program would note of a packet, or do otherwise with it, it gets: the frame goes on as it is. So all rules are there,
 * and here is only what makes a packet like the one before. For a client without a flow the same rules are asked, of
 * arrival.h, once that program has turned one away.
 */
#include <linux/bpf.h>
#include "answered.h"
#include "early.h"
#include "flow.h"
#include "frame.h"
#include "glance.h"
#include "shortcut.h"
#include "ways.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Whether nothing is to be noted of a further packet of the flow that opens and ends nothing: client and backend have
 * agreed, neither is said to be gone, this second is noted already, and the backend owes no answer.
 */
INLINE bool is_settled(const struct flow *flow, enum direction direction, __u32 now)
{
	if (flow->seen != now || flow->state != FLOW_OPEN || is_closed(flow))
		return false;
	if ((flow->of_client | flow->of_backend) & (HEARD_RST | HEARD_REFUSAL))
		return false;
	return direction == TO_BACKEND || (!flow->waits && !is_to_come_back(flow));
}

/* Whether frames may pass between two devices: a driver sends another one's frame only if it has all it needs. */
INLINE bool may_pass_between(__u32 here, __u32 there)
{
	return here & there & DEVICE_SHORTCUT && here & there & DEVICE_FRAMES;
}

/* How a packet of a flow with another node leaves: as the other side's packet would come, turned round. */
INLINE void leaves_as(struct tuple *left, const struct flow *flow, enum direction direction)
{
	struct tuple other;

	if (direction == TO_BACKEND)
		from_remote(&other, flow);
	else
		from_client(&other, flow);
	turned(left, &other);
}

/*
 * Sends the frame on, also where it leaves by the device by which it came: a veth that is told so by XDP_TX does not
 * wake its other end where that has GRO and no program.
 */
INLINE int send_frame(struct xdp_md *ctx, const struct frame *frame, const struct tuple *left,
		      const struct known_way *way, bool v4)
{
	__u32 here = flags_of(ctx->ingress_ifindex), device = way->device;
	__u32 there = device == ctx->ingress_ifindex ? here : flags_of(device);

	if (!may_pass_between(here, there) || !write_frame(ctx, frame, left, way, v4))
		return XDP_PASS;
	count_packet(COUNT_BY_XDP);
	return bpf_redirect(device, 0);
}

/* Lets a frame follow its flow. The record may become another flow's meanwhile: then its serial is another one. */
INLINE int follow_frame(struct xdp_md *ctx, const struct frame *frame, __u32 number, const struct flow *flow, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial), now = seconds();
	const struct known_way *way;
	enum direction direction;
	struct tuple left;

	direction = turn_in(flow, &frame->tuple, &left, v4);
	if (direction == NOWHERE || !flow->nat_port || !(flow->of_client & TAKES_SHORTCUT) ||
	    !is_settled(flow, direction, now))
		return XDP_PASS;
	way = known_way(number, direction);
	if (!way || !is_way_of(way, number, serial, now, ctx->ingress_ifindex, &frame->passage) ||
	    !is_for_hardware(ctx, way->own))
		return XDP_PASS;
	leaves_as(&left, flow, direction);
	if (READ_ONCE(flow->serial) != serial)
		return XDP_PASS;
	return send_frame(ctx, frame, &left, way, v4);
}

/* ARRIVES: the frame is of no flow, and may be of a client that is turned away. */
INLINE int take_frame(struct xdp_md *ctx, bool v4)
{
	struct frame frame = {};
	const struct flow *flow;
	__u32 *entry, number;

	if (!read_frame(ctx, &frame, v4) ||
	    !may_be_ours(frame.tuple.destination.address, frame.tuple.destination.port, frame.tuple.source.port, v4))
		return XDP_PASS;
	entry = find_entry(&frame.tuple, LEG_IN, v4);
	if (!entry)
		return note_early(ctx, &frame);
	number = *entry;
	flow = flow_at(number);
	return flow && is_to_be_sent(ctx, &frame, v4) ? follow_frame(ctx, &frame, number, flow, v4) : XDP_PASS;
}

/* The steps, for each family. */
#define STEPS(family, v4)                               \
	ALONE int take##family(struct xdp_md *ctx)      \
	{                                               \
		return take_frame(ctx, v4);             \
	}                                               \
	ALONE int turn_away##family(struct xdp_md *ctx) \
	{                                               \
		return turn_away_early(ctx, v4);        \
	}

STEPS(4, true)
STEPS(6, false)

INLINE int meet(struct xdp_md *ctx, bool v4)
{
	int next = v4 ? take4(ctx) : take6(ctx);

	if (next == ARRIVES)
		return v4 ? turn_away4(ctx) : turn_away6(ctx);
	return next;
}

SEC("xdp")
int packet_xdp(struct xdp_md *ctx)
{
	const struct ethhdr *link = piece(ctx, 0, sizeof(*link));

	if (!link)
		return XDP_PASS;
	if (link->h_proto == bpf_htons(ETH_P_IP))
		return meet(ctx, true);
	return link->h_proto == bpf_htons(ETH_P_IPV6) ? meet(ctx, false) : XDP_PASS;
}

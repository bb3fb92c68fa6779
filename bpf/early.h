/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Clients that are turned away at the driver already, as the program behind it would turn them away: those outside of
 * the ranges of sources, and those at frontends without backends that would get no answer. It counts and reports what
 * that program would, so nothing is hidden but the packet.
 *
 * A packet of which there is any flow, or that is not judged here to the end, goes on to that program.
 */
#ifndef HOLDFAST_EARLY_H
#define HOLDFAST_EARLY_H

#include "arrival.h"
#include "arrived.h"
#include "frame.h"
#include "turned_away.h"

/* Whether the frame is for that hardware address. */
INLINE bool is_for_hardware(const struct xdp_md *ctx, const __u8 *address)
{
	const __u16 *to = piece(ctx, 0, ETH_ALEN), *own = (const __u16 *)address;

	return to && !((to[0] ^ own[0]) | (to[1] ^ own[1]) | (to[2] ^ own[2]));
}

/* Whether a client like this one was turned away just now, so that it is worth to judge this one. */
INLINE bool was_turned_away(const struct xdp_md *ctx)
{
	__u32 device = ctx->ingress_ifindex;
	const struct turned_away *noted = turned_away_at(device);

	return noted && noted->second == seconds() && noted->device == device && is_for_hardware(ctx, noted->own);
}

/* Notes what the next step has to know of a frame of no flow. ARRIVES: it may be a client that is turned away. */
INLINE int note_early(const struct xdp_md *ctx, const struct frame *frame)
{
	struct arrival *arrival;

	if (LIKELY(!was_turned_away(ctx)))
		return XDP_PASS;
	arrival = the_arrival();
	if (!arrival)
		return XDP_PASS;
	arrival->packet.tuple = frame->tuple;
	arrival->packet.flags = frame->flags;
	arrival->device = ctx->ingress_ifindex;
	return ARRIVES;
}

/* Whether a client without a backend gets no answer. Only then it is turned away here. */
INLINE bool refuse_early(const struct arrival *arrival, const struct dial *dial, __u64 word)
{
	if (verdict_of(word) == VERDICT_REFUSED && !has_answered_most(seconds()))
		return false;
	if (refuse(arrival, dial, word) == REFUSED)
		count_packet(COUNT_UNANSWERABLE);
	return true;
}

INLINE bool is_turned_away(struct xdp_md *ctx, struct arrival *arrival, bool v4)
{
	struct dial dial = {};
	__u64 word;

	switch (admit(ctx, arrival, &dial, v4)) {
	case IS_BARRED:
		drop(arrival, &dial, REASON_SOURCE, COUNT_SOURCE);
		return true;
	case IS_LOOP:
		count_packet(COUNT_LOOP);
		return true;
	case IS_ADMITTED:
		return !stand_still() && finds_nothing(arrival, &dial, &word) && refuse_early(arrival, &dial, word);
	default:
		return false;
	}
}

/* Ends a frame of no flow, if its client is turned away without an answer. */
INLINE int turn_away_early(struct xdp_md *ctx, bool v4)
{
	struct arrival *arrival = the_arrival();

	if (!arrival || !is_turned_away(ctx, arrival, v4))
		return XDP_PASS;
	count_packet(COUNT_TURNED_AWAY_BY_XDP);
	return XDP_DROP;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which flow gives way where there is no room for another one.
 *
 * What client or backend may still need stays: connections that are open, and conversations that go on. Of the rest the
 * least worth keeping goes. A namespace that has most of the table gets room from its own flows, so that some is left
 * for others.
 */
#ifndef HOLDFAST_EVICT_H
#define HOLDFAST_EVICT_H

#include "conntrack.h"
#include "packet.h"

/* How many flows there may be. */
const volatile __u32 flows_most = 1;

/*
 * The flows of a namespace may be so many times the room that is free. So a namespace alone gets at most eight ninths
 * of the table, two get less than a half each, and one that has no flow yet finds room in any case.
 */
#define SHARE_OF_REST 8

/*
 * The last one of so many parts of the table is for namespaces that have few flows: of it one may have one of so many
 * parts of what is left, and a flow in any case. Connections live for hours, so nothing else would leave room there.
 */
#define LAST_PART 32
#define FEW_OF_LAST 64

/*
 * How many flows are looked at, by chance, for the one least worth keeping; and how many at most, while all that were
 * looked at are needed.
 */
#define ROOM_TRIES 16
#define ROOM_TRIES_MOST 64

/* A namespace with no more than one of so many parts of the table does not have too much, whatever room is left. */
#define SMALL_PART 16

/* How many flows of the queue `opening_flows` are looked at for one that still has no answer. */
#define FORGET_TRIES 16

/* How readily a flow is given up. Of flows with the same worth the one goes that has been silent for longest. */
enum worth {
	IS_NEEDED = 0,
	/* A question over UDP and its answer, at most LIFE_LINGERING ago. */
	IS_FRESH = 1,
	/* A stream of datagrams that goes on without an answer. */
	IS_UNHEARD = 2,
	/* The flow is unanswered, and it is no such stream. */
	IS_UNANSWERED = 3,
	/* A question over UDP and its answer, longer ago. */
	IS_ANSWERED = 4,
	/* Both sides have said their last, or its time is up. */
	IS_OVER = 5,
};

/* At which bit of a readiness the worth begins; below it are the seconds of silence. */
#define WORTH_AT 20

/* For how long a connection of which only the client is heard may be silent, and be believed. */
INLINE __u32 is_believed_for(const struct flow *flow)
{
	__s32 lasted = flow->seen - flow->began;

	if (lasted < LIFE_CROWDED)
		return LIFE_CROWDED;
	return lasted < LIFE_UNANSWERED ? lasted : LIFE_UNANSWERED;
}

/*
 * Whether a connection of which only the client is heard may be none: a stranger may send a SYN, its acknowledgement
 * and what comes later in any name. So such a connection is believed for as long again as it has gone on, and never for
 * longer than one whose backend leaves unanswered what it is asked.
 */
INLINE bool is_doubtful(const struct flow *flow, __u32 now)
{
	return is_wrapped(flow) && flow->transport == IPPROTO_TCP && silence(flow, now) > is_believed_for(flow);
}

/* Whether only the client was ever heard. The backend of a wrapped conversation answers past this node. */
INLINE bool is_one_sided(const struct flow *flow)
{
	return flow->state == FLOW_OPENING || (flow->transport == IPPROTO_UDP && is_wrapped(flow));
}

/*
 * Whether datagrams go on of which no answer was ever heard, as to a server of logs. Any stranger sends such streams in
 * others' names, so they are worth less than whatever has been answered; and their next datagram begins anew.
 */
INLINE bool is_unheard_stream(const struct flow *flow, __u32 now)
{
	return flow->transport == IPPROTO_UDP && is_stream(flow) && silence(flow, now) <= LIFE_CROWDED;
}

INLINE bool is_unanswered(const struct flow *flow, __u32 now)
{
	return (is_one_sided(flow) && !is_unheard_stream(flow, now)) || is_doubtful(flow, now);
}

/* Two questions in a client's name, forged or not, are answered too; so it is needed only while it goes on. */
INLINE enum worth worth_of_conversation(const struct flow *flow, __u32 now)
{
	if (is_stream(flow))
		return silence(flow, now) > LIFE_CROWDED ? IS_FRESH : IS_NEEDED;
	return silence(flow, now) > LIFE_LINGERING ? IS_ANSWERED : IS_FRESH;
}

INLINE enum worth worth_of(const struct flow *flow, __u32 now)
{
	if (may_yield(flow, now))
		return IS_OVER;
	if (is_unanswered(flow, now))
		return IS_UNANSWERED;
	if (is_one_sided(flow))
		return IS_UNHEARD;
	return flow->transport == IPPROTO_UDP ? worth_of_conversation(flow, now) : IS_NEEDED;
}

/* From where a flow that begins may have its record. */
enum room { ROOM_IS_FREE, ROOM_OF_ANY, ROOM_OF_OWN };

/*
 * A namespace that has more than its part of the table gets room only from its own flows, or from those of a namespace
 * that has more. One that has some flows gets none of the last free records: where no flow gives way, they are there
 * for others.
 */
INLINE enum room room_for(__u32 share)
{
	const __u64 *all = flow_count(COUNT_OF_ALL), *own = count_of_share(share);
	__s64 rest, has;

	if (!all || !own)
		return ROOM_IS_FREE;
	rest = (__s64)flows_most - (__s64)READ_ONCE(*all);
	if (rest < 0)
		rest = 0;
	has = READ_ONCE(*own);
	if (UNLIKELY(has > SHARE_OF_REST * rest && has > flows_most / SMALL_PART))
		return ROOM_OF_OWN;
	return UNLIKELY(rest <= flows_most / LAST_PART && has > rest / FEW_OF_LAST) ? ROOM_OF_ANY : ROOM_IS_FREE;
}

/* How readily a flow is given up for another one: the greater the number, the more readily. */
INLINE __u32 readiness(const struct flow *flow, __u32 now)
{
	__u32 since = silence(flow, now), most = (1 << WORTH_AT) - 1;

	return (__u32)worth_of(flow, now) << WORTH_AT | (since < most ? since : most);
}

/* Whether that flow is of the newcomer's share, or of one that has more than it. */
INLINE bool is_of_greater(const struct flow *flow, __u32 own)
{
	const __u64 *of_own, *of_other;

	if (LIKELY(share_of(flow) == own))
		return true;
	of_own = count_of_share(own);
	of_other = count_of_share(share_of(flow));
	return of_own && of_other && (__s64)READ_ONCE(*of_other) > (__s64)READ_ONCE(*of_own);
}

/* The second least worth keeping becomes the rival. */
INLINE void turn_to_second(struct arrival *arrival)
{
	arrival->readiness = arrival->second_readiness;
	arrival->rival = arrival->second;
	arrival->rival_serial = arrival->second_serial;
}

/*
 * Notes that flow as the rival or as the second, if it is given up more readily than those. Where the newcomer's
 * namespace has its part, only flows of its own count, and of those that have more.
 */
ALONE int weigh(__u32 number, __u32 now, __u32 has_part)
{
	struct arrival *arrival = the_arrival();
	const struct flow *flow = flow_at(number);
	__u32 serial, ready;

	if (!arrival || !flow)
		return 0;
	serial = READ_ONCE(flow->serial);
	if (!serial || (has_part && !is_of_greater(flow, arrival->share)))
		return 0;
	ready = readiness(flow, now);
	if (ready > arrival->readiness) {
		arrival->second_readiness = arrival->readiness;
		arrival->second = arrival->rival;
		arrival->second_serial = arrival->rival_serial;
		arrival->readiness = ready;
		arrival->rival = number;
		arrival->rival_serial = serial;
	} else if (ready > arrival->second_readiness && number != arrival->rival) {
		arrival->second_readiness = ready;
		arrival->second = number;
		arrival->second_serial = serial;
	}
	return 0;
}

/* Looks at some flows by chance, and notes the two least worth keeping. Returns the worth of the rival. */
ALONE int find_least(__u32 now, __u32 has_part)
{
	struct arrival *arrival = the_arrival();
	__u32 at = bpf_get_prandom_u32();

	if (!arrival)
		return IS_NEEDED;
	arrival->readiness = 0;
	arrival->second_readiness = 0;
	for (int tries = 0; tries < ROOM_TRIES_MOST; tries++) {
		if (tries >= ROOM_TRIES && arrival->readiness >> WORTH_AT != IS_NEEDED)
			break;
		at += 0x9e3779b1;
		weigh((__u64)at * flows_most >> 32, now, has_part);
	}
	return arrival->readiness >> WORTH_AT;
}

/* Claims the rival, of whichever family. `true`: its number is the caller's. */
INLINE bool take_rival(const struct arrival *arrival, enum packet_count counted)
{
	const struct flow *rival = flow_at(arrival->rival);

	if (!rival || !claim(arrival->rival, arrival->rival_serial, rival->v4))
		return false;
	count_packet(counted);
	return true;
}

/*
 * The oldest flow that had no answer when it began makes room for the next one, if it still has none: a flood pushes
 * out nothing but itself.
 */
ALONE int forget_unanswered(__u32 now)
{
	struct flow *flow;
	__u64 oldest;
	__u32 number;

	for (int tries = 0; tries < FORGET_TRIES; tries++) {
		if (bpf_map_pop_elem(&opening_flows, &oldest))
			return 0;
		number = (__u32)oldest;
		flow = flow_at(number);
		if (flow && READ_ONCE(flow->serial) == oldest >> 32 && flow->state == FLOW_OPENING) {
			if (is_unanswered(flow, now))
				break;
			bpf_map_push_elem(&opening_flows, &oldest, BPF_ANY);
		}
		flow = NULL;
	}
	if (!flow || !end(number, oldest >> 32, flow->v4))
		return 0;
	count_packet(COUNT_UNANSWERED);
	return 1;
}

/* Notes a flow that has no answer yet. One that the full queue pushes out may still be found by find_least(). */
INLINE void note_opening(__u32 number, __u32 serial)
{
	__u64 opening = (__u64)serial << 32 | number;

	bpf_map_push_elem(&opening_flows, &opening, BPF_EXIST);
}

/* Claims the rival, unless all flows that were looked at are needed. `false`: there is no room. */
INLINE bool take_least(const struct arrival *arrival, int worth)
{
	bool is_without_answer = worth == IS_UNANSWERED || worth == IS_UNHEARD;

	return worth != IS_NEEDED && take_rival(arrival, is_without_answer ? COUNT_UNANSWERED : COUNT_RECLAIMED);
}

/*
 * Makes room for a namespace that has its part, from its own flows or those of a namespace that has more. Its part
 * becomes less when others come: so two flows are given up for one, until it has no more than its part.
 */
INLINE bool take_own(struct arrival *arrival, __u32 now)
{
	if (!take_least(arrival, find_least(now, true)))
		return false;
	arrival->number = arrival->rival;
	turn_to_second(arrival);
	if (take_least(arrival, arrival->readiness >> WORTH_AT))
		give_back(arrival->rival);
	return true;
}

/*
 * Makes room from the flows of all namespaces. What is over or was answered longer ago goes first, then what has no
 * answer yet, then streams that go on without one, then what was answered just now.
 */
INLINE bool take_any(struct arrival *arrival, __u32 now)
{
	int worth = find_least(now, false);

	if (worth < IS_ANSWERED && forget_unanswered(now) && !bpf_map_pop_elem(&free_flows, &arrival->number))
		return true;
	if (!take_least(arrival, worth))
		return false;
	arrival->number = arrival->rival;
	return true;
}

/* The record for a new flow; NULL: there is no room for it. */
INLINE struct flow *take_flow(struct arrival *arrival, __u32 now)
{
	enum room room = room_for(arrival->share);

	if (LIKELY(room == ROOM_IS_FREE) && LIKELY(!bpf_map_pop_elem(&free_flows, &arrival->number)))
		return flow_at(arrival->number);
	if (!(room == ROOM_OF_OWN ? take_own(arrival, now) : take_any(arrival, now)))
		return NULL;
	return flow_at(arrival->number);
}

/*
 * The entries that lead to a flow found no room. So the flow least worth keeping ends, if it was answered or is over:
 * the next client has its room.
 */
INLINE void make_room(struct arrival *arrival, __u32 now)
{
	if (find_least(now, false) >= IS_ANSWERED && take_rival(arrival, COUNT_RECLAIMED))
		give_back(arrival->rival);
}

#endif

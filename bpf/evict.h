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
const volatile __u32 max_flows = 1;

/*
 * The flows of a namespace may be so many times the room that is free. So a namespace alone gets at most eight ninths
 * of the table, two get less than a half each, and one that has no flow yet finds room in any case.
 */
#define QUOTA_FACTOR 8

/*
 * The last one of so many parts of the table is for namespaces that have few flows: of it one may have one of so many
 * parts of what is left, and a flow in any case. Connections live for hours, so nothing else would leave room there.
 */
#define RESERVED_PART 32
#define RESERVED_QUOTA 64

/*
 * How many flows are looked at, by chance, for the one least worth keeping; and how many at most, while all that were
 * looked at are needed.
 */
#define EVICT_TRIES 16
#define EVICT_TRIES_MAX 64

/* A namespace with no more than one of so many parts of the table does not have too much, whatever room is left. */
#define SMALL_PART 16

/* How many flows of the queue `opening_flows` are looked at for one that still has no answer. */
#define QUEUE_TRIES 16

/* How readily a flow is given up. Of flows with the same worth the one goes that has been silent for longest. */
enum eviction_rank {
	RANK_NEEDED = 0,
	/* A question over UDP and its answer, at most LIFE_TIME_WAIT ago. */
	RANK_FRESH = 1,
	/* A stream of datagrams that goes on without an answer. */
	RANK_ONE_WAY = 2,
	/* The flow is unanswered, and it is no such stream. */
	RANK_UNANSWERED = 3,
	/* A question over UDP and its answer, longer ago. */
	RANK_ANSWERED = 4,
	/* Both sides have said their last, or its time is up. */
	RANK_CLOSED = 5,
};

/* At which bit of a readiness the worth begins; below it are the seconds of silence. */
#define RANK_AT 20

/* For how long a connection of which only the client is heard may be silent, and be believed. */
INLINE __u32 trusted_idle_time(const struct flow *flow)
{
	__s32 lasted = flow->seen - flow->began;

	if (lasted < LIFE_UNDER_PRESSURE)
		return LIFE_UNDER_PRESSURE;
	return lasted < LIFE_UNANSWERED ? lasted : LIFE_UNANSWERED;
}

/*
 * Whether a connection of which only the client is heard may be none: a stranger may send a SYN, its acknowledgement
 * and what comes later in any name. So such a connection is believed for as long again as it has gone on, and never for
 * longer than one whose backend leaves unanswered what it is asked.
 */
INLINE bool is_doubtful(const struct flow *flow, __u32 now)
{
	return is_encapsulated(flow) && flow->transport == IPPROTO_TCP &&
	       idle_time(flow, now) > trusted_idle_time(flow);
}

/* Whether only the client was ever heard. The backend of a wrapped conversation answers past this node. */
INLINE bool is_one_sided(const struct flow *flow)
{
	return flow->state == FLOW_OPENING || (flow->transport == IPPROTO_UDP && is_encapsulated(flow));
}

/*
 * Whether datagrams go on of which no answer was ever heard, as to a server of logs. Any stranger sends such streams in
 * others' names, so they are worth less than whatever has been answered; and their next datagram begins anew.
 */
INLINE bool is_one_way_stream(const struct flow *flow, __u32 now)
{
	return flow->transport == IPPROTO_UDP && is_stream(flow) && idle_time(flow, now) <= LIFE_UNDER_PRESSURE;
}

INLINE bool is_unanswered(const struct flow *flow, __u32 now)
{
	return (is_one_sided(flow) && !is_one_way_stream(flow, now)) || is_doubtful(flow, now);
}

/* Two questions in a client's name, forged or not, are answered too; so it is needed only while it goes on. */
INLINE enum eviction_rank rank_udp_flow(const struct flow *flow, __u32 now)
{
	if (is_stream(flow))
		return idle_time(flow, now) > LIFE_UNDER_PRESSURE ? RANK_FRESH : RANK_NEEDED;
	return idle_time(flow, now) > LIFE_TIME_WAIT ? RANK_ANSWERED : RANK_FRESH;
}

INLINE enum eviction_rank rank_flow(const struct flow *flow, __u32 now)
{
	if (may_be_replaced(flow, now))
		return RANK_CLOSED;
	if (is_unanswered(flow, now))
		return RANK_UNANSWERED;
	if (is_one_sided(flow))
		return RANK_ONE_WAY;
	return flow->transport == IPPROTO_UDP ? rank_udp_flow(flow, now) : RANK_NEEDED;
}

/* From where a flow that begins may have its record. */
enum record_source { RECORD_FREE, RECORD_OF_ANY, RECORD_OF_OWN };

/*
 * A namespace that has more than its part of the table gets room only from its own flows, or from those of a namespace
 * that has more. One that has some flows gets none of the last free records: where no flow gives way, they are there
 * for others.
 */
INLINE enum record_source find_record_source(__u32 share)
{
	const __u64 *all = get_flow_count(COUNT_OF_ALL), *own = share_count(share);
	__s64 rest, has;

	if (!all || !own)
		return RECORD_FREE;
	rest = (__s64)max_flows - (__s64)READ_ONCE(*all);
	if (rest < 0)
		rest = 0;
	has = READ_ONCE(*own);
	if (UNLIKELY(has > QUOTA_FACTOR * rest && has > max_flows / SMALL_PART))
		return RECORD_OF_OWN;
	return UNLIKELY(rest <= max_flows / RESERVED_PART && has > rest / RESERVED_QUOTA) ? RECORD_OF_ANY : RECORD_FREE;
}

/* How readily a flow is given up for another one: the greater the number, the more readily. */
INLINE __u32 eviction_score(const struct flow *flow, __u32 now)
{
	__u32 since = idle_time(flow, now), most = (1 << RANK_AT) - 1;

	return (__u32)rank_flow(flow, now) << RANK_AT | (since < most ? since : most);
}

/* Whether that flow is of the newcomer's share, or of one that has more than it. */
INLINE bool is_own_or_larger_share(const struct flow *flow, __u32 own)
{
	const __u64 *of_own, *of_other;

	if (LIKELY(flow_share(flow) == own))
		return true;
	of_own = share_count(own);
	of_other = share_count(flow_share(flow));
	return of_own && of_other && (__s64)READ_ONCE(*of_other) > (__s64)READ_ONCE(*of_own);
}

/* The second least worth keeping becomes the rival. */
INLINE void use_runner_up(struct scratch *scratch)
{
	scratch->score = scratch->runner_up_score;
	scratch->victim = scratch->second;
	scratch->victim_serial = scratch->runner_up_serial;
}

/*
 * Notes that flow as the rival or as the second, if it is given up more readily than those. Where the newcomer's
 * namespace has its part, only flows of its own count, and of those that have more.
 */
GLOBAL int compare_victim(__u32 number, __u32 now, __u32 has_part)
{
	struct scratch *scratch = get_scratch();
	const struct flow *flow = get_flow(number);
	__u32 serial, ready;

	if (!scratch || !flow)
		return 0;
	serial = READ_ONCE(flow->serial);
	if (!serial || (has_part && !is_own_or_larger_share(flow, scratch->share)))
		return 0;
	ready = eviction_score(flow, now);
	if (ready > scratch->score) {
		scratch->runner_up_score = scratch->score;
		scratch->second = scratch->victim;
		scratch->runner_up_serial = scratch->victim_serial;
		scratch->score = ready;
		scratch->victim = number;
		scratch->victim_serial = serial;
	} else if (ready > scratch->runner_up_score && number != scratch->victim) {
		scratch->runner_up_score = ready;
		scratch->second = number;
		scratch->runner_up_serial = serial;
	}
	return 0;
}

/* Looks at some flows by chance, and notes the two least worth keeping. Returns the worth of the rival. */
GLOBAL int find_victims(__u32 now, __u32 has_part)
{
	struct scratch *scratch = get_scratch();
	__u32 at = bpf_get_prandom_u32();

	if (!scratch)
		return RANK_NEEDED;
	scratch->score = 0;
	scratch->runner_up_score = 0;
	for (int tries = 0; tries < EVICT_TRIES_MAX; tries++) {
		if (tries >= EVICT_TRIES && scratch->score >> RANK_AT != RANK_NEEDED)
			break;
		at += 0x9e3779b1;
		compare_victim((__u64)at * max_flows >> 32, now, has_part);
	}
	return scratch->score >> RANK_AT;
}

/* Claims the rival, of whichever family. `true`: its number is the caller's. */
INLINE bool claim_victim(const struct scratch *scratch, enum packet_count counted)
{
	const struct flow *victim = get_flow(scratch->victim);

	if (!victim || !claim_flow(scratch->victim, scratch->victim_serial, victim->v4))
		return false;
	count_packet(counted);
	return true;
}

/*
 * The oldest flow that had no answer when it began makes room for the next one, if it still has none: a flood pushes
 * out nothing but itself.
 */
GLOBAL int evict_unanswered(__u32 now)
{
	struct flow *flow;
	__u64 oldest;
	__u32 number;

	for (int tries = 0; tries < QUEUE_TRIES; tries++) {
		if (bpf_map_pop_elem(&opening_flows, &oldest))
			return 0;
		number = (__u32)oldest;
		flow = get_flow(number);
		if (flow && READ_ONCE(flow->serial) == oldest >> 32 && flow->state == FLOW_OPENING) {
			if (is_unanswered(flow, now))
				break;
			bpf_map_push_elem(&opening_flows, &oldest, BPF_ANY);
		}
		flow = NULL;
	}
	if (!flow || !end_flow(number, oldest >> 32, flow->v4))
		return 0;
	count_packet(COUNT_UNANSWERED);
	return 1;
}

/* Notes a flow that has no answer yet. One that the full queue pushes out may still be found by find_victims(). */
INLINE void queue_opening(__u32 number, __u32 serial)
{
	__u64 opening = (__u64)serial << 32 | number;

	bpf_map_push_elem(&opening_flows, &opening, BPF_EXIST);
}

/* Claims the rival, unless all flows that were looked at are needed. `false`: there is no room. */
INLINE bool claim_if_evictable(const struct scratch *scratch, int rank)
{
	bool is_without_answer = rank == RANK_UNANSWERED || rank == RANK_ONE_WAY;

	return rank != RANK_NEEDED && claim_victim(scratch, is_without_answer ? COUNT_UNANSWERED : COUNT_RECLAIMED);
}

/*
 * Makes room for a namespace that has its part, from its own flows or those of a namespace that has more. Its part
 * becomes less when others come: so two flows are given up for one, until it has no more than its part.
 */
INLINE bool evict_own(struct scratch *scratch, __u32 now)
{
	if (!claim_if_evictable(scratch, find_victims(now, true)))
		return false;
	scratch->number = scratch->victim;
	use_runner_up(scratch);
	if (claim_if_evictable(scratch, scratch->score >> RANK_AT))
		release_flow(scratch->victim);
	return true;
}

/*
 * Makes room from the flows of all namespaces. What is over or was answered longer ago goes first, then what has no
 * answer yet, then streams that go on without one, then what was answered just now.
 */
INLINE bool evict_any(struct scratch *scratch, __u32 now)
{
	int rank = find_victims(now, false);

	if (rank < RANK_ANSWERED && evict_unanswered(now) && !bpf_map_pop_elem(&free_flows, &scratch->number))
		return true;
	if (!claim_if_evictable(scratch, rank))
		return false;
	scratch->number = scratch->victim;
	return true;
}

/* The record for a new flow; NULL: there is no room for it. */
INLINE struct flow *allocate_flow(struct scratch *scratch, __u32 now)
{
	enum record_source source = find_record_source(scratch->share);

	if (LIKELY(source == RECORD_FREE) && LIKELY(!bpf_map_pop_elem(&free_flows, &scratch->number)))
		return get_flow(scratch->number);
	if (!(source == RECORD_OF_OWN ? evict_own(scratch, now) : evict_any(scratch, now)))
		return NULL;
	return get_flow(scratch->number);
}

/*
 * The entries that lead to a flow found no room. So the flow least worth keeping ends, if it was answered or is over:
 * the next client has its room.
 */
INLINE void evict_one(struct scratch *scratch, __u32 now)
{
	if (find_victims(now, false) >= RANK_ANSWERED && claim_victim(scratch, COUNT_RECLAIMED))
		release_flow(scratch->victim);
}

#endif

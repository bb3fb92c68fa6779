/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Eviction: which flow ends where a new one finds no room, and the quota of a namespace.
 *
 * Owns: the eviction rank and the choice of the victim. Reads: `flow_table`, `flow_counts`. Writes: `free_flows`,
 * `opening_flows`, the scratch map; it ends flows.
 *
 * Open connections and running conversations stay. Of the other flows the one of the highest rank goes. A namespace
 * that has most of the table evicts its own flows, so that some room is left for others.
 */
#ifndef HOLDFAST_EVICT_H
#define HOLDFAST_EVICT_H

#include "conntrack.h"
#include "packet.h"

/* The size of the flow table. */
const volatile __u32 max_flows = 1;

/*
 * A namespace may have so many times the free room. So a single namespace gets eight ninths of the table at most, two
 * get less than a half each, and one without flows always finds room.
 */
#define QUOTA_FACTOR 8

/*
 * The last part of the table, one of RESERVED_PART, is for namespaces with few flows. One namespace may have one of
 * RESERVED_QUOTA parts of what is left there, and one flow in any case. Connections last for hours, so nothing else
 * would leave room.
 */
#define RESERVED_PART 32
#define RESERVED_QUOTA 64

/* How many flows are sampled for a victim; and how many at most while all sampled ones are needed. */
#define EVICT_TRIES 16
#define EVICT_TRIES_MAX 64

/* A namespace with up to one of so many parts of the table is never over its quota. */
#define SMALL_PART 16

/* How many flows of the queue `opening_flows` are tried for one that is still unanswered. */
#define QUEUE_TRIES 16

/* Flows of a higher rank are evicted first. Within a rank, the one that is idle for longest is. */
enum eviction_rank {
	RANK_NEEDED = 0,
	/* One UDP query and its reply, at most LIFE_TIME_WAIT ago. */
	RANK_FRESH = 1,
	/* A running stream of datagrams without a reply. */
	RANK_ONE_WAY = 2,
	/* Any other flow without a reply. */
	RANK_UNANSWERED = 3,
	/* One UDP query and its reply, longer ago. */
	RANK_ANSWERED = 4,
	/* Closed by both sides, or expired. */
	RANK_CLOSED = 5,
};

/* The first bit of the rank in a score. The bits below hold the idle seconds. */
#define RANK_AT 20

/* How long a connection may be idle of which only the client's packets pass here. */
INLINE __u32 trusted_idle_time(const struct flow *flow)
{
	__s32 lasted = flow->seen - flow->began;

	if (lasted < LIFE_UNDER_PRESSURE)
		return LIFE_UNDER_PRESSURE;
	return lasted < LIFE_UNANSWERED ? lasted : LIFE_UNANSWERED;
}

/*
 * Whether such a connection may not exist: anyone can send a SYN, its acknowledgement and what follows in any name. So
 * it may be idle for as long as it has lasted, but not for longer than a connection whose backend does not reply.
 */
INLINE bool is_doubtful(const struct flow *flow, __u32 now)
{
	return is_encapsulated(flow) && flow->transport == IPPROTO_TCP &&
	       idle_time(flow, now) > trusted_idle_time(flow);
}

/* Whether only the client's packets were ever seen. The backend of an encapsulated UDP flow replies directly. */
INLINE bool is_one_sided(const struct flow *flow)
{
	return flow->state == FLOW_OPENING || (flow->transport == IPPROTO_UDP && is_encapsulated(flow));
}

/*
 * Whether datagrams go on without any reply, as to a log server. Anyone can send such streams in another host's name,
 * so they rank below answered flows. A further datagram opens a new flow.
 */
INLINE bool is_one_way_stream(const struct flow *flow, __u32 now)
{
	return flow->transport == IPPROTO_UDP && is_stream(flow) && idle_time(flow, now) <= LIFE_UNDER_PRESSURE;
}

INLINE bool is_unanswered(const struct flow *flow, __u32 now)
{
	return (is_one_sided(flow) && !is_one_way_stream(flow, now)) || is_doubtful(flow, now);
}

/* A forged query gets a reply, too, even twice. So such a flow is needed only while it goes on. */
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

/* Where a new flow takes its record from. */
enum record_source { RECORD_FREE, RECORD_OF_ANY, RECORD_OF_OWN };

/*
 * A namespace over its quota evicts only its own flows, or those of a namespace with more. A namespace with some flows
 * gets none of the last free records: they are for others, whose flows cannot be evicted.
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

/* The eviction score of a flow: the flow with the greatest one is evicted first. */
INLINE __u32 eviction_score(const struct flow *flow, __u32 now)
{
	__u32 idle = idle_time(flow, now), idle_max = (1 << RANK_AT) - 1;

	return (__u32)rank_flow(flow, now) << RANK_AT | (idle < idle_max ? idle : idle_max);
}

/* Whether the flow belongs to the new flow's namespace, or to one with more flows. */
INLINE bool is_own_or_larger_share(const struct flow *flow, __u32 own)
{
	const __u64 *of_own, *of_other;

	if (LIKELY(flow_share(flow) == own))
		return true;
	of_own = share_count(own);
	of_other = share_count(flow_share(flow));
	return of_own && of_other && (__s64)READ_ONCE(*of_other) > (__s64)READ_ONCE(*of_own);
}

/* Makes the runner-up the victim. */
INLINE void use_runner_up(struct scratch *scratch)
{
	scratch->score = scratch->runner_up_score;
	scratch->victim = scratch->second;
	scratch->victim_serial = scratch->runner_up_serial;
}

/*
 * Keeps that flow as the victim or the runner-up, if its score is greater. A namespace over its quota compares only its
 * own flows, and those of namespaces with more.
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

/* Samples flows, and keeps the two of the greatest scores. Returns the victim's rank. */
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

/* Claims the victim, of whichever family. `true`: its number belongs to the caller. */
INLINE bool claim_victim(const struct scratch *scratch, enum packet_count counted)
{
	const struct flow *victim = get_flow(scratch->victim);

	if (!victim || !claim_flow(scratch->victim, scratch->victim_serial, victim->v4))
		return false;
	count_packet(counted);
	return true;
}

/* Evicts the oldest flow that began without a reply and still has none. So a flood evicts only its own flows. */
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

/* Queues a flow without a reply. A full queue drops its oldest one, which find_victims() may still find. */
INLINE void queue_opening(__u32 number, __u32 serial)
{
	__u64 opening = (__u64)serial << 32 | number;

	bpf_map_push_elem(&opening_flows, &opening, BPF_EXIST);
}

/* Claims the victim, unless all sampled flows are needed. `false`: there is no room. */
INLINE bool claim_if_evictable(const struct scratch *scratch, int rank)
{
	bool is_without_answer = rank == RANK_UNANSWERED || rank == RANK_ONE_WAY;

	return rank != RANK_NEEDED && claim_victim(scratch, is_without_answer ? COUNT_UNANSWERED : COUNT_RECLAIMED);
}

/*
 * Makes room for a namespace over its quota. The quota shrinks as others come, so two flows are evicted for one until
 * the namespace is within it.
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
 * Evicts a flow of any namespace: first closed and older answered ones, then unanswered ones, then streams without a
 * reply, then freshly answered ones.
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

/* The record for a new flow. NULL: there is no room. */
INLINE struct flow *allocate_flow(struct scratch *scratch, __u32 now)
{
	enum record_source source = find_record_source(scratch->share);

	if (LIKELY(source == RECORD_FREE) && LIKELY(!bpf_map_pop_elem(&free_flows, &scratch->number)))
		return get_flow(scratch->number);
	if (!(source == RECORD_OF_OWN ? evict_own(scratch, now) : evict_any(scratch, now)))
		return NULL;
	return get_flow(scratch->number);
}

/* Ends one closed or answered flow, because the maps of entries have no room. The next client gets that room. */
INLINE void evict_one(struct scratch *scratch, __u32 now)
{
	if (find_victims(now, false) >= RANK_ANSWERED && claim_victim(scratch, COUNT_RECLAIMED))
		release_flow(scratch->victim);
}

#endif

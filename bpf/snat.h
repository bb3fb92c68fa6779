/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ports by which a client goes on: towards another node, and between itself and a backend of this one.
 *
 * To put in the entry that only one flow can have is to have the port.
 */
#ifndef HOLDFAST_SNAT_H
#define HOLDFAST_SNAT_H

#include <linux/errno.h>
#include "conntrack.h"
#include "lb.h"
#include "packet.h"

/*
 * So many ports between client and backend are tried by chance: where a client has half of those that are left to it
 * at one backend, one connection in 65,536 finds none. That one comes by its own port, if it can, and else by one of
 * all ports below those that systems choose by themselves.
 */
#define PORT_TRIES 16
/*
 * A client that resets thousands of connections a second has all ports that are left to it at a backend, and each
 * further connection would try sixteen of them in vain: that takes as long as all else that is done for its first
 * packet. So once a second sixteen are tried in vain, and then one. Clients and backends share so many places where the
 * second is noted; the worst that a stranger can do there is that others try fewer of their own ports.
 */
#define EXHAUSTED_BITS 8
/*
 * So many ports towards another node are tried by chance: where ninety of a hundred are taken, that finds none for one
 * client in a thousand. Then all ports are gone through one after the other, in batches, until there is no further one.
 */
#define SNAT_TRIES 64
#define SNAT_BATCH 256
#define SNAT_BATCHES ((1 << 16) / SNAT_BATCH)
/*
 * To go through all ports takes some ten milliseconds. Where that was in vain so often in one second for the backends
 * of one number, for the services of one namespace, or for all, only chance is tried: so a client that uses up the
 * ports of one backend does not keep those of others from being found, and a namespace has a quarter of all searches at
 * most.
 */
#define SEARCHES_MAX 2
#define SHARE_SEARCHES_MAX 4
#define ALL_SEARCHES_MAX 16
/*
 * The numbers by which namespaces are told apart here, and the backends of each. A tenant chooses the addresses of his
 * backends, and so their numbers; by the first he still meets none of another namespace but of one in so many.
 */
#define SEARCHED_SHARES 256
#define SEARCHED_BACKENDS 16
#define SEARCHED (SEARCHED_SHARES * SEARCHED_BACKENDS)

/* --- Numbers. --- */

/* How many ports there are for clients on their way to other nodes, which nothing else of this node uses. */
INLINE __u32 snat_port_count(void)
{
	__u32 zero = 0;
	const struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);

	return settings ? settings->snat_ports : 0;
}

/* One of those ports by its number, counted round and round; 0: there are none. Without branches, as is_reversed(). */
GLOBAL int nth_snat_port(__u32 number)
{
	__u32 zero = 0, port = 0;
	struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);
	__u64 at, is_in, was_in = 0;

	if (!settings || !settings->snat_ports)
		return 0;
	at = number % settings->snat_ports;
	for (int range = 0; range < SNAT_RANGES; range++) {
		is_in = (at - settings->snat[range].count) >> 63;
		port |= (settings->snat[range].first + (__u32)at) & -(__u32)(is_in & ~was_in);
		was_in |= is_in;
		at -= settings->snat[range].count;
	}
	return bpf_htons(port);
}

/* The greater of two and the lesser of two, below 2^32. Without branches, as is_reversed(). */
INLINE __u64 max_u32(__u64 a, __u64 b)
{
	return a - ((a - b) & -((a - b) >> 63));
}

INLINE __u64 min_u32(__u64 a, __u64 b)
{
	return b + ((a - b) & -((a - b) >> 63));
}

/*
 * One of the ports that a client does not send from by itself; 0: there is none. A client that is a node of the cluster
 * may come to the same backend by a port of SNAT, which that node gave to a client of its own. So the ranges of SNAT
 * are left out, unless all ports are asked for: they are in order, and each moves up what is counted behind it.
 * `from_all`: 1 or 0. Without branches, as is_reversed().
 */
GLOBAL int random_translated_port(__u32 random, __u32 from_all)
{
	__u64 first[SNAT_RANGES], count[SNAT_RANGES], free = TRANSLATED_PORTS, port, end;
	__u32 zero = 0;
	struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);

	if (!settings)
		return 0;
	for (int range = 0; range < SNAT_RANGES; range++) {
		end = settings->snat[range].first + settings->snat[range].count;
		first[range] = max_u32(settings->snat[range].first, TRANSLATED_PORTS_FIRST);
		count[range] =
			max_u32(min_u32(end, TRANSLATED_PORTS_FIRST + TRANSLATED_PORTS), first[range]) - first[range];
		count[range] &= (__u64)from_all - 1;
		free -= count[range];
	}
	port = TRANSLATED_PORTS_FIRST + (random * free >> 32);
	for (int range = 0; range < SNAT_RANGES; range++)
		port += count[range] & ~-((port - first[range]) >> 63);
	return free ? bpf_htons(port) : 0;
}

/* --- Entries. --- */

/* What one entry of a flow is for. */
enum reply_entry { REPLY_LOCAL, REPLY_REMOTE };

INLINE void reply_entry_tuple(struct tuple *tuple, const struct flow *flow, __u32 entry)
{
	if (entry == REPLY_LOCAL)
		stack_reply_tuple(tuple, flow);
	else
		snat_reply_tuple(tuple, flow);
}

INLINE enum entry_kind reply_entry_kind(__u32 entry)
{
	return entry == REPLY_LOCAL ? ENTRY_TRANSLATED : ENTRY_WIRE;
}

/* Puts in an entry of a flow that is being made, where that place is free. 0, or why not. */
INLINE int insert_port_entry(__u32 number, __u32 entry, bool v4)
{
	struct flow *flow = get_flow(number);
	struct tuple tuple;

	if (!flow)
		return -ENOENT;
	reply_entry_tuple(&tuple, flow, entry);
	return add_entry(&tuple, reply_entry_kind(entry), number, v4);
}

GLOBAL int insert_port_entry4(__u32 number, __u32 entry)
{
	return insert_port_entry(number, entry, true);
}

GLOBAL int insert_port_entry6(__u32 number, __u32 entry)
{
	return insert_port_entry(number, entry, false);
}

/*
 * Whether the other side has not agreed to a flow, though it had time to. Where no port is free such a flow leaves its
 * own, or a flood without answers would have all ports for LIFE_OPENING. Ports are tried by chance, so a flood loses
 * its own ports first. A stream without an answer keeps no port, either: with its next datagram the client gets another
 * one.
 */
INLINE bool is_opening_unanswered(const struct flow *flow, __u32 now)
{
	return flow->state == FLOW_OPENING && (__s32)(now - flow->began) > LIFE_TIME_WAIT;
}

/* Notes the flow that has that place as the one to end. `true`: it is over, or left unanswered. */
INLINE bool find_port_holder(__u32 number, __u32 entry, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct flow *flow = get_flow(number);
	__u32 *there, now = seconds();
	struct tuple tuple;

	if (!scratch || !flow)
		return false;
	reply_entry_tuple(&tuple, flow, entry);
	there = find_entry(&tuple, reply_entry_kind(entry), v4);
	if (!there)
		return false;
	scratch->victim = *there;
	flow = get_flow(scratch->victim);
	if (!flow)
		return false;
	scratch->victim_serial = READ_ONCE(flow->serial);
	return scratch->victim_serial && (may_be_replaced(flow, now) || is_opening_unanswered(flow, now));
}

GLOBAL int find_port_holder4(__u32 number, __u32 entry)
{
	return find_port_holder(number, entry, true);
}

GLOBAL int find_port_holder6(__u32 number, __u32 entry)
{
	return find_port_holder(number, entry, false);
}

INLINE int claim_port(__u32 number, __u32 entry, bool v4)
{
	return v4 ? insert_port_entry4(number, entry) : insert_port_entry6(number, entry);
}

/* Like claim_port(), and if it may take places, also in the place of a flow that is over or left unanswered. */
INLINE int claim_or_take_port(__u32 number, __u32 entry, __u32 takes, bool v4)
{
	struct scratch *scratch = get_scratch();
	int added = claim_port(number, entry, v4);

	if (LIKELY(added != -EEXIST) || !takes || !scratch ||
	    !(v4 ? find_port_holder4(number, entry) : find_port_holder6(number, entry)) ||
	    !end_flow(scratch->victim, scratch->victim_serial, v4))
		return added;
	return claim_port(number, entry, v4);
}

GLOBAL int claim_or_take_port4(__u32 number, __u32 entry, __u32 takes)
{
	return claim_or_take_port(number, entry, takes, true);
}

GLOBAL int claim_or_take_port6(__u32 number, __u32 entry, __u32 takes)
{
	return claim_or_take_port(number, entry, takes, false);
}

INLINE int take_port(__u32 number, __u32 entry, __u32 takes, bool v4)
{
	return v4 ? claim_or_take_port4(number, entry, takes) : claim_or_take_port6(number, entry, takes);
}

/*
 * Whether the flow's answers would go to a place that is a frontend. Over UDP an answer does not say what it is, so it
 * would be taken for a question to that frontend, or such a question for an answer.
 */
INLINE bool is_reply_to_frontend(__u32 number, __u32 entry, bool v4)
{
	struct flow *flow = get_flow(number);
	const __u32 *address;
	__u16 port;

	if (!flow)
		return false;
	address = entry == REPLY_LOCAL ? flow->client : flow->nat;
	port = entry == REPLY_LOCAL ? flow->translated_port : flow->nat_port;
	return (v4 ? lookup_frontend4(address[3], port, flow->transport, EXACT_ADDRESS) :
		     lookup_frontend6(address, port, flow->transport, EXACT_ADDRESS)) != TARGET_NONE;
}

GLOBAL int is_reply_to_frontend4(__u32 number, __u32 entry)
{
	return is_reply_to_frontend(number, entry, true);
}

GLOBAL int is_reply_to_frontend6(__u32 number, __u32 entry)
{
	return is_reply_to_frontend(number, entry, false);
}

/* How a port between client and backend is found. */
enum port_search {
	/* Also among the ports that a client which is a node gives to its own clients. */
	PORTS_ALL = 1,
	/* Also in the place of a flow that is over or left unanswered. */
	PORTS_TAKE_OVER = 2,
};

/* Gives a flow a port of chance between client and backend. `false`: that port is not to be used. */
INLINE bool set_random_port(struct flow *flow, __u32 number, __u32 search, bool v4)
{
	flow->translated_port = random_translated_port(bpf_get_prandom_u32(), search & PORTS_ALL);
	return flow->translated_port && !is_port_hairpin(flow) &&
	       !(v4 ? is_reply_to_frontend4(number, REPLY_LOCAL) : is_reply_to_frontend6(number, REPLY_LOCAL));
}

/* The second in which a client had all ports that it may have at a backend, by both of them. */
__u32 exhausted_in[1 << EXHAUSTED_BITS];

INLINE __u32 *exhausted_second(const struct flow *flow)
{
	__u32 mixed = flow->client[3] * 0x9e3779b1 ^ flow->backend[3] * 0x85ebca6b ^ flow->backend_port * 0xc2b2ae35;
	__u64 at = (mixed ^ mixed >> 15) * 0x9e3779b1 >> (32 - EXHAUSTED_BITS);

	/* Written so that no compiler moves the bound away from the verifier. */
	asm volatile("%0 &= %1" : "+r"(at) : "i"((1 << EXHAUSTED_BITS) - 1));
	return &exhausted_in[at];
}

/*
 * Tries one port of chance: see enum port_search. 0, or why not. A step of its own, which the verifier looks at once,
 * and not for each try.
 */
INLINE int try_random_port(__u32 number, __u32 search, bool v4)
{
	struct flow *flow = get_flow(number);

	if (!flow)
		return -ENOENT;
	if (!set_random_port(flow, number, search, v4))
		return -EEXIST;
	return search & PORTS_TAKE_OVER ? take_port(number, REPLY_LOCAL, true, v4) :
					  claim_port(number, REPLY_LOCAL, v4);
}

GLOBAL int try_random_port4(__u32 number, __u32 search)
{
	return try_random_port(number, search, true);
}

GLOBAL int try_random_port6(__u32 number, __u32 search)
{
	return try_random_port(number, search, false);
}

/* Puts in the entry between client and backend, by a port of chance: see enum port_search. 0, or why not. */
INLINE int try_random_ports(__u32 number, __u32 search, bool v4)
{
	struct flow *flow = get_flow(number);
	__u32 now = seconds(), *crowded;
	int added = -EEXIST, most = PORT_TRIES;

	if (!flow)
		return -ENOENT;
	crowded = exhausted_second(flow);
	if (UNLIKELY(READ_ONCE(*crowded) == now) && !(search & PORTS_ALL))
		most = 1;
	for (int tries = 0; tries < PORT_TRIES && added == -EEXIST; tries++) {
		if (tries >= most)
			return added;
		added = v4 ? try_random_port4(number, search) : try_random_port6(number, search);
	}
	if (UNLIKELY(added == -EEXIST))
		*(volatile __u32 *)crowded = now;
	return added;
}

GLOBAL int try_random_ports4(__u32 number, __u32 search)
{
	return try_random_ports(number, search, true);
}

GLOBAL int try_random_ports6(__u32 number, __u32 search)
{
	return try_random_ports(number, search, false);
}

INLINE int alloc_random_port(const struct scratch *scratch, __u32 search, bool v4)
{
	return v4 ? try_random_ports4(scratch->number, search) : try_random_ports6(scratch->number, search);
}

/*
 * Gives a flow a port for its way to another node. `false`: at this node's address that port is a frontend. The flow's
 * backend may be a client of that frontend, and would be answered by this flow.
 */
INLINE bool set_snat_port(struct flow *flow, __u32 number, __u32 at, bool v4)
{
	flow->nat_port = nth_snat_port(at);
	return flow->transport != IPPROTO_UDP || LIKELY(!has_node_port(flow->nat_port)) ||
	       !(v4 ? is_reply_to_frontend4(number, REPLY_REMOTE) : is_reply_to_frontend6(number, REPLY_REMOTE));
}

/* Tries one port as the way back from another node. 0, or why not. A step of its own, as try_random_port(). */
INLINE int try_snat_port(__u32 number, __u32 takes, __u32 at, bool v4)
{
	struct flow *flow = get_flow(number);

	if (!flow)
		return -ENOENT;
	if (!set_snat_port(flow, number, at, v4))
		return -EEXIST;
	return takes ? take_port(number, REPLY_REMOTE, true, v4) : claim_port(number, REPLY_REMOTE, v4);
}

GLOBAL int try_snat_port4(__u32 number, __u32 takes, __u32 at)
{
	return try_snat_port(number, takes, at, true);
}

GLOBAL int try_snat_port6(__u32 number, __u32 takes, __u32 at)
{
	return try_snat_port(number, takes, at, false);
}

/* Puts in the way back from another node, by a port of chance. 0, or why not. */
INLINE int try_random_snat_ports(__u32 number, __u32 takes, bool v4)
{
	int added = -EEXIST;
	__u32 at;

	for (int tries = 0; tries < SNAT_TRIES && added == -EEXIST; tries++) {
		at = bpf_get_prandom_u32();
		added = v4 ? try_snat_port4(number, takes, at) : try_snat_port6(number, takes, at);
	}
	return added;
}

GLOBAL int try_random_snat_ports4(__u32 number, __u32 takes)
{
	return try_random_snat_ports(number, takes, true);
}

GLOBAL int try_random_snat_ports6(__u32 number, __u32 takes)
{
	return try_random_snat_ports(number, takes, false);
}

/* Puts in the way back from another node, by one of the next ports from that one on. 0, or why not. */
INLINE int try_snat_batch(__u32 number, __u32 takes, __u32 at, bool v4)
{
	int added = -EEXIST;

	for (__u32 tries = 0; tries < SNAT_BATCH && added == -EEXIST; tries++)
		added = v4 ? try_snat_port4(number, takes, at + tries) : try_snat_port6(number, takes, at + tries);
	return added;
}

GLOBAL int try_snat_batch4(__u32 number, __u32 takes, __u32 at)
{
	return try_snat_batch(number, takes, at, true);
}

GLOBAL int try_snat_batch6(__u32 number, __u32 takes, __u32 at)
{
	return try_snat_batch(number, takes, at, false);
}

/*
 * For the backends of each number, for free ports and for those of flows that yield: the second in which all ports
 * were gone through in vain, and in the lower half how often that was. So for each namespace, and last for all.
 */
__u64 failed_searches[2 * SEARCHED + SEARCHED_SHARES + 1];

/*
 * Where searches for the flow's backend are noted, and those for its namespace. The bounds are written so that no
 * compiler moves them away from the verifier.
 */
INLINE __u64 *failed_by_backend(const struct flow *flow, __u32 takes)
{
	__u64 backend = (flow->backend[3] * 0x9e3779b1 + flow->backend_port * 0x85ebca6b) >> 16;
	__u64 at = (flow_share(flow) * SEARCHED_BACKENDS + backend % SEARCHED_BACKENDS) << 1 | (takes & 1);

	asm volatile("%0 &= %1" : "+r"(at) : "i"(2 * SEARCHED - 1));
	return &failed_searches[at];
}

INLINE __u64 *failed_by_share(const struct flow *flow)
{
	__u64 share = flow_share(flow);

	asm volatile("%0 &= %1" : "+r"(share) : "i"(SEARCHED_SHARES - 1));
	return &failed_searches[2 * SEARCHED + share];
}

INLINE bool may_search(const __u64 *in_vain, __u32 most, __u32 now)
{
	__u64 searched = READ_ONCE(*in_vain);

	return searched >> 32 != now || (__u32)searched < most;
}

/* Notes a search that was in vain. Where two CPUs write at once, only one search counts, so there is one more. */
INLINE void note_failed_search(__u64 *in_vain, __u32 now)
{
	__u64 searched = READ_ONCE(*in_vain), so_far = searched >> 32 == now ? (__u32)searched : 0;

	*(volatile __u64 *)in_vain = (__u64)now << 32 | (so_far + 1);
}

/* Goes through all ports from one of chance on. 0, or why not. */
INLINE int scan_snat_ports(__u32 number, __u32 takes, bool v4)
{
	__u32 from = bpf_get_prandom_u32() >> 1, count = snat_port_count();
	int added = -EEXIST;

	for (__u32 batch = 0; batch < SNAT_BATCHES; batch++) {
		if (batch * SNAT_BATCH >= count)
			return added;
		added = v4 ? try_snat_batch4(number, takes, from + batch * SNAT_BATCH) :
			     try_snat_batch6(number, takes, from + batch * SNAT_BATCH);
		if (added != -EEXIST)
			return added;
	}
	return added;
}

GLOBAL int scan_snat_ports4(__u32 number, __u32 takes)
{
	return scan_snat_ports(number, takes, true);
}

GLOBAL int scan_snat_ports6(__u32 number, __u32 takes)
{
	return scan_snat_ports(number, takes, false);
}

/* Searches all ports, unless that was in vain too often in this second. */
INLINE int scan_if_allowed(__u32 number, __u32 takes, bool v4)
{
	const struct flow *flow = get_flow(number);
	__u64 *of_all = &failed_searches[2 * SEARCHED + SEARCHED_SHARES], *of_some, *of_share;
	__u32 now = seconds();
	int added = -EEXIST;

	if (!flow)
		return -ENOENT;
	of_some = failed_by_backend(flow, takes);
	of_share = failed_by_share(flow);
	if (!may_search(of_some, SEARCHES_MAX, now) || !may_search(of_share, SHARE_SEARCHES_MAX, now) ||
	    !may_search(of_all, ALL_SEARCHES_MAX, now))
		return added;
	added = v4 ? scan_snat_ports4(number, takes) : scan_snat_ports6(number, takes);
	if (added == -EEXIST) {
		note_failed_search(of_some, now);
		note_failed_search(of_share, now);
		note_failed_search(of_all, now);
	}
	return added;
}

GLOBAL int alloc_snat_port4(__u32 number, __u32 takes)
{
	int added = try_random_snat_ports4(number, takes);

	return LIKELY(added != -EEXIST) ? added : scan_if_allowed(number, takes, true);
}

GLOBAL int alloc_snat_port6(__u32 number, __u32 takes)
{
	int added = try_random_snat_ports6(number, takes);

	return LIKELY(added != -EEXIST) ? added : scan_if_allowed(number, takes, false);
}

/* Finds a port towards another node by chance, and if that finds none, by a search. */
INLINE int alloc_snat_port(const struct scratch *scratch, bool takes, bool v4)
{
	if (!snat_port_count())
		return -EEXIST;
	return v4 ? alloc_snat_port4(scratch->number, takes) : alloc_snat_port6(scratch->number, takes);
}

/*
 * Puts in the way back from another node's backend. To put it in is to have the port. Where a connection of another
 * proxy has the port, the daemon has put in an entry that leads to no flow. A backend remembers for a while a
 * connection that is over (TIME_WAIT), and may doubt a client that comes from the same port: so such ports are taken
 * last, as are those of flows that are left unanswered. 0, or why not.
 */
INLINE int alloc_snat(const struct scratch *scratch, struct flow *flow, bool v4)
{
	int added = alloc_snat_port(scratch, false, v4);

	if (UNLIKELY(added == -EEXIST))
		added = alloc_snat_port(scratch, true, v4);
	if (added)
		flow->nat_port = 0;
	else
		flow->backend_flags |= FLOW_SNAT_UNUSED;
	return added;
}

INLINE int claim_own_port(const struct scratch *scratch, struct flow *flow, bool v4)
{
	return is_port_hairpin(flow) ? -EEXIST : claim_port(scratch->number, REPLY_LOCAL, v4);
}

/* Like claim_own_port(), also in the place of a flow that is over or left unanswered. */
INLINE int take_own_port(const struct scratch *scratch, struct flow *flow, bool v4)
{
	flow->translated_port = flow->client_port;
	return is_port_hairpin(flow) ? -EEXIST : take_port(scratch->number, REPLY_LOCAL, true, v4);
}

/*
 * Puts in the entry between backend and client. A client that dials the backend itself as well may use the same ports
 * both ways, and the backend would take the two connections for one. So the client gets another port here, except where
 * its own is to be seen, or where the backend is on another node and sees a port of this one. A flow of which no packet
 * is seen between the two here has the entry all the same: it says whose the flow is. A client may also come
 * from one port to two frontends with one backend: what it has reset by the one keeps that port for a while, because a
 * stranger may have said so, and the client does not wait for that at the other. 0, or why not.
 */
INLINE int alloc_client_port(const struct scratch *scratch, struct flow *flow, bool v4)
{
	int added = -EEXIST;

	if (scratch->keeps_port || flow->nat_port || is_encapsulated(flow))
		added = claim_own_port(scratch, flow, v4);
	if (added == -EEXIST)
		added = alloc_random_port(scratch, 0, v4);
	if (added == -EEXIST)
		added = take_own_port(scratch, flow, v4);
	if (UNLIKELY(added == -EEXIST))
		added = alloc_random_port(scratch, PORTS_ALL, v4);
	return UNLIKELY(added == -EEXIST) ? alloc_random_port(scratch, PORTS_TAKE_OVER, v4) : added;
}

#endif

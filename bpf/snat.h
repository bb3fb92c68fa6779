/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SNAT ports: the node's ports towards other nodes, and the ports between a client and a backend of this node.
 *
 * Owns: the allocation of ports. conntrack.h frees a port with its entry. Reads: `packet_settings`, frontends. Writes:
 * `entries4/6`, the ports of a flow, its own counters.
 *
 * A flow owns a port if it has added the entry, which only one flow can have.
 */
#ifndef HOLDFAST_SNAT_H
#define HOLDFAST_SNAT_H

#include <linux/errno.h>
#include "conntrack.h"
#include "lb.h"
#include "packet.h"

/*
 * Random ports that are tried between a client and a local backend. If the client uses half of its ports at one
 * backend, one connection in 65,536 finds none. Then its own port is tried, and at last all ports below 30,000.
 */
#define PORT_TRIES 16
/*
 * A client that resets thousands of connections a second uses up its ports at a backend. Sixteen failing tries cost as
 * much as the rest of a first packet. So after sixteen failed tries each further connection of that second tries one
 * port. Clients and backends share the slots that hold the second. A stranger in the same slot only makes others try
 * fewer of their ports.
 */
#define EXHAUSTED_BITS 8
/*
 * Random SNAT ports that are tried. If 90 of 100 ports are in use, one client in a thousand finds none. Then all ports
 * are scanned in blocks of batches.
 */
#define SNAT_TRIES 64
#define SNAT_BATCH 64
#define SNAT_BATCHES 32
#define SNAT_BLOCK (SNAT_BATCH * SNAT_BATCHES)
#define SNAT_BLOCKS ((1 << 16) / SNAT_BLOCK)
/*
 * A scan of all ports takes about ten milliseconds. So few scans may fail in one second: for the backends of one hash,
 * for one namespace, and for all. After that only random ports are tried. So a client that uses up the ports of one
 * backend blocks no other backends, and one namespace has a quarter of all scans at most.
 */
#define SEARCHES_MAX 2
#define SHARE_SEARCHES_MAX 4
#define ALL_SEARCHES_MAX 16
/*
 * The hash slots of namespaces, and of backends in each one. A tenant chooses its backends' addresses and so their
 * hashes, but shares a namespace's slot with few others.
 */
#define SEARCHED_SHARES 256
#define SEARCHED_BACKENDS 16
#define SEARCHED (SEARCHED_SHARES * SEARCHED_BACKENDS)

/* --- Port numbers. --- */

/* The count of SNAT ports. Nothing else on this node uses them. */
INLINE __u32 snat_port_count(void)
{
	__u32 zero = 0;
	const struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);

	return settings ? settings->snat_ports : 0;
}

/* The SNAT port of that number, modulo the count. 0: there are none. Without branches, as is_reversed(). */
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

/*
 * All bits if `a` is less than `b`, or none; both are below 2^32. Without branches, as is_reversed(): inline assembly
 * keeps the compiler from making one.
 */
INLINE __u64 less_mask(__u64 a, __u64 b)
{
	__u64 sign = (a - b) >> 63;

	asm volatile("" : "+r"(sign));
	return -sign;
}

/* The greater or the lesser of two numbers below 2^32. */
INLINE __u64 max_u32(__u64 a, __u64 b)
{
	return a + ((b - a) & less_mask(a, b));
}

INLINE __u64 min_u32(__u64 a, __u64 b)
{
	return b + ((a - b) & less_mask(a, b));
}

/*
 * A random port that clients do not send from by themselves. 0: there is none. A client that is a node of the cluster
 * may use its SNAT ports for its own clients at the same backend. So the SNAT ranges are skipped, unless `from_all` is
 * 1. They are in order, and each one shifts the numbers behind it. Without branches, as is_reversed().
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
		port += count[range] & ~less_mask(port, first[range]);
	return free ? bpf_htons(port) : 0;
}

/* --- Entries. --- */

/* Which reply entry holds the port: that of the stack, or that of a backend on another node. */
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

/* Adds an entry of a new flow, if no other flow has it. Returns 0 or an error. */
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
 * Whether the other side has not agreed to a flow in time. If no port is free, such a flow loses its port. Otherwise a
 * flood without replies would hold all ports for LIFE_OPENING. Ports are tried at random, so a flood loses its own
 * ports first. A stream without replies may lose its port, too: its next datagram gets another one.
 */
INLINE bool is_opening_unanswered(const struct flow *flow, __u32 now)
{
	return flow->state == FLOW_OPENING && (__s32)(now - flow->began) > LIFE_TIME_WAIT;
}

/* Notes the flow that has the port as the one to end. `true`: it is closed or unanswered. */
INLINE bool find_port_holder(__u32 number, __u32 entry, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct flow *flow = get_flow(number);
	__u32 *holder, now = seconds();
	struct tuple tuple;

	if (!scratch || !flow)
		return false;
	reply_entry_tuple(&tuple, flow, entry);
	holder = find_entry(&tuple, reply_entry_kind(entry), v4);
	if (!holder)
		return false;
	scratch->victim = *holder;
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

/* As claim_port(). With `takes` also in place of a closed or unanswered flow. */
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
 * Whether the flow's replies would go to a frontend's endpoint. A UDP datagram does not show whether it is a reply or a
 * query, so the programs would confuse the two.
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

/* Where a port to a local backend is looked for. */
enum port_search {
	/* Also among the SNAT ports, which a client that is a node gives to its own clients. */
	PORTS_ALL = 1,
	/* Also among the ports of closed or unanswered flows. */
	PORTS_TAKE_OVER = 2,
};

/* Sets a random port towards a local backend. `false`: the port must not be used. */
INLINE bool set_random_port(struct flow *flow, __u32 number, __u32 search, bool v4)
{
	flow->translated_port = random_translated_port(bpf_get_prandom_u32(), search & PORTS_ALL);
	return flow->translated_port && !is_port_hairpin(flow) &&
	       !(v4 ? is_reply_to_frontend4(number, REPLY_LOCAL) : is_reply_to_frontend6(number, REPLY_LOCAL));
}

/* The last second in which a client had no port left at a backend, by a hash of both. */
__u32 exhausted_in[1 << EXHAUSTED_BITS];

INLINE __u32 *exhausted_second(const struct flow *flow)
{
	__u32 mixed = flow->client[3] * 0x9e3779b1 ^ flow->backend[3] * 0x85ebca6b ^ flow->backend_port * 0xc2b2ae35;
	__u64 at = (mixed ^ mixed >> 15) * 0x9e3779b1 >> (32 - EXHAUSTED_BITS);

	/* Inline assembly, so that the compiler keeps the mask that the verifier needs. */
	asm volatile("%0 &= %1" : "+r"(at) : "i"((1 << EXHAUSTED_BITS) - 1));
	return &exhausted_in[at];
}

/*
 * Tries one random port: see enum port_search. Returns 0 or an error. A global function, so the verifier checks it
 * once, and not for each try.
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

/* Allocates a random port towards a local backend: see enum port_search. Returns 0 or an error. */
INLINE int try_random_ports(__u32 number, __u32 search, bool v4)
{
	struct flow *flow = get_flow(number);
	__u32 now = seconds(), *crowded;
	int added = -EEXIST, limit = PORT_TRIES;

	if (!flow)
		return -ENOENT;
	crowded = exhausted_second(flow);
	if (UNLIKELY(READ_ONCE(*crowded) == now) && !(search & PORTS_ALL))
		limit = 1;
	for (int tries = 0; tries < PORT_TRIES && added == -EEXIST; tries++) {
		if (tries >= limit)
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
 * Sets an SNAT port. `false`: at this node's address the port is a frontend. The flow's backend may be a client of that
 * frontend, and this flow would take its packets.
 */
INLINE bool set_snat_port(struct flow *flow, __u32 number, __u32 at, bool v4)
{
	flow->nat_port = nth_snat_port(at);
	return flow->transport != IPPROTO_UDP || LIKELY(!has_node_port(flow->nat_port)) ||
	       !(v4 ? is_reply_to_frontend4(number, REPLY_REMOTE) : is_reply_to_frontend6(number, REPLY_REMOTE));
}

/* Tries one SNAT port. Returns 0 or an error. A global function, as try_random_port(). */
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

/* Tries random SNAT ports. Returns 0 or an error. */
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

/* Tries a batch of consecutive SNAT ports. Returns 0 or an error. */
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
 * For each backend's hash, for free ports and for taken ones: the second of the last failed scan, and below it the
 * count of failed scans in that second. Then the same for each namespace, and at last for all.
 */
__u64 failed_searches[2 * SEARCHED + SEARCHED_SHARES + 1];

/*
 * The slot for the flow's backend, and the one for its namespace. Inline assembly keeps the masks that the verifier
 * needs.
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

INLINE bool may_search(const __u64 *in_vain, __u32 limit, __u32 now)
{
	__u64 searched = READ_ONCE(*in_vain);

	return searched >> 32 != now || (__u32)searched < limit;
}

/* Counts a failed scan. Two CPUs that write at once count one, so there may be one more. */
INLINE void note_failed_search(__u64 *in_vain, __u32 now)
{
	__u64 searched = READ_ONCE(*in_vain), failed = searched >> 32 == now ? (__u32)searched : 0;

	*(volatile __u64 *)in_vain = (__u64)now << 32 | (failed + 1);
}

/*
 * Tries a block of batches. Three short loops in three functions: the verifier follows each round of a loop, and would
 * follow more of them in two. Returns 0 or an error.
 */
INLINE int try_snat_block(__u32 number, __u32 takes, __u32 at, bool v4)
{
	int added = -EEXIST;

	for (__u32 batch = 0; batch < SNAT_BATCHES && added == -EEXIST; batch++)
		added = v4 ? try_snat_batch4(number, takes, at + batch * SNAT_BATCH) :
			     try_snat_batch6(number, takes, at + batch * SNAT_BATCH);
	return added;
}

GLOBAL int try_snat_block4(__u32 number, __u32 takes, __u32 at)
{
	return try_snat_block(number, takes, at, true);
}

GLOBAL int try_snat_block6(__u32 number, __u32 takes, __u32 at)
{
	return try_snat_block(number, takes, at, false);
}

/* Scans all SNAT ports from a random one on. Returns 0 or an error. */
INLINE int scan_snat_ports(__u32 number, __u32 takes, bool v4)
{
	__u32 from = bpf_get_prandom_u32() >> 1, count = snat_port_count();
	int added = -EEXIST;

	for (__u32 block = 0; block < SNAT_BLOCKS && block * SNAT_BLOCK < count && added == -EEXIST; block++)
		added = v4 ? try_snat_block4(number, takes, from + block * SNAT_BLOCK) :
			     try_snat_block6(number, takes, from + block * SNAT_BLOCK);
	return added;
}

/* Scans all ports, unless too many scans have failed in this second. */
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
	added = scan_snat_ports(number, takes, v4);
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

/* Allocates an SNAT port: at random, or else by a scan. */
INLINE int alloc_snat_port(const struct scratch *scratch, bool takes, bool v4)
{
	if (!snat_port_count())
		return -EEXIST;
	return v4 ? alloc_snat_port4(scratch->number, takes) : alloc_snat_port6(scratch->number, takes);
}

/*
 * Allocates an SNAT port and adds the reply entry of the remote backend. If a connection of another proxy uses a port,
 * the daemon has added an entry for it that leads to no flow. A backend keeps a closed connection in TIME_WAIT, and may
 * mistrust a new one from its port. So ports of closed and of unanswered flows come last. Returns 0 or an error.
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

/* As claim_own_port(), also in place of a closed or unanswered flow. */
INLINE int take_own_port(const struct scratch *scratch, struct flow *flow, bool v4)
{
	flow->translated_port = flow->client_port;
	return is_port_hairpin(flow) ? -EEXIST : take_port(scratch->number, REPLY_LOCAL, true, v4);
}

/*
 * Allocates the port between client and backend, and adds the translated entry. A client may also dial the backend
 * directly from the same port, and the backend would confuse the two connections. So the client gets another port,
 * unless the backend must see its own, or sees an SNAT port. A flow whose packets never pass between the two has the
 * entry, too: it shows who owns the flow. A client may reach one backend by two frontends from one port. A flow that it
 * has reset keeps the port for a while, because the RST may be forged, and the other flow does not wait for it. Returns
 * 0 or an error.
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

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
#define CROWDED_BITS 8
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
#define SEARCHES_MOST 2
#define SHARE_SEARCHES_MOST 4
#define ALL_SEARCHES_MOST 16
/*
 * The numbers by which namespaces are told apart here, and the backends of each. A tenant chooses the addresses of his
 * backends, and so their numbers; by the first he still meets none of another namespace but of one in so many.
 */
#define SEARCHED_SHARES 256
#define SEARCHED_BACKENDS 16
#define SEARCHED (SEARCHED_SHARES * SEARCHED_BACKENDS)

/* --- Numbers. --- */

/* How many ports there are for clients on their way to other nodes, which nothing else of this node uses. */
INLINE __u32 count_of_snat_ports(void)
{
	__u32 zero = 0;
	const struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);

	return settings ? settings->snat_ports : 0;
}

/* One of those ports by its number, counted round and round; 0: there are none. Without branches, as is_turned(). */
ALONE int snat_port(__u32 number)
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

/* The greater of two and the lesser of two, below 2^32. Without branches, as is_turned(). */
INLINE __u64 greater(__u64 a, __u64 b)
{
	return a - ((a - b) & -((a - b) >> 63));
}

INLINE __u64 lesser(__u64 a, __u64 b)
{
	return b + ((a - b) & -((a - b) >> 63));
}

/*
 * One of the ports that a client does not send from by itself; 0: there is none. A client that is a node of the cluster
 * may come to the same backend by a port of SNAT, which that node gave to a client of its own. So the ranges of SNAT
 * are left out, unless all ports are asked for: they are in order, and each moves up what is counted behind it.
 * `from_all`: 1 or 0. Without branches, as is_turned().
 */
ALONE int through_port(__u32 random, __u32 from_all)
{
	__u64 first[SNAT_RANGES], count[SNAT_RANGES], free = THROUGH_PORTS, port, end;
	__u32 zero = 0;
	struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);

	if (!settings)
		return 0;
	for (int range = 0; range < SNAT_RANGES; range++) {
		end = settings->snat[range].first + settings->snat[range].count;
		first[range] = greater(settings->snat[range].first, THROUGH_FIRST);
		count[range] = greater(lesser(end, THROUGH_FIRST + THROUGH_PORTS), first[range]) - first[range];
		count[range] &= (__u64)from_all - 1;
		free -= count[range];
	}
	port = THROUGH_FIRST + (random * free >> 32);
	for (int range = 0; range < SNAT_RANGES; range++)
		port += count[range] & ~-((port - first[range]) >> 63);
	return free ? bpf_htons(port) : 0;
}

/* --- Entries. --- */

/* What one entry of a flow is for. */
enum way { WAY_THROUGH, WAY_OF_REMOTE };

INLINE void tuple_of_way(struct tuple *tuple, const struct flow *flow, __u32 way)
{
	if (way == WAY_THROUGH)
		through(tuple, flow);
	else
		from_remote(tuple, flow);
}

INLINE enum leg leg_of_way(__u32 way)
{
	return way == WAY_THROUGH ? LEG_THROUGH : LEG_IN;
}

/* Puts in an entry of a flow that is being made, where that place is free. 0, or why not. */
INLINE int put_way(__u32 number, __u32 way, bool v4)
{
	struct flow *flow = flow_at(number);
	struct tuple tuple;

	if (!flow)
		return -ENOENT;
	tuple_of_way(&tuple, flow, way);
	return add_entry(&tuple, leg_of_way(way), number, v4);
}

ALONE int put_way4(__u32 number, __u32 way)
{
	return put_way(number, way, true);
}

ALONE int put_way6(__u32 number, __u32 way)
{
	return put_way(number, way, false);
}

/*
 * Whether the other side has not agreed to a flow, though it had time to. Where no port is free such a flow leaves its
 * own, or a flood without answers would have all ports for LIFE_OPENING. Ports are tried by chance, so a flood loses
 * its own ports first. A stream without an answer keeps no port, either: with its next datagram the client gets another
 * one.
 */
INLINE bool is_left_unanswered(const struct flow *flow, __u32 now)
{
	return flow->state == FLOW_OPENING && (__s32)(now - flow->began) > LIFE_LINGERING;
}

/* Notes the flow that has that place as the one to end. `true`: it is over, or left unanswered. */
INLINE bool find_rival(__u32 number, __u32 way, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct flow *flow = flow_at(number);
	__u32 *there, now = seconds();
	struct tuple tuple;

	if (!arrival || !flow)
		return false;
	tuple_of_way(&tuple, flow, way);
	there = find_entry(&tuple, leg_of_way(way), v4);
	if (!there)
		return false;
	arrival->rival = *there;
	flow = flow_at(arrival->rival);
	if (!flow)
		return false;
	arrival->rival_serial = READ_ONCE(flow->serial);
	return arrival->rival_serial && (may_yield(flow, now) || is_left_unanswered(flow, now));
}

ALONE int find_rival4(__u32 number, __u32 way)
{
	return find_rival(number, way, true);
}

ALONE int find_rival6(__u32 number, __u32 way)
{
	return find_rival(number, way, false);
}

INLINE int put(__u32 number, __u32 way, bool v4)
{
	return v4 ? put_way4(number, way) : put_way6(number, way);
}

/* Like put(), and if it may take places, also in the place of a flow that is over or left unanswered. */
INLINE int put_or_take(__u32 number, __u32 way, __u32 takes, bool v4)
{
	struct arrival *arrival = the_arrival();
	int added = put(number, way, v4);

	if (LIKELY(added != -EEXIST) || !takes || !arrival ||
	    !(v4 ? find_rival4(number, way) : find_rival6(number, way)) ||
	    !end(arrival->rival, arrival->rival_serial, v4))
		return added;
	return put(number, way, v4);
}

ALONE int put_or_take4(__u32 number, __u32 way, __u32 takes)
{
	return put_or_take(number, way, takes, true);
}

ALONE int put_or_take6(__u32 number, __u32 way, __u32 takes)
{
	return put_or_take(number, way, takes, false);
}

INLINE int take(__u32 number, __u32 way, __u32 takes, bool v4)
{
	return v4 ? put_or_take4(number, way, takes) : put_or_take6(number, way, takes);
}

/*
 * Whether the flow's answers would go to a place that is a frontend. Over UDP an answer does not say what it is, so it
 * would be taken for a question to that frontend, or such a question for an answer.
 */
INLINE bool leads_to_frontend(__u32 number, __u32 way, bool v4)
{
	struct flow *flow = flow_at(number);
	const __u32 *address;
	__u16 port;

	if (!flow)
		return false;
	address = way == WAY_THROUGH ? flow->client : flow->nat;
	port = way == WAY_THROUGH ? flow->through_port : flow->nat_port;
	return (v4 ? look4(address[3], port, flow->transport, DIALLED) :
		     look6(address, port, flow->transport, DIALLED)) != NOT_FOUND;
}

ALONE int leads_to_frontend4(__u32 number, __u32 way)
{
	return leads_to_frontend(number, way, true);
}

ALONE int leads_to_frontend6(__u32 number, __u32 way)
{
	return leads_to_frontend(number, way, false);
}

/* How a port between client and backend is found. */
enum port_search {
	/* Also among the ports that a client which is a node gives to its own clients. */
	FROM_ALL = 1,
	/* Also in the place of a flow that is over or left unanswered. */
	TAKES_OVER = 2,
};

/* Gives a flow a port of chance between client and backend. `false`: that port is not to be used. */
INLINE bool give_through_port(struct flow *flow, __u32 number, __u32 search, bool v4)
{
	flow->through_port = through_port(bpf_get_prandom_u32(), search & FROM_ALL);
	return flow->through_port && !meets_itself(flow) &&
	       !(v4 ? leads_to_frontend4(number, WAY_THROUGH) : leads_to_frontend6(number, WAY_THROUGH));
}

/* The second in which a client had all ports that it may have at a backend, by both of them. */
__u32 crowded_in[1 << CROWDED_BITS];

INLINE __u32 *crowded_second(const struct flow *flow)
{
	__u32 mixed = flow->client[3] * 0x9e3779b1 ^ flow->backend[3] * 0x85ebca6b ^ flow->backend_port * 0xc2b2ae35;
	__u64 at = (mixed ^ mixed >> 15) * 0x9e3779b1 >> (32 - CROWDED_BITS);

	/* Written so that no compiler moves the bound away from the verifier. */
	asm volatile("%0 &= %1" : "+r"(at) : "i"((1 << CROWDED_BITS) - 1));
	return &crowded_in[at];
}

/*
 * Tries one port of chance: see enum port_search. 0, or why not. A step of its own, which the verifier looks at once,
 * and not for each try.
 */
INLINE int put_chosen(__u32 number, __u32 search, bool v4)
{
	struct flow *flow = flow_at(number);

	if (!flow)
		return -ENOENT;
	if (!give_through_port(flow, number, search, v4))
		return -EEXIST;
	return search & TAKES_OVER ? take(number, WAY_THROUGH, true, v4) : put(number, WAY_THROUGH, v4);
}

ALONE int put_chosen4(__u32 number, __u32 search)
{
	return put_chosen(number, search, true);
}

ALONE int put_chosen6(__u32 number, __u32 search)
{
	return put_chosen(number, search, false);
}

/* Puts in the entry between client and backend, by a port of chance: see enum port_search. 0, or why not. */
INLINE int put_any(__u32 number, __u32 search, bool v4)
{
	struct flow *flow = flow_at(number);
	__u32 now = seconds(), *crowded;
	int added = -EEXIST, most = PORT_TRIES;

	if (!flow)
		return -ENOENT;
	crowded = crowded_second(flow);
	if (UNLIKELY(READ_ONCE(*crowded) == now) && !(search & FROM_ALL))
		most = 1;
	for (int tries = 0; tries < PORT_TRIES && added == -EEXIST; tries++) {
		if (tries >= most)
			return added;
		added = v4 ? put_chosen4(number, search) : put_chosen6(number, search);
	}
	if (UNLIKELY(added == -EEXIST))
		*(volatile __u32 *)crowded = now;
	return added;
}

ALONE int put_any4(__u32 number, __u32 search)
{
	return put_any(number, search, true);
}

ALONE int put_any6(__u32 number, __u32 search)
{
	return put_any(number, search, false);
}

INLINE int any_port(const struct arrival *arrival, __u32 search, bool v4)
{
	return v4 ? put_any4(arrival->number, search) : put_any6(arrival->number, search);
}

/*
 * Gives a flow a port for its way to another node. `false`: at this node's address that port is a frontend. The flow's
 * backend may be a client of that frontend, and would be answered by this flow.
 */
INLINE bool give_nat_port(struct flow *flow, __u32 number, __u32 at, bool v4)
{
	flow->nat_port = snat_port(at);
	return flow->transport != IPPROTO_UDP || LIKELY(!any_node_port(flow->nat_port)) ||
	       !(v4 ? leads_to_frontend4(number, WAY_OF_REMOTE) : leads_to_frontend6(number, WAY_OF_REMOTE));
}

/* Tries one port as the way back from another node. 0, or why not. A step of its own, as put_chosen(). */
INLINE int put_remote(__u32 number, __u32 takes, __u32 at, bool v4)
{
	struct flow *flow = flow_at(number);

	if (!flow)
		return -ENOENT;
	if (!give_nat_port(flow, number, at, v4))
		return -EEXIST;
	return takes ? take(number, WAY_OF_REMOTE, true, v4) : put(number, WAY_OF_REMOTE, v4);
}

ALONE int put_remote4(__u32 number, __u32 takes, __u32 at)
{
	return put_remote(number, takes, at, true);
}

ALONE int put_remote6(__u32 number, __u32 takes, __u32 at)
{
	return put_remote(number, takes, at, false);
}

/* Puts in the way back from another node, by a port of chance. 0, or why not. */
INLINE int put_chance(__u32 number, __u32 takes, bool v4)
{
	int added = -EEXIST;
	__u32 at;

	for (int tries = 0; tries < SNAT_TRIES && added == -EEXIST; tries++) {
		at = bpf_get_prandom_u32();
		added = v4 ? put_remote4(number, takes, at) : put_remote6(number, takes, at);
	}
	return added;
}

ALONE int put_chance4(__u32 number, __u32 takes)
{
	return put_chance(number, takes, true);
}

ALONE int put_chance6(__u32 number, __u32 takes)
{
	return put_chance(number, takes, false);
}

/* Puts in the way back from another node, by one of the next ports from that one on. 0, or why not. */
INLINE int put_batch(__u32 number, __u32 takes, __u32 at, bool v4)
{
	int added = -EEXIST;

	for (__u32 tries = 0; tries < SNAT_BATCH && added == -EEXIST; tries++)
		added = v4 ? put_remote4(number, takes, at + tries) : put_remote6(number, takes, at + tries);
	return added;
}

ALONE int put_batch4(__u32 number, __u32 takes, __u32 at)
{
	return put_batch(number, takes, at, true);
}

ALONE int put_batch6(__u32 number, __u32 takes, __u32 at)
{
	return put_batch(number, takes, at, false);
}

/*
 * For the backends of each number, for free ports and for those of flows that yield: the second in which all ports
 * were gone through in vain, and in the lower half how often that was. So for each namespace, and last for all.
 */
__u64 searched_in_vain[2 * SEARCHED + SEARCHED_SHARES + 1];

/*
 * Where searches for the flow's backend are noted, and those for its namespace. The bounds are written so that no
 * compiler moves them away from the verifier.
 */
INLINE __u64 *searched_at(const struct flow *flow, __u32 takes)
{
	__u64 backend = (flow->backend[3] * 0x9e3779b1 + flow->backend_port * 0x85ebca6b) >> 16;
	__u64 at = (share_of(flow) * SEARCHED_BACKENDS + backend % SEARCHED_BACKENDS) << 1 | (takes & 1);

	asm volatile("%0 &= %1" : "+r"(at) : "i"(2 * SEARCHED - 1));
	return &searched_in_vain[at];
}

INLINE __u64 *searched_by(const struct flow *flow)
{
	__u64 share = share_of(flow);

	asm volatile("%0 &= %1" : "+r"(share) : "i"(SEARCHED_SHARES - 1));
	return &searched_in_vain[2 * SEARCHED + share];
}

INLINE bool may_search(const __u64 *in_vain, __u32 most, __u32 now)
{
	__u64 searched = READ_ONCE(*in_vain);

	return searched >> 32 != now || (__u32)searched < most;
}

/* Notes a search that was in vain. Where two CPUs write at once, only one search counts, so there is one more. */
INLINE void note_search(__u64 *in_vain, __u32 now)
{
	__u64 searched = READ_ONCE(*in_vain), so_far = searched >> 32 == now ? (__u32)searched : 0;

	*(volatile __u64 *)in_vain = (__u64)now << 32 | (so_far + 1);
}

/* Goes through all ports from one of chance on. 0, or why not. */
INLINE int search_port(__u32 number, __u32 takes, bool v4)
{
	__u32 from = bpf_get_prandom_u32() >> 1, count = count_of_snat_ports();
	int added = -EEXIST;

	for (__u32 batch = 0; batch < SNAT_BATCHES; batch++) {
		if (batch * SNAT_BATCH >= count)
			return added;
		added = v4 ? put_batch4(number, takes, from + batch * SNAT_BATCH) :
			     put_batch6(number, takes, from + batch * SNAT_BATCH);
		if (added != -EEXIST)
			return added;
	}
	return added;
}

ALONE int search_port4(__u32 number, __u32 takes)
{
	return search_port(number, takes, true);
}

ALONE int search_port6(__u32 number, __u32 takes)
{
	return search_port(number, takes, false);
}

/* Searches all ports, unless that was in vain too often in this second. */
INLINE int search_with_patience(__u32 number, __u32 takes, bool v4)
{
	const struct flow *flow = flow_at(number);
	__u64 *of_all = &searched_in_vain[2 * SEARCHED + SEARCHED_SHARES], *of_some, *of_share;
	__u32 now = seconds();
	int added = -EEXIST;

	if (!flow)
		return -ENOENT;
	of_some = searched_at(flow, takes);
	of_share = searched_by(flow);
	if (!may_search(of_some, SEARCHES_MOST, now) || !may_search(of_share, SHARE_SEARCHES_MOST, now) ||
	    !may_search(of_all, ALL_SEARCHES_MOST, now))
		return added;
	added = v4 ? search_port4(number, takes) : search_port6(number, takes);
	if (added == -EEXIST) {
		note_search(of_some, now);
		note_search(of_share, now);
		note_search(of_all, now);
	}
	return added;
}

ALONE int remote_port4(__u32 number, __u32 takes)
{
	int added = put_chance4(number, takes);

	return LIKELY(added != -EEXIST) ? added : search_with_patience(number, takes, true);
}

ALONE int remote_port6(__u32 number, __u32 takes)
{
	int added = put_chance6(number, takes);

	return LIKELY(added != -EEXIST) ? added : search_with_patience(number, takes, false);
}

/* Finds a port towards another node by chance, and if that finds none, by a search. */
INLINE int remote_port(const struct arrival *arrival, bool takes, bool v4)
{
	if (!count_of_snat_ports())
		return -EEXIST;
	return v4 ? remote_port4(arrival->number, takes) : remote_port6(arrival->number, takes);
}

/*
 * Puts in the way back from another node's backend. To put it in is to have the port. Where a connection of another
 * proxy has the port, the daemon has put in an entry that leads to no flow. A backend remembers for a while a
 * connection that is over (TIME_WAIT), and may doubt a client that comes from the same port: so such ports are taken
 * last, as are those of flows that are left unanswered. 0, or why not.
 */
INLINE int add_remote(const struct arrival *arrival, struct flow *flow, bool v4)
{
	int added = remote_port(arrival, false, v4);

	if (UNLIKELY(added == -EEXIST))
		added = remote_port(arrival, true, v4);
	if (added)
		flow->nat_port = 0;
	else
		flow->of_backend |= IS_UNSENT;
	return added;
}

INLINE int put_own_port(const struct arrival *arrival, struct flow *flow, bool v4)
{
	return meets_itself(flow) ? -EEXIST : put(arrival->number, WAY_THROUGH, v4);
}

/* Like put_own_port(), also in the place of a flow that is over or left unanswered. */
INLINE int take_own_port(const struct arrival *arrival, struct flow *flow, bool v4)
{
	flow->through_port = flow->client_port;
	return meets_itself(flow) ? -EEXIST : take(arrival->number, WAY_THROUGH, true, v4);
}

/*
 * Puts in the entry between backend and client. A client that dials the backend itself as well may use the same ports
 * both ways, and the backend would take the two connections for one. So the client gets another port here, except where
 * its own is to be seen, or where the backend is on another node and sees a port of this one. A flow of which no packet
 * is seen between the two here has the entry all the same: it says whose the flow is. A client may also come
 * from one port to two frontends with one backend: what it has reset by the one keeps that port for a while, because a
 * stranger may have said so, and the client does not wait for that at the other. 0, or why not.
 */
INLINE int add_through(const struct arrival *arrival, struct flow *flow, bool v4)
{
	int added = -EEXIST;

	if (arrival->keeps_port || flow->nat_port || is_wrapped(flow))
		added = put_own_port(arrival, flow, v4);
	if (added == -EEXIST)
		added = any_port(arrival, 0, v4);
	if (added == -EEXIST)
		added = take_own_port(arrival, flow, v4);
	if (UNLIKELY(added == -EEXIST))
		added = any_port(arrival, FROM_ALL, v4);
	return UNLIKELY(added == -EEXIST) ? any_port(arrival, TAKES_OVER, v4) : added;
}

#endif

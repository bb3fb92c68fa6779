/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections that another node has let in: where all nodes choose alike, what belongs to one goes on to the backend of
 * that choice, on that one's node. That node knows the connection, or denies it.
 */
#ifndef HOLDFAST_JOINED_H
#define HOLDFAST_JOINED_H

#include "arrival.h"
#include "arrived.h"
#include "packet.h"

/* The state that the kernel gives a socket that waits for connections. */
#define LISTENING 10

/*
 * Whether the segment is of a connection of a process of this node: that may be at an address of the node's own which
 * is a frontend's, too.
 */
INLINE bool is_of_process(struct __sk_buff *skb, bool v4)
{
	const struct arrival *arrival = the_arrival();
	struct bpf_sock_tuple asked = {};
	struct bpf_sock *socket;
	bool is_connected;

	if (!arrival)
		return false;
	socket_tuple(&asked, &arrival->packet.tuple, v4);
	socket = bpf_skc_lookup_tcp(skb, &asked, v4 ? sizeof(asked.ipv4) : sizeof(asked.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	is_connected = socket->state != LISTENING;
	bpf_sk_release(socket);
	return is_connected;
}

/*
 * Chooses for a client that is none of this node's so far, where all nodes choose alike: so the backend is the one that
 * another node has chosen, unless the list has changed since.
 */
INLINE bool choose_as_others(struct arrival *arrival, struct dial *dial, __u64 *word)
{
	__u64 cluster;

	know_by_address(&dial->client, &arrival->packet.tuple.source);
	*word = read_word_for(arrival, dial, &cluster);
	return is_by_maglev(*word) && word_count(*word) && !is_barred(arrival, dial, cluster) &&
	       choose_by_client(dial, *word, mixed_sight(dial, arrival->packet.tuple.source.port));
}

/* Notes the backend on another node that a client of this frontend would get with a SYN. `false`: there is none. */
INLINE bool find_others_choice(struct arrival *arrival, struct dial *dial, bool v4)
{
	__u64 word;

	if (says_to_be_node(&arrival->packet, v4) || !choose_as_others(arrival, dial, &word))
		return false;
	arrival->sticks = 0;
	note_choice(arrival, dial, word, v4);
	return arrival->may_wrap;
}

/* Has a packet go to the node of the backend that was found, and opens no flow for it. */
INLINE int go_stateless(struct arrival *arrival)
{
	arrival->number = NO_FLOW;
	arrival->between = arrival->packet.tuple;
	arrival->between.destination = arrival->backend;
	return WRAPS;
}

/*
 * Whether a packet goes on to the backend that a client with a SYN would get here, on that one's node: that node knows
 * the connection, or denies it. It goes there as it came or not at all, because only then the backend knows the client.
 * Nothing follows a reset, so that opens no flow.
 */
INLINE int join(struct arrival *arrival, bool v4)
{
	bool is_reset = arrival->packet.flags & TCP_RST;
	struct dial dial = {};

	dial_of(&dial, &arrival->packet.tuple, v4);
	if (!find_frontend(&dial))
		return NEXT;
	arrival->joins = find_others_choice(arrival, &dial, v4) && !(is_reset && arrival->flags & DEVICE_SECURED);
	if (arrival->joins && is_reset)
		return go_stateless(arrival);
	if (arrival->joins)
		return stand_still() ? SHOT : CHOSEN;
	leave_to_stack(arrival, &dial);
	return NEXT;
}

/*
 * Whether an error goes on to the backend that the client of the quoted answer would get here, on that one's node. In
 * the map of arrivals the packet looks as that client's. Routers share errors out by other rules than packets, so an
 * error may come to a node that has never heard of the connection.
 */
INLINE int join_error(void *ctx, struct arrival *arrival, bool v4)
{
	struct device *device = bpf_map_lookup_elem(&devices, &arrival->device);
	const struct tuple *tuple = &arrival->packet.tuple;
	struct dial dial = {};

	arrival->flags = device ? device->flags : 0;
	arrival->from_pod = arrival->flags & DEVICE_POD;
	dial_of(&dial, tuple, v4);
	if (arrival->flags & (DEVICE_BACKENDS | DEVICE_SECURED) || is_draining() || !may_be_of_others(arrival) ||
	    !find_frontend(&dial) || is_answer_to_own(ctx, &dial, tuple, v4) ||
	    !find_others_choice(arrival, &dial, v4))
		return NEXT;
	return go_stateless(arrival);
}

#endif

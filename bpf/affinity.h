/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Clients that are known by their packets, and come back to the backend that they had.
 *
 * A client that is not known gets its backend by its address, so that connections that begin at the same time go to the
 * same backend. One that was known, and stayed away for too long, gets it by its address and by when it came last: it
 * may get any backend, as a new client does. A client is known once a packet of its backend proves that the client
 * hears it, so no client is remembered because others send TCP or SCTP in its name. By UDP an answer is all that there
 * is. A namespace has so many places, however many ports its services have and however many clients crowd there: those
 * clients push out each other, and one namespace takes up an eighth of the table at most.
 */
#ifndef HOLDFAST_AFFINITY_H
#define HOLDFAST_AFFINITY_H

#include "conntrack.h"
#include "lb.h"

/* At how many places a client may stand. */
#define PLACES 2

/* A list of a port. */
struct list {
	__u32 port_index;
	__u32 scope;
};

INLINE __u64 mixed_client(const __u32 *client, const struct list *list)
{
	__u64 mixed = mix(list->scope, list->port_index, 0);

	return mix(mix(mixed, client[3], client[2]), client[1], client[0]);
}

/*
 * Leaves of a client's address what counts, so that clients of one prefix are one client. Without branches, as
 * is_turned().
 */
INLINE void leave_out(__u32 *client, const struct port_facts *facts)
{
	__u64 bits = READ_ONCE(facts->left_out), half = bits >> 6, rest = bits & 63;
	__u64 low = ~0ULL << rest & (half - 1), high = ~0ULL << (rest & -half);

	client[0] &= bpf_htonl((__u32)(high >> 32));
	client[1] &= bpf_htonl((__u32)high);
	client[2] &= bpf_htonl((__u32)(low >> 32));
	client[3] &= bpf_htonl((__u32)low);
}

/* One of the places at which a client may stand. Without branches, as is_turned(). */
INLINE void client_key_of(struct client_key *key, __u64 mixed, __u32 share, __u32 which)
{
	key->share = share & (FLOW_SHARES - 1);
	key->place = mixed >> 16 * which & (CLIENTS_OF_SHARE - 1);
}

/* Whether that client stands there, as one of that list. Without branches, as is_turned(). */
INLINE bool is_client(const struct client_value *there, const __u32 *client, const struct list *list)
{
	return !(differences(there->client, client) | (there->port_index ^ list->port_index) |
		 (there->scope ^ list->scope));
}

/* What is known of a client: nothing that counts, its backend, or that it was away for too long. */
enum known { IS_UNKNOWN, COMES_BACK, WAS_AWAY };

/*
 * Chooses the client's last backend, if that choice is young enough and the backend still in the list. If not, `mixed`
 * becomes another number, by when the client came last. A value that was read torn names no member. The clock is read
 * last: another CPU may choose for the same client meanwhile, and no choice may seem to be of the future.
 */
INLINE enum known choose_known(struct dial *dial, const struct port *port, const struct list *list, __u64 *mixed)
{
	struct client_value *last;
	struct client_key key;
	__u64 at_ns, now;

	for (__u32 which = 0; which < PLACES; which++) {
		client_key_of(&key, *mixed, dial->share, which);
		last = bpf_map_lookup_elem(&clients, &key);
		if (!last || !is_client(last, dial->client.id, list))
			continue;
		at_ns = READ_ONCE(last->at_ns);
		now = bpf_ktime_get_ns();
		copy_address(dial->backend.address, last->address);
		dial->backend.port = last->port;
		if (now - at_ns < port->facts.affinity_timeout * NS_PER_SECOND && is_member(dial, dial->scope)) {
			last->at_ns = now;
			return COMES_BACK;
		}
		*mixed = mix(*mixed, at_ns, at_ns >> 32);
		return now - at_ns < port->facts.affinity_timeout * NS_PER_SECOND ? IS_UNKNOWN : WAS_AWAY;
	}
	return IS_UNKNOWN;
}

/* Chooses by that number, which is the same for connections of a client that begin at once. */
INLINE bool choose_by_client(struct dial *dial, __u64 word, __u64 mixed)
{
	return read_slot(dial, word_base(word) + ((mixed >> 32) * word_count(word) >> 32), &dial->backend);
}

/*
 * What a packet of a client shows, as a number that is the same on all nodes. Of a node port the address does not
 * count, because each node has another one. `port`: the client's, or 0 where clients are known by their addresses
 * alone.
 */
INLINE __u64 mixed_sight(const struct dial *dial, __u16 port)
{
	const __u32 any[4] = {};
	__u64 mixed = mix_place(dial->transport, dial->kind == NODE_PORT ? any : dial->to.address, dial->to.port);

	return mix_place(mixed, dial->client.id, port);
}

INLINE bool is_by_maglev(__u64 word)
{
	return word_flags(word) & WORD_MAGLEV;
}

/* Chooses for a client that need not come back to the backend that it had. */
INLINE bool choose_anew(struct dial *dial, __u64 word, __u16 port)
{
	if (LIKELY(!is_by_maglev(word)))
		return choose_random(dial, word);
	return choose_by_client(dial, word, mixed_sight(dial, port));
}

INLINE void know_by_address(struct client *client, const struct place *from)
{
	copy_address(client->id, from->address);
	client->kind = CLIENT_ADDRESS;
}

/*
 * As choose(), for a client that is known by its packet, which it sends from `from`. `sticks`: by which list the
 * backend is to be remembered once it has answered; 0: not at all.
 */
INLINE bool choose_for_packet(struct dial *dial, __u64 word, const struct place *from, __u32 *sticks)
{
	const struct list list = { dial->port_index, dial->scope };
	struct port *port = port_of(dial);
	enum known known;
	__u64 mixed;

	*sticks = 0;
	if (UNLIKELY(!port))
		return false;
	know_by_address(&dial->client, from);
	if (LIKELY(!has_affinity(word))) {
		if (!choose_anew(dial, word, from->port))
			return false;
	} else {
		leave_out(dial->client.id, &port->facts);
		mixed = mixed_client(dial->client.id, &list);
		known = choose_known(dial, port, &list, &mixed);
		if (known != COMES_BACK) {
			if (is_by_maglev(word) && known != WAS_AWAY)
				mixed = mixed_sight(dial, 0);
			if (!choose_by_client(dial, word, mixed))
				return false;
			*sticks = dial->scope == SCOPE_LOCAL ? STICKS_LOCAL : STICKS_CLUSTER;
		}
	}
	count_connect(port);
	return true;
}

/* Finds the place for a client: its own, or a free one, or that of the client that came less lately. */
INLINE void take_place(struct client_key *place, __u32 share, const __u32 *client, const struct list *list)
{
	__u64 mixed = mixed_client(client, list), oldest = ~0ULL, at_ns;
	const struct client_value *there;
	struct client_key key;

	for (__u32 which = 0; which < PLACES; which++) {
		client_key_of(&key, mixed, share, which);
		there = bpf_map_lookup_elem(&clients, &key);
		at_ns = there ? READ_ONCE(there->at_ns) : 1;
		if (there && is_client(there, client, list))
			at_ns = 0;
		if (at_ns < oldest) {
			oldest = at_ns;
			*place = key;
		}
	}
}

/* Remembers the client of a flow with its backend, which has answered: so the client comes back to that backend. */
ALONE int remember_client(__u32 number)
{
	struct flow *flow = flow_at(number);
	struct client_value value = {};
	struct client_key key = {};
	struct list list;
	struct port *port;

	if (!flow)
		return 0;
	flow->of_backend |= IS_REMEMBERED;
	list.port_index = port_of_flow(flow);
	list.scope = flow->of_client & STICKS_LOCAL ? SCOPE_LOCAL : SCOPE_CLUSTER;
	port = bpf_map_lookup_elem(&ports, &list.port_index);
	if (!port)
		return 0;
	value.at_ns = bpf_ktime_get_ns();
	copy_address(value.client, flow->client);
	leave_out(value.client, &port->facts);
	copy_address(value.address, flow->backend);
	value.port = flow->backend_port;
	value.port_index = list.port_index;
	value.scope = list.scope;
	take_place(&key, share_of(flow), value.client, &list);
	bpf_map_update_elem(&clients, &key, &value, BPF_ANY);
	return 0;
}

#endif

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
#define CLIENT_SLOTS 2

/* A list of a port. */
struct list_key {
	__u32 port_index;
	__u32 scope;
};

INLINE __u64 hash_client(const __u32 *client, const struct list_key *list)
{
	__u64 mixed = mix(list->scope, list->port_index, 0);

	return mix(mix(mixed, client[3], client[2]), client[1], client[0]);
}

/*
 * Leaves of a client's address what counts, so that clients of one prefix are one client. Without branches, as
 * is_reversed().
 */
INLINE void mask_client(__u32 *client, const struct port_facts *facts)
{
	__u64 bits = READ_ONCE(facts->ignored_bits), half = bits >> 6, rest = bits & 63;
	__u64 low = ~0ULL << rest & (half - 1), high = ~0ULL << (rest & -half);

	client[0] &= bpf_htonl((__u32)(high >> 32));
	client[1] &= bpf_htonl((__u32)high);
	client[2] &= bpf_htonl((__u32)(low >> 32));
	client[3] &= bpf_htonl((__u32)low);
}

/* One of the places at which a client may stand. Without branches, as is_reversed(). */
INLINE void set_client_key(struct client_key *key, __u64 mixed, __u32 share, __u32 which)
{
	key->share = share & (FLOW_SHARES - 1);
	key->slot = mixed >> 16 * which & (CLIENTS_PER_SHARE - 1);
}

/* Whether that client stands there, as one of that list. Without branches, as is_reversed(). */
INLINE bool is_same_client(const struct client_value *there, const __u32 *client, const struct list_key *list)
{
	return !(address_diff(there->client, client) | (there->port_index ^ list->port_index) |
		 (there->scope ^ list->scope));
}

/* What is known of a client: nothing that counts, its backend, or that it was away for too long. */
enum affinity_result { AFFINITY_NONE, AFFINITY_HIT, AFFINITY_EXPIRED };

/*
 * Chooses the client's last backend, if that choice is young enough and the backend still in the list. If not, `mixed`
 * becomes another number, by when the client came last. A value that was read torn names no member. The clock is read
 * last: another CPU may choose for the same client meanwhile, and no choice may seem to be of the future.
 */
INLINE enum affinity_result select_by_client_affinity(struct lb_request *request, const struct port *port,
						      const struct list_key *list, __u64 *mixed)
{
	struct client_value *last;
	struct client_key key;
	__u64 at_ns, now;

	for (__u32 which = 0; which < CLIENT_SLOTS; which++) {
		set_client_key(&key, *mixed, request->share, which);
		last = bpf_map_lookup_elem(&clients, &key);
		if (!last || !is_same_client(last, request->client.id, list))
			continue;
		at_ns = READ_ONCE(last->at_ns);
		now = bpf_ktime_get_ns();
		copy_address(request->backend.address, last->address);
		request->backend.port = last->port;
		if (now - at_ns < port->facts.affinity_timeout * NS_PER_SECOND && is_member(request, request->scope)) {
			last->at_ns = now;
			return AFFINITY_HIT;
		}
		*mixed = mix(*mixed, at_ns, at_ns >> 32);
		return now - at_ns < port->facts.affinity_timeout * NS_PER_SECOND ? AFFINITY_NONE : AFFINITY_EXPIRED;
	}
	return AFFINITY_NONE;
}

/* Chooses by that number, which is the same for connections of a client that begin at once. */
INLINE bool select_by_hash(struct lb_request *request, __u64 word, __u64 mixed)
{
	return read_slot(request, word_base(word) + ((mixed >> 32) * word_count(word) >> 32), &request->backend);
}

/*
 * What a packet of a client shows, as a number that is the same on all nodes. Of a node port the address does not
 * count, because each node has another one. `port`: the client's, or 0 where clients are known by their addresses
 * alone.
 */
INLINE __u64 maglev_hash(const struct lb_request *request, __u16 port)
{
	const __u32 any[4] = {};
	__u64 mixed = mix_endpoint(request->transport, request->kind == NODE_PORT ? any : request->to.address,
				   request->to.port);

	return mix_endpoint(mixed, request->client.id, port);
}

INLINE bool uses_maglev(__u64 word)
{
	return word_flags(word) & WORD_MAGLEV;
}

/* Chooses for a client that need not come back to the backend that it had. */
INLINE bool select_without_affinity(struct lb_request *request, __u64 word, __u16 port)
{
	if (LIKELY(!uses_maglev(word)))
		return select_random(request, word);
	return select_by_hash(request, word, maglev_hash(request, port));
}

INLINE void set_client_address(struct client_id *client, const struct endpoint *from)
{
	copy_address(client->id, from->address);
	client->kind = CLIENT_ADDRESS;
}

/*
 * As select_from_list(), for a client that is known by its packet, which it sends from `from`. `affinity_flag`: by
 * which list the backend is to be remembered once it has answered; 0: not at all.
 */
INLINE bool select_for_packet(struct lb_request *request, __u64 word, const struct endpoint *from, __u32 *affinity_flag)
{
	const struct list_key list = { request->port_index, request->scope };
	struct port *port = lookup_port(request);
	enum affinity_result result;
	__u64 mixed;

	*affinity_flag = 0;
	if (UNLIKELY(!port))
		return false;
	set_client_address(&request->client, from);
	if (LIKELY(!has_affinity(word))) {
		if (!select_without_affinity(request, word, from->port))
			return false;
	} else {
		mask_client(request->client.id, &port->facts);
		mixed = hash_client(request->client.id, &list);
		result = select_by_client_affinity(request, port, &list, &mixed);
		if (result != AFFINITY_HIT) {
			if (uses_maglev(word) && result != AFFINITY_EXPIRED)
				mixed = maglev_hash(request, 0);
			if (!select_by_hash(request, word, mixed))
				return false;
			*affinity_flag = request->scope == SCOPE_LOCAL ? FLOW_AFFINITY_LOCAL : FLOW_AFFINITY_CLUSTER;
		}
	}
	count_connect(port);
	return true;
}

/* Finds the place for a client: its own, or a free one, or that of the client that came less lately. */
INLINE void find_client_slot(struct client_key *slot, __u32 share, const __u32 *client, const struct list_key *list)
{
	__u64 mixed = hash_client(client, list), oldest = ~0ULL, at_ns;
	const struct client_value *there;
	struct client_key key;

	for (__u32 which = 0; which < CLIENT_SLOTS; which++) {
		set_client_key(&key, mixed, share, which);
		there = bpf_map_lookup_elem(&clients, &key);
		at_ns = there ? READ_ONCE(there->at_ns) : 1;
		if (there && is_same_client(there, client, list))
			at_ns = 0;
		if (at_ns < oldest) {
			oldest = at_ns;
			*slot = key;
		}
	}
}

/* Remembers the client of a flow with its backend, which has answered: so the client comes back to that backend. */
GLOBAL int save_client(__u32 number)
{
	struct flow *flow = get_flow(number);
	struct client_value value = {};
	struct client_key key = {};
	struct list_key list;
	struct port *port;

	if (!flow)
		return 0;
	flow->backend_flags |= FLOW_CLIENT_SAVED;
	list.port_index = flow_port_index(flow);
	list.scope = flow->client_flags & FLOW_AFFINITY_LOCAL ? SCOPE_LOCAL : SCOPE_CLUSTER;
	port = bpf_map_lookup_elem(&ports, &list.port_index);
	if (!port)
		return 0;
	value.at_ns = bpf_ktime_get_ns();
	copy_address(value.client, flow->client);
	mask_client(value.client, &port->facts);
	copy_address(value.address, flow->backend);
	value.port = flow->backend_port;
	value.port_index = list.port_index;
	value.scope = list.scope;
	find_client_slot(&key, flow_share(flow), value.client, &list);
	bpf_map_update_elem(&clients, &key, &value, BPF_ANY);
	return 0;
}

#endif

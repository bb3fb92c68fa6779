/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Session affinity of clients that are known by their packets.
 *
 * Owns: the hash of a client and its slots in `clients`. Reads: `ports`, `members`, `backends4/6`. Writes: `clients`,
 * the connect counts in `ports`, and the flow's flag that its client is saved.
 *
 * An unknown client gets its backend by a hash of its address, so connections that begin at once go to one backend. A
 * client whose affinity has expired gets it by a hash of its address and of its last visit, so it may get any backend.
 * save_client() records a client after a packet of its backend proved that the client receives what the backend sends.
 * So no host can record another one by forging TCP or SCTP packets. Over UDP a reply is all the proof that there is.
 * Each namespace has a fixed number of slots, whatever its count of ports and clients. Its clients evict each other,
 * and one namespace fills an eighth of the map at most.
 */
#ifndef HOLDFAST_AFFINITY_H
#define HOLDFAST_AFFINITY_H

#include "conntrack.h"
#include "lb.h"

/* How many slots a client may have. */
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

/* Clears the ignored bits of a client's address, so that a prefix is one client. Without branches, as is_reversed(). */
INLINE void mask_client(__u32 *client, const struct port_facts *facts)
{
	__u64 bits = READ_ONCE(facts->ignored_bits), half = bits >> 6, rest = bits & 63;
	__u64 low = ~0ULL << rest & (half - 1), high = ~0ULL << (rest & -half);

	client[0] &= bpf_htonl((__u32)(high >> 32));
	client[1] &= bpf_htonl((__u32)high);
	client[2] &= bpf_htonl((__u32)(low >> 32));
	client[3] &= bpf_htonl((__u32)low);
}

/* One of a client's slots. Without branches, as is_reversed(). */
INLINE void set_client_key(struct client_key *key, __u64 mixed, __u32 share, __u32 which)
{
	key->share = share & (FLOW_SHARES - 1);
	key->slot = mixed >> 16 * which & (CLIENTS_PER_SHARE - 1);
}

/* Whether a slot holds that client of that list. Without branches, as is_reversed(). */
INLINE bool is_same_client(const struct client_value *value, const __u32 *client, const struct list_key *list)
{
	return !(address_diff(value->client, client) | (value->port_index ^ list->port_index) |
		 (value->scope ^ list->scope));
}

/* What the map knows of a client: nothing, its backend, or that its affinity has expired. */
enum affinity_result { AFFINITY_NONE, AFFINITY_HIT, AFFINITY_EXPIRED };

/*
 * Selects the client's last backend, if that is recent and the backend is still in the list. Otherwise it mixes the
 * time of the last visit into the hash. A torn value names no member. The clock is read last: another CPU may select
 * for the same client meanwhile, and no time may lie in the future.
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

/* Selects by a hash that is equal for connections of a client that begin at once. */
INLINE bool select_by_hash(struct lb_request *request, __u64 word, __u64 mixed)
{
	return read_slot(request, word_base(word) + ((mixed >> 32) * word_count(word) >> 32), &request->backend);
}

/*
 * A hash of a client's packet that is equal on all nodes. It leaves out the address of a node port, because each node
 * has another one. `port`: the client's port, or 0 where clients are known by address alone.
 */
INLINE __u64 maglev_hash(const struct lb_request *request, __u16 port)
{
	const __u32 any[4] = {};
	__u64 mixed = mix_endpoint(request->transport, request->kind == NODE_PORT ? any : request->frontend.address,
				   request->frontend.port);

	return mix_endpoint(mixed, request->client.id, port);
}

INLINE bool uses_maglev(__u64 word)
{
	return word_flags(word) & WORD_MAGLEV;
}

/* Selects for a client without affinity. */
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

INLINE void set_request(struct lb_request *request, const struct tuple *tuple, bool v4)
{
	request->frontend = tuple->destination;
	request->transport = tuple->transport;
	request->v4 = v4;
}

/*
 * Selects for the client of the packet in the scratch map, which keeps the backend. A global function: few services
 * have affinity, and the verifier would follow each packet once more for them.
 */
INLINE bool select_with_affinity(__u64 word, __u32 scope, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct lb_request request = {};
	enum affinity_result result;
	struct list_key list;
	struct port *port;
	__u64 mixed;

	if (!scratch)
		return false;
	set_request(&request, &scratch->packet.tuple, v4);
	set_target(&request, scratch->target);
	request.scope = scope;
	port = lookup_port(&request);
	if (UNLIKELY(!port))
		return false;
	set_client_address(&request.client, &scratch->packet.tuple.source);
	mask_client(request.client.id, &port->facts);
	list.port_index = request.port_index;
	list.scope = scope;
	mixed = hash_client(request.client.id, &list);
	result = select_by_client_affinity(&request, port, &list, &mixed);
	if (result != AFFINITY_HIT) {
		if (uses_maglev(word) && result != AFFINITY_EXPIRED)
			mixed = maglev_hash(&request, 0);
		if (!select_by_hash(&request, word, mixed))
			return false;
		scratch->affinity_flag = scope == SCOPE_LOCAL ? FLOW_AFFINITY_LOCAL : FLOW_AFFINITY_CLUSTER;
	}
	scratch->backend = request.backend;
	return true;
}

GLOBAL int select_with_affinity4(__u64 word, __u32 scope)
{
	return select_with_affinity(word, scope, true);
}

GLOBAL int select_with_affinity6(__u64 word, __u32 scope)
{
	return select_with_affinity(word, scope, false);
}

/*
 * As select_from_list(), for the client of the packet in the scratch map. The scratch map keeps the backend, and the
 * flag of the list in which the client is saved after its backend replied.
 */
INLINE bool select_for_packet(struct lb_request *request, __u64 word, struct scratch *scratch)
{
	const struct endpoint *client = &scratch->packet.tuple.source;
	struct port *port = lookup_port(request);

	scratch->affinity_flag = 0;
	if (UNLIKELY(!port))
		return false;
	if (LIKELY(!has_affinity(word))) {
		set_client_address(&request->client, client);
		if (!select_without_affinity(request, word, client->port))
			return false;
		scratch->backend = request->backend;
	} else if (!(request->v4 ? select_with_affinity4(word, request->scope) :
				   select_with_affinity6(word, request->scope))) {
		return false;
	}
	count_connect(port);
	return true;
}

/* Finds the slot for a client: its own, or a free one, or that of the client that came longest ago. */
INLINE void find_client_slot(struct client_key *slot, __u32 share, const __u32 *client, const struct list_key *list)
{
	__u64 mixed = hash_client(client, list), oldest = ~0ULL, at_ns;
	const struct client_value *value;
	struct client_key key;

	for (__u32 which = 0; which < CLIENT_SLOTS; which++) {
		set_client_key(&key, mixed, share, which);
		value = bpf_map_lookup_elem(&clients, &key);
		at_ns = value ? READ_ONCE(value->at_ns) : 1;
		if (value && is_same_client(value, client, list))
			at_ns = 0;
		if (at_ns < oldest) {
			oldest = at_ns;
			*slot = key;
		}
	}
}

/* Saves the client of a flow whose backend has replied, so the client gets that backend again. */
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

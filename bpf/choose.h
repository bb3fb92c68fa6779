/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a port index to a backend: word, affinity, sticky datagrams, chance. */
#ifndef HOLDFAST_CHOOSE_H
#define HOLDFAST_CHOOSE_H

#include "dial.h"
#include "maps.h"

/*
 * How many slots are looked at to find a datagram socket's backend in a list that was replaced. Each one is
 * walked through by the verifier, so a larger number makes loading slower, not running.
 */
#define STICKY_SEARCH_MAX 32

#define NS_PER_SECOND 1000000000ULL

INLINE __u32 word_base(__u64 word)
{
	return (__u32)word;
}

INLINE __u32 word_count(__u64 word)
{
	return (word >> 32) & 0xfffff;
}

INLINE __u32 word_flags(__u64 word)
{
	return word >> 52;
}

INLINE struct port *port_of(const struct dial *dial)
{
	__u32 at = dial->port_index;

	return bpf_map_lookup_elem(&ports, &at);
}

/* The word of the list that is meant for this client. A port that is not there refuses. */
INLINE __u64 read_word(struct dial *dial)
{
	struct port *port = port_of(dial);
	__u64 word;

	dial->scope = SCOPE_CLUSTER;
	if (UNLIKELY(!port))
		return 0;
	word = READ_ONCE(port->cluster);
	if (UNLIKELY(dial->kind == CLUSTER_IP && word_flags(word) & WORD_INTERNAL_LOCAL)) {
		dial->scope = SCOPE_LOCAL;
		word = READ_ONCE(*after(&port->local, word));
	}
	return word;
}

/* Reads a slot. An empty one is no backend. */
INLINE bool read_slot(const struct dial *dial, __u32 at, struct place *backend)
{
	if (dial->v4) {
		struct slot4 *slot = bpf_map_lookup_elem(&backends4, &at);

		if (UNLIKELY(!slot || !slot->port))
			return false;
		place4(backend, slot->address, slot->port);
	} else {
		struct slot6 *slot = bpf_map_lookup_elem(&backends6, &at);

		if (UNLIKELY(!slot || !slot->port))
			return false;
		copy_address(backend->address, slot->address);
		backend->port = slot->port;
	}
	return true;
}

INLINE bool same_place(const struct place *a, const struct place *b)
{
	return !(differences(a->address, b->address) | (a->port ^ b->port));
}

INLINE bool holds(struct dial *dial, __u32 at, const struct place *wanted)
{
	if (!read_slot(dial, at, &dial->backend) || !same_place(&dial->backend, wanted))
		return false;
	dial->slot = at;
	return true;
}

/* Finds a backend in a list: where it was, or else among the first slots. */
INLINE bool still_listed(struct dial *dial, __u64 word, __u32 was_at, const struct place *wanted)
{
	__u32 base = word_base(word), count = word_count(word);

	if (was_at - base < count && holds(dial, was_at, wanted))
		return true;
	for (__u32 at = 0; at < STICKY_SEARCH_MAX; at++) {
		if (at >= count)
			break;
		if (holds(dial, base + at, wanted))
			return true;
	}
	return false;
}

INLINE void udp_key_of(struct bpf_sock_addr *ctx, struct udp_key *key, const struct place *place)
{
	key->cookie = bpf_get_socket_cookie(ctx);
	copy_address(key->address, place->address);
	key->port = place->port;
	key->pad[0] = key->pad[1] = key->pad[2] = 0;
}

/*
 * A datagram goes where the one before it went, as long as that backend is in the list: a conversation
 * is more than one datagram.
 */
INLINE bool choose_sticky(struct bpf_sock_addr *ctx, struct dial *dial, __u64 word)
{
	struct udp_key key;
	struct udp_value *last;
	struct place wanted;

	udp_key_of(ctx, &key, &dial->to);
	last = bpf_map_lookup_elem(&udp_sticky, &key);
	if (!last)
		return false;
	copy_address(wanted.address, last->address);
	wanted.port = last->port;
	return still_listed(dial, word, last->slot, &wanted);
}

INLINE void affinity_key_of(struct bpf_sock_addr *ctx, struct affinity_key *key, const struct dial *dial)
{
	key->client = bpf_get_netns_cookie(ctx);
	key->port_index = dial->port_index;
	key->scope = dial->scope;
}

INLINE bool is_member(const struct dial *dial, const struct place *backend)
{
	struct member_key key = {
		.port_index = dial->port_index,
		.scope = dial->scope,
		.port = backend->port,
	};

	copy_address(key.address, backend->address);
	return bpf_map_lookup_elem(&members, &key) != NULL;
}

/* The client's last choice, if it is young enough and still in the list. A torn one is no member. */
INLINE bool choose_affine(struct bpf_sock_addr *ctx, struct dial *dial)
{
	struct port *port = port_of(dial);
	struct affinity_key key;
	struct affinity_value *last;
	__u64 now = bpf_ktime_get_ns();

	affinity_key_of(ctx, &key, dial);
	last = bpf_map_lookup_elem(&affinity, &key);
	if (!port || !last || now - last->at_ns >= port->facts.affinity_timeout * NS_PER_SECOND)
		return false;
	copy_address(dial->backend.address, last->address);
	dial->backend.port = last->port;
	if (!is_member(dial, &dial->backend))
		return false;
	last->at_ns = now;
	return true;
}

INLINE void remember_affine(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	struct affinity_key key;
	struct affinity_value value = {
		.port = dial->backend.port,
		.at_ns = bpf_ktime_get_ns(),
	};

	copy_address(value.address, dial->backend.address);
	affinity_key_of(ctx, &key, dial);
	bpf_map_update_elem(&affinity, &key, &value, BPF_ANY);
}

/* Does not ask for chance where there is none. */
INLINE bool choose_random(struct dial *dial, __u64 word)
{
	__u64 count = word_count(word);

	dial->slot = word_base(word);
	if (count > 1)
		dial->slot += bpf_get_prandom_u32() * count >> 32;
	return read_slot(dial, dial->slot, &dial->backend);
}

/*
 * A client that gets a backend: by connect(), or by the first datagram of a conversation. Not atomic, which would wait for all
 * that was written before, and cost as much as the rest: of two clients at the very same moment one may be missing.
 */
INLINE void count_connect(struct port *port)
{
	port->connects[bpf_get_smp_processor_id() & (CONNECT_COLUMNS - 1)] += 1;
}

/* Chooses from a list that is not empty. Only the first attempt looks for what went before. */
INLINE bool choose(struct bpf_sock_addr *ctx, struct dial *dial, __u64 word, bool first)
{
	bool affine = word_flags(word) & WORD_AFFINITY;
	struct port *port = port_of(dial);

	if (first && !dial->connecting && choose_sticky(ctx, dial, word))
		return true;
	if (!affine || !choose_affine(ctx, dial)) {
		if (!choose_random(dial, word))
			return false;
		if (affine)
			remember_affine(ctx, dial);
	}
	if (LIKELY(port))
		count_connect(port);
	return true;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a port index to a backend: word, affinity, chance. */
#ifndef HOLDFAST_CHOOSE_H
#define HOLDFAST_CHOOSE_H

#include "dial.h"
#include "maps.h"

INLINE __u32 word_base(__u64 word)
{
	return (__u32)word;
}

INLINE __u32 word_count(__u64 word)
{
	return (word >> WORD_COUNT_AT) & ((1 << (WORD_FLAGS_AT - WORD_COUNT_AT)) - 1);
}

INLINE __u32 word_flags(__u64 word)
{
	return word >> WORD_FLAGS_AT;
}

INLINE struct port *port_of(const struct dial *dial)
{
	__u32 at = dial->port_index;

	return bpf_map_lookup_elem(&ports, &at);
}

/* Whether the internal traffic policy binds clients of this frontend, and not the external one. */
INLINE bool is_internal(const struct dial *dial)
{
	return dial->kind == CLUSTER_IP || dial->kind == CLUSTER_SET_IP;
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
	if (UNLIKELY(word_flags(word) & WORD_INTERNAL_LOCAL && is_internal(dial))) {
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

INLINE void affinity_key_of(struct affinity_key *key, const struct dial *dial)
{
	copy_address(key->client, dial->client.id);
	key->port_index = dial->port_index;
	key->scope = dial->scope;
	key->kind = dial->client.kind;
	key->pad = 0;
}

/* Whether the backend is in the list of that scope, or for SCOPE_SERVING, whether it serves. */
INLINE bool is_member(const struct dial *dial, __u32 scope)
{
	struct member_key key = {
		.port_index = dial->port_index,
		.scope = scope,
		.port = dial->backend.port,
	};

	copy_address(key.address, dial->backend.address);
	return bpf_map_lookup_elem(&members, &key) != NULL;
}

/*
 * Chooses the client's last backend, if that choice is young enough and the backend still in the list. A value that was
 * read torn names no member. The clock is read last: another CPU may choose for the same client meanwhile, and no
 * choice may seem to be of the future.
 */
INLINE bool choose_affine(struct dial *dial, const struct affinity_key *key)
{
	struct port *port = port_of(dial);
	struct affinity_value *last = bpf_map_lookup_elem(&affinity, key);
	__u64 at_ns, now;

	if (!port || !last)
		return false;
	at_ns = READ_ONCE(last->at_ns);
	now = bpf_ktime_get_ns();
	if (now - at_ns >= port->facts.affinity_timeout * NS_PER_SECOND)
		return false;
	copy_address(dial->backend.address, last->address);
	dial->backend.port = last->port;
	if (!is_member(dial, dial->scope))
		return false;
	last->at_ns = now;
	return true;
}

INLINE void remember_affine(const struct dial *dial, const struct affinity_key *key)
{
	struct affinity_value value = {
		.port = dial->backend.port,
		.at_ns = bpf_ktime_get_ns(),
	};

	copy_address(value.address, dial->backend.address);
	bpf_map_update_elem(&affinity, key, &value, BPF_ANY);
}

/* Chooses any backend of a list. A list of one backend needs no random number. */
INLINE bool choose_random(struct dial *dial, __u64 word)
{
	__u64 count = word_count(word);
	__u32 slot = word_base(word);

	if (count > 1)
		slot += bpf_get_prandom_u32() * count >> 32;
	return read_slot(dial, slot, &dial->backend);
}

/*
 * Counts a client that gets a backend: by connect(), or by the first datagram of a conversation. Not atomic, because
 * that would wait for all that was written before, and cost as much as the rest: of two clients at the very same moment
 * one may be missing.
 */
INLINE void count_connect(struct port *port)
{
	port->connects[bpf_get_smp_processor_id() & (CONNECT_COLUMNS - 1)] += 1;
}

/* Whether dial->client has to be known to choose(). */
INLINE bool has_affinity(__u64 word)
{
	return word_flags(word) & WORD_AFFINITY;
}

/* Chooses from a list that is not empty. */
INLINE bool choose(struct dial *dial, __u64 word)
{
	bool affine = has_affinity(word);
	struct port *port = port_of(dial);
	struct affinity_key key = {};

	if (affine)
		affinity_key_of(&key, dial);
	if (!affine || !choose_affine(dial, &key)) {
		if (!choose_random(dial, word))
			return false;
		if (affine)
			remember_affine(dial, &key);
	}
	if (LIKELY(port))
		count_connect(port);
	return true;
}

#endif

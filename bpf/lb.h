/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finds the port index for what a client dials: a frontend or a node port. */
#ifndef HOLDFAST_LB_H
#define HOLDFAST_LB_H

#include "common.h"
#include "maps.h"

INLINE struct control *the_control(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

/* No real target has these values, because kinds are small. */
#define NOT_FOUND (~0ULL)
/* The element was reused during the read. */
#define REUSED (~1ULL)

INLINE bool take_target(struct dial *dial, __u64 target)
{
	dial->port_index = (__u32)target;
	dial->kind = (__u16)(target >> TARGET_KIND_AT);
	dial->share = target >> TARGET_SHARE_AT;
	return target < REUSED;
}

/* What is looked up: the dialled address, or a node port, which is stored for any address. */
enum sought { DIALLED = 0, NODE_PORT_OF_ANY = 1 };

/*
 * Finds a frontend, and reads its echo after its target, by a dependency where a processor could reorder the reads. The
 * kernel writes them the other way round, because it copies the value as it stands, from the front. ARM may still show
 * the two stores in either order, for the few nanoseconds in which a program holds an element that was removed, freed
 * and filled anew.
 */
INLINE __u64 look4(__u32 address, __u16 port, __u8 transport, enum sought sought)
{
	/*
	 * Two words, because the kernel's hash reads words and would have to wait for smaller stores. The verifier would
	 * track the value of a single 64-bit number.
	 */
	__u32 rest = (__u32)sought << 24 | (__u32)transport << 16 | port;
	__u32 key[2] = { address, rest };

	struct frontend4_value *found = bpf_map_lookup_elem(&frontends4, key);
	__u64 target, echo;

	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the port comes before the transport");
	if (!found)
		return NOT_FOUND;
	target = READ_ONCE(found->target);
	echo = READ_ONCE(*after((const __u64 *)found, target));
	return LIKELY(!(((__u32)echo ^ address) | ((__u32)(echo >> 32) ^ rest))) ? target : REUSED;
}

/* Like look4(), for IPv6. */
INLINE __u64 look6(const __u32 *address, __u16 port, __u8 transport, enum sought sought)
{
	struct frontend6_key key = {
		.port = port,
		.transport = transport,
		.any = sought,
	};
	struct frontend6_value *found;
	const struct frontend6_value *echo;
	__u64 target;

	copy_address(key.address, address);
	found = bpf_map_lookup_elem(&frontends6, &key);
	if (!found)
		return NOT_FOUND;
	target = READ_ONCE(found->target);
	echo = (const struct frontend6_value *)after((const __u64 *)found, target);
	if (LIKELY(same_address(echo->address, key.address) && echo->port == key.port &&
		   echo->transport == key.transport && echo->any == key.any))
		return target;
	return REUSED;
}

INLINE __u64 look(const struct dial *dial, const __u32 *address, enum sought sought)
{
	return dial->v4 ? look4(address[3], dial->to.port, dial->transport, sought) :
			  look6(address, dial->to.port, dial->transport, sought);
}

/* Looks twice: the second look-up finds a reused element anew, or nothing. */
INLINE bool find_at(struct dial *dial, const __u32 *address, enum sought sought)
{
	__u64 target = look(dial, address, sought);

	if (UNLIKELY(target == REUSED))
		target = look(dial, address, sought);
	return take_target(dial, target);
}

/* Whether any frontend without an address has the port, or one for datagrams at any address. */
INLINE bool any_node_port(__u16 port)
{
	__u32 number = bpf_ntohs(port);
	__u32 at = number / 64;
	__u64 *bits = bpf_map_lookup_elem(&node_ports, &at);

	return bits && READ_ONCE(*bits) >> (number % 64) & 1;
}

INLINE bool is_loopback4(__u32 address)
{
	return bpf_ntohl(address) >> 24 == 127;
}

INLINE bool is_loopback6(const __u32 *address)
{
	return !(address[0] | address[1] | address[2] | (address[3] ^ bpf_htonl(1)));
}

/* Whether a loopback address is dialled. The caller has to know whether that is this node's or a pod's. */
INLINE bool means_loopback(const struct dial *dial)
{
	return dial->v4 ? is_loopback4(dial->to.address[3]) : is_loopback6(dial->to.address);
}

INLINE bool is_node4(__u32 address)
{
	return bpf_map_lookup_elem(&node_addresses4, &address) != NULL;
}

INLINE bool is_node6(const __u32 *address)
{
	struct in6 key;

	copy_address(key.address, address);
	return bpf_map_lookup_elem(&node_addresses6, &key) != NULL;
}

/* Whether this node answers node ports at the dialled address, for other hosts too; loopback does not count. */
INLINE bool is_node(const struct dial *dial)
{
	if (means_loopback(dial))
		return false;
	return dial->v4 ? is_node4(dial->to.address[3]) : is_node6(dial->to.address);
}

/* Whether this node answers node ports at its loopback. The first loopback address stands for all of them. */
INLINE bool has_loopback_ports(const struct dial *dial)
{
	const __u32 first[4] = { 0, 0, 0, bpf_htonl(1) };

	return dial->v4 ? is_node4(bpf_htonl(0x7f000001)) : is_node6(first);
}

/* Whether the dialled address is the cluster IP of a service, at whichever port. */
INLINE bool is_cluster_ip(const struct dial *dial)
{
	struct in6 key;

	if (dial->v4)
		return bpf_map_lookup_elem(&cluster_ips4, &dial->to.address[3]) != NULL;
	copy_address(key.address, dial->to.address);
	return bpf_map_lookup_elem(&cluster_ips6, &key) != NULL;
}

/*
 * The block of the dialled address. IPv4: its first half. IPv6: a hash of its first half, which a network's addresses
 * share.
 */
INLINE __u32 block_of(const struct dial *dial)
{
	const __u32 *address = dial->to.address;

	if (dial->v4)
		return bpf_ntohl(address[3]) >> 16;
	return BLOCKS + ((address[0] ^ address[1]) * 0x9e3779b1 >> 16);
}

INLINE bool may_be_frontend(const struct dial *dial)
{
	__u32 block = block_of(dial);
	__u32 at = block / 64;
	__u64 *bits = bpf_map_lookup_elem(&frontend_blocks, &at);

	return bits && READ_ONCE(*bits) >> (block % 64) & 1;
}

/* Finds a service by the dialled address itself. */
INLINE bool find_exact(struct dial *dial)
{
	return may_be_frontend(dial) && find_at(dial, dial->to.address, DIALLED);
}

/* Finds a service by a node port. is_node() and has_loopback_ports() say which addresses have node ports. */
INLINE bool find_node_port(struct dial *dial)
{
	const __u32 any[4] = {};

	return find_at(dial, any, NODE_PORT_OF_ANY);
}

/* From a port index to a backend: word, affinity, chance. */

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

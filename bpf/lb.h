/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Frontends and backends: which port index a client dials, and which backend it gets.
 *
 * Owns: the look-up of frontends and the selection from a list. Reads: `frontends4/6`, `node_ports`,
 * `node_addresses4/6`, `cluster_ips4/6`, `frontend_blocks`, `backends4/6`, `members`, `affinity`, `control`. Writes:
 * the connect counts in `ports`, and `affinity`.
 */
#ifndef HOLDFAST_LB_H
#define HOLDFAST_LB_H

#include "common.h"
#include "maps.h"

INLINE struct control *get_control(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

/* Kinds are small, so no real target has these values. */
#define TARGET_NONE (~0ULL)
/* The kernel reused the element during the read. */
#define TARGET_REUSED (~1ULL)

INLINE bool set_target(struct lb_request *request, __u64 target)
{
	request->port_index = (__u32)target;
	request->kind = (__u16)(target >> TARGET_KIND_AT);
	request->share = target >> TARGET_SHARE_AT;
	return target < TARGET_REUSED;
}

/* What the key holds: the dialled address, or none, for a node port. */
enum frontend_match { EXACT_ADDRESS = 0, ANY_NODE_ADDRESS = 1 };

/*
 * Looks a frontend up, and reads the echo after the target. A dependency orders the two reads. The kernel writes them
 * the other way round, because it copies the value from the front. ARM may still reorder the two stores, in the few
 * nanoseconds in which a program holds an element that the kernel frees and fills again.
 */
INLINE __u64 lookup_frontend4(__u32 address, __u16 port, __u8 transport, enum frontend_match match)
{
	/*
	 * Two words: the kernel's hash reads words, and would wait for smaller stores. The verifier would track the
	 * value of a single 64-bit number.
	 */
	__u32 rest = (__u32)match << 24 | (__u32)transport << 16 | port;
	__u32 key[2] = { address, rest };

	struct frontend4_value *element = bpf_map_lookup_elem(&frontends4, key);
	__u64 target, echo;

	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the port comes before the transport");
	if (!element)
		return TARGET_NONE;
	target = READ_ONCE(element->target);
	echo = READ_ONCE(*load_after((const __u64 *)element, target));
	return LIKELY(!(((__u32)echo ^ address) | ((__u32)(echo >> 32) ^ rest))) ? target : TARGET_REUSED;
}

/* As lookup_frontend4(), for IPv6. */
INLINE __u64 lookup_frontend6(const __u32 *address, __u16 port, __u8 transport, enum frontend_match match)
{
	struct frontend6_key key = {
		.port = port,
		.transport = transport,
		.any = match,
	};
	struct frontend6_value *element;
	const struct frontend6_value *echo;
	__u64 target;

	copy_address(key.address, address);
	element = bpf_map_lookup_elem(&frontends6, &key);
	if (!element)
		return TARGET_NONE;
	target = READ_ONCE(element->target);
	echo = (const struct frontend6_value *)load_after((const __u64 *)element, target);
	if (LIKELY(same_address(echo->address, key.address) && echo->port == key.port &&
		   echo->transport == key.transport && echo->any == key.any))
		return target;
	return TARGET_REUSED;
}

INLINE __u64 lookup_frontend(const struct lb_request *request, const __u32 *address, enum frontend_match match)
{
	return request->v4 ? lookup_frontend4(address[3], request->frontend.port, request->transport, match) :
			     lookup_frontend6(address, request->frontend.port, request->transport, match);
}

/* Looks twice: the second look-up of a reused element finds the new one, or nothing. */
INLINE __u64 find_target_at(const struct lb_request *request, const __u32 *address, enum frontend_match match)
{
	__u64 target = lookup_frontend(request, address, match);

	if (UNLIKELY(target == TARGET_REUSED))
		target = lookup_frontend(request, address, match);
	return target == TARGET_REUSED ? TARGET_NONE : target;
}

/* Whether any node port has that number, or any frontend for datagrams that has no address of its own. */
INLINE bool has_node_port(__u16 port)
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

/* Whether the client dials a loopback address. The caller knows whether it is the node's or a pod's. */
INLINE bool is_loopback(const struct lb_request *request)
{
	return request->v4 ? is_loopback4(request->frontend.address[3]) : is_loopback6(request->frontend.address);
}

INLINE bool is_node_address4(__u32 address)
{
	return bpf_map_lookup_elem(&node_addresses4, &address) != NULL;
}

INLINE bool is_node_address6(const __u32 *address)
{
	struct in6 key;

	copy_address(key.address, address);
	return bpf_map_lookup_elem(&node_addresses6, &key) != NULL;
}

/* Whether the node answers node ports at the dialled address for other hosts. Loopback does not count. */
INLINE bool is_node_address(const struct lb_request *request)
{
	if (is_loopback(request))
		return false;
	return request->v4 ? is_node_address4(request->frontend.address[3]) :
			     is_node_address6(request->frontend.address);
}

/* Whether the node answers node ports at its loopback. The first loopback address stands for all of them. */
INLINE bool has_loopback_node_ports(const struct lb_request *request)
{
	const __u32 first[4] = { 0, 0, 0, bpf_htonl(1) };

	return request->v4 ? is_node_address4(bpf_htonl(0x7f000001)) : is_node_address6(first);
}

/* Whether the client dials the cluster IP of a service, at whatever port. */
INLINE bool is_cluster_ip(const struct lb_request *request)
{
	__u32 address = request->frontend.address[3];
	struct in6 key;

	if (request->v4)
		return bpf_map_lookup_elem(&cluster_ips4, &address) != NULL;
	copy_address(key.address, request->frontend.address);
	return bpf_map_lookup_elem(&cluster_ips6, &key) != NULL;
}

/*
 * The block of the dialled address. IPv4: its first half. IPv6: a hash of its first half, which the addresses of a
 * network share.
 */
INLINE __u32 address_block(const struct lb_request *request)
{
	const __u32 *address = request->frontend.address;

	if (request->v4)
		return bpf_ntohl(address[3]) >> 16;
	return BLOCKS + ((address[0] ^ address[1]) * 0x9e3779b1 >> 16);
}

INLINE bool may_be_frontend(const struct lb_request *request)
{
	__u32 block = address_block(request);
	__u32 at = block / 64;
	__u64 *bits = bpf_map_lookup_elem(&frontend_blocks, &at);

	return bits && READ_ONCE(*bits) >> (block % 64) & 1;
}

/* Finds a frontend by the dialled address: its target, or TARGET_NONE. */
INLINE __u64 find_exact_target(const struct lb_request *request)
{
	if (!may_be_frontend(request))
		return TARGET_NONE;
	return find_target_at(request, request->frontend.address, EXACT_ADDRESS);
}

INLINE bool find_exact_frontend(struct lb_request *request)
{
	return set_target(request, find_exact_target(request));
}

/* Finds a node port. is_node_address() and has_loopback_node_ports() say which addresses have node ports. */
INLINE __u64 find_node_port_target(const struct lb_request *request)
{
	const __u32 any[4] = {};

	return find_target_at(request, any, ANY_NODE_ADDRESS);
}

INLINE bool find_node_port(struct lb_request *request)
{
	return set_target(request, find_node_port_target(request));
}

/* --- From a port index to a backend: the list's word, affinity, chance. --- */

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

INLINE struct port *lookup_port(const struct lb_request *request)
{
	__u32 at = request->port_index;

	return bpf_map_lookup_elem(&ports, &at);
}

/* Whether the internal traffic policy applies to the frontend. Otherwise the external one does. */
INLINE bool is_internal(const struct lb_request *request)
{
	return request->kind == CLUSTER_IP || request->kind == CLUSTER_SET_IP;
}

/* The word of the client's list. A missing port refuses. */
INLINE __u64 read_list_word(struct lb_request *request)
{
	struct port *port = lookup_port(request);
	__u64 word;

	request->scope = SCOPE_CLUSTER;
	if (UNLIKELY(!port))
		return 0;
	word = READ_ONCE(port->cluster);
	if (UNLIKELY(word_flags(word) & WORD_INTERNAL_LOCAL && is_internal(request))) {
		request->scope = SCOPE_LOCAL;
		word = READ_ONCE(*load_after(&port->local, word));
	}
	return word;
}

/* Reads a slot. An empty slot is no backend. */
INLINE bool read_slot(const struct lb_request *request, __u32 at, struct endpoint *backend)
{
	if (request->v4) {
		struct slot4 *slot = bpf_map_lookup_elem(&backends4, &at);

		if (UNLIKELY(!slot || !slot->port))
			return false;
		endpoint4(backend, slot->address, slot->port);
	} else {
		struct slot6 *slot = bpf_map_lookup_elem(&backends6, &at);

		if (UNLIKELY(!slot || !slot->port))
			return false;
		copy_address(backend->address, slot->address);
		backend->port = slot->port;
	}
	return true;
}

INLINE void set_affinity_key(struct affinity_key *key, const struct lb_request *request)
{
	copy_address(key->client, request->client.id);
	key->port_index = request->port_index;
	key->scope = request->scope;
	key->kind = request->client.kind;
	key->pad = 0;
}

/* Whether the backend is in the list of that scope. SCOPE_SERVING: whether it serves. */
INLINE bool is_member(const struct lb_request *request, __u32 scope)
{
	struct member_key key = {
		.port_index = request->port_index,
		.scope = scope,
		.port = request->backend.port,
	};

	copy_address(key.address, request->backend.address);
	return bpf_map_lookup_elem(&members, &key) != NULL;
}

/*
 * Selects the client's last backend, if that is recent and the backend is still in the list. A torn value names no
 * member. The clock is read last: another CPU may select for the same client meanwhile, and no time may lie in the
 * future.
 */
INLINE bool select_by_affinity(struct lb_request *request, const struct affinity_key *key)
{
	struct port *port = lookup_port(request);
	struct affinity_value *last = bpf_map_lookup_elem(&affinity, key);
	__u64 at_ns, now;

	if (!port || !last)
		return false;
	at_ns = READ_ONCE(last->at_ns);
	now = bpf_ktime_get_ns();
	if (now - at_ns >= port->facts.affinity_timeout * NS_PER_SECOND)
		return false;
	copy_address(request->backend.address, last->address);
	request->backend.port = last->port;
	if (!is_member(request, request->scope))
		return false;
	last->at_ns = now;
	return true;
}

INLINE void save_affinity(const struct lb_request *request, const struct affinity_key *key)
{
	struct affinity_value value = {
		.port = request->backend.port,
		.at_ns = bpf_ktime_get_ns(),
	};

	copy_address(value.address, request->backend.address);
	bpf_map_update_elem(&affinity, key, &value, BPF_ANY);
}

/* Selects any backend of a list. A list of one backend needs no random number. */
INLINE bool select_random(struct lb_request *request, __u64 word)
{
	__u64 count = word_count(word);
	__u32 slot = word_base(word);

	if (count > 1)
		slot += bpf_get_prandom_u32() * count >> 32;
	return read_slot(request, slot, &request->backend);
}

/*
 * Counts a client that got a backend, by connect() or by the first datagram of a conversation. An atomic add would wait
 * for all earlier stores, and double the cost. So of two clients at the same moment one may be missing.
 */
INLINE void count_connect(struct port *port)
{
	port->connects[bpf_get_smp_processor_id() & (CONNECT_COLUMNS - 1)] += 1;
}

/* Whether select_from_list() needs request->client. */
INLINE bool has_affinity(__u64 word)
{
	return word_flags(word) & WORD_AFFINITY;
}

/* Selects from a list that is not empty. */
INLINE bool select_from_list(struct lb_request *request, __u64 word)
{
	bool affine = has_affinity(word);
	struct port *port = lookup_port(request);
	struct affinity_key key = {};

	if (affine)
		set_affinity_key(&key, request);
	if (!affine || !select_by_affinity(request, &key)) {
		if (!select_random(request, word))
			return false;
		if (affine)
			save_affinity(request, &key);
	}
	if (LIKELY(port))
		count_connect(port);
	return true;
}

#endif

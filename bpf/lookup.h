/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From what a client dials to a port index: exempt sockets, frontends, node ports. */
#ifndef HOLDFAST_LOOKUP_H
#define HOLDFAST_LOOKUP_H

#include "dial.h"
#include "maps.h"

INLINE struct control *the_control(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

/*
 * The daemon's own sockets, and its cgroup, see the world as it is. Asked where a lookup has found something, because only
 * there it matters, and everybody else would pay for it; the cgroup last, since it costs the most.
 */
INLINE bool is_exempt(struct bpf_sock_addr *ctx)
{
	struct control *told = the_control();
	struct bpf_sock *sk = ctx->sk;

	if (UNLIKELY(!told))
		return true;
	if (sk && told->exempt_mark && sk->mark == told->exempt_mark)
		return true;
	return told->exempt_cgroup && told->exempt_cgroup == bpf_get_current_cgroup_id();
}

/* No target is like these: kinds are small. */
#define NOT_FOUND (~0ULL)
/* The element was reused under our eyes. */
#define REUSED (~1ULL)

INLINE bool take_target(struct dial *dial, __u64 target)
{
	dial->port_index = (__u32)target;
	dial->kind = target >> 32;
	return target < REUSED;
}

INLINE __u64 look4(__u32 address, __u16 port, __u8 transport)
{
	/*
	 * In two parts, as the kernel's hash reads it, which would have to wait for smaller stores. One number would have
	 * the verifier follow it.
	 */
	__u32 rest = (__u32)transport << 16 | port;
	__u32 key[2] = { address, rest };

	struct frontend4_value *found = bpf_map_lookup_elem(&frontends4, key);
	__u64 target, echo;

	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the port comes before the transport");
	if (!found)
		return NOT_FOUND;
	target = READ_ONCE(found->target);
	echo = READ_ONCE(*(__u64 *)found);
	return LIKELY(!(((__u32)echo ^ address) | ((__u32)(echo >> 32) ^ rest))) ? target : REUSED;
}

INLINE __u64 look6(const __u32 *address, __u16 port, __u8 transport)
{
	struct frontend6_key key = {
		.port = port,
		.transport = transport,
	};
	struct frontend6_value *found;
	__u64 target;

	copy_address(key.address, address);
	found = bpf_map_lookup_elem(&frontends6, &key);
	if (!found)
		return NOT_FOUND;
	target = READ_ONCE(found->target);
	if (LIKELY(same_address(found->address, key.address) && found->port == key.port &&
		   found->transport == key.transport))
		return target;
	return REUSED;
}

INLINE __u64 look(const struct dial *dial, const __u32 *address)
{
	return dial->v4 ? look4(address[3], dial->to.port, dial->transport) :
			  look6(address, dial->to.port, dial->transport);
}

/* Twice: what was reused under our eyes is found anew at its place, or not at all. */
INLINE bool find_at(struct dial *dial, const __u32 *address)
{
	__u64 target = look(dial, address);

	if (UNLIKELY(target == REUSED))
		target = look(dial, address);
	return take_target(dial, target);
}

INLINE bool any_node_port(__u16 port)
{
	__u32 number = bpf_ntohs(port);
	__u32 at = number / 64;
	__u64 *bits = bpf_map_lookup_elem(&node_ports, &at);

	return bits && READ_ONCE(*bits) >> (number % 64) & 1;
}

/* A pod's loopback is its own. */
INLINE bool in_host_netns(struct bpf_sock_addr *ctx)
{
	struct control *told = the_control();
	__u64 host = told ? told->host_netns : 0;

	if (!host)
		host = bpf_get_netns_cookie(NULL);
	return bpf_get_netns_cookie(ctx) == host;
}

INLINE bool is_node4(struct bpf_sock_addr *ctx, __u32 address)
{
	if ((bpf_ntohl(address) >> 24) == 127)
		return in_host_netns(ctx);
	return bpf_map_lookup_elem(&node_addresses4, &address) != NULL;
}

INLINE bool is_node6(struct bpf_sock_addr *ctx, const __u32 *address)
{
	struct in6 key;

	if (!address[0] && !address[1] && !address[2] && address[3] == bpf_htonl(1))
		return in_host_netns(ctx);
	copy_address(key.address, address);
	return bpf_map_lookup_elem(&node_addresses6, &key) != NULL;
}

/* IPv4: the first half of the address. IPv6: a hash of its first half, which the addresses of one network share. */
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

INLINE bool find_exact(struct dial *dial)
{
	return may_be_frontend(dial) && find_at(dial, dial->to.address);
}

INLINE bool find_node_port(struct bpf_sock_addr *ctx, struct dial *dial)
{
	const __u32 any[4] = {};

	if (!(dial->v4 ? is_node4(ctx, dial->to.address[3]) : is_node6(ctx, dial->to.address)))
		return false;
	return find_at(dial, any);
}

/* An exact frontend, or a node port on an address of this node. */
INLINE bool find(struct bpf_sock_addr *ctx, struct dial *dial)
{
	if (find_exact(dial))
		return true;
	return any_node_port(dial->to.port) && find_node_port(ctx, dial);
}

#endif

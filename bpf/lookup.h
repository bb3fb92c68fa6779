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

/* The daemon's own sockets, and those of its cgroup, see the world as it is. */
INLINE bool is_exempt(struct bpf_sock_addr *ctx)
{
	struct control *told = the_control();
	struct bpf_sock *sk = ctx->sk;

	if (!told)
		return true;
	if (sk && told->exempt_mark && sk->mark == told->exempt_mark)
		return true;
	return told->exempt_cgroup && told->exempt_cgroup == bpf_get_current_cgroup_id();
}

INLINE bool take_target(struct dial *dial, __u64 target)
{
	dial->port_index = (__u32)target;
	dial->kind = target >> 32;
	return true;
}

/* Twice: an element that was reused under our eyes is found anew at its place, or not at all. */
INLINE bool find4(struct dial *dial, __u32 address)
{
	/* Compared as one number. */
	struct frontend4_key key __attribute__((aligned(8))) = {
		.address = address,
		.port = dial->to.port,
		.transport = dial->transport,
	};

	for (int attempt = 0; attempt < 2; attempt++) {
		struct frontend4_value *found = bpf_map_lookup_elem(&frontends4, &key);
		__u64 target;

		if (!found)
			return false;
		target = READ_ONCE(found->target);
		if (READ_ONCE(*(__u64 *)found) == *(__u64 *)&key)
			return take_target(dial, target);
	}
	return false;
}

INLINE bool find6(struct dial *dial, const __u32 *address)
{
	struct frontend6_key key = {
		.port = dial->to.port,
		.transport = dial->transport,
	};

	copy_address(key.address, address);
	for (int attempt = 0; attempt < 2; attempt++) {
		struct frontend6_value *found = bpf_map_lookup_elem(&frontends6, &key);
		__u64 target;

		if (!found)
			return false;
		target = READ_ONCE(found->target);
		if (same_address(found->address, key.address) && found->port == key.port &&
		    found->transport == key.transport)
			return take_target(dial, target);
	}
	return false;
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

/* An exact frontend, or a node port on an address of this node. */
INLINE bool find(struct bpf_sock_addr *ctx, struct dial *dial)
{
	const __u32 any[4] = {};

	if (dial->v4 ? find4(dial, dial->to.address[3]) : find6(dial, dial->to.address))
		return true;
	if (!any_node_port(dial->to.port))
		return false;
	if (dial->v4)
		return is_node4(ctx, dial->to.address[3]) && find4(dial, 0);
	return is_node6(ctx, dial->to.address) && find6(dial, any);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a socket dialled: kept when it is translated, shown by getpeername and recvmsg. */
#ifndef HOLDFAST_REVERSE_H
#define HOLDFAST_REVERSE_H

#include "choose.h"
#include "dial.h"
#include "maps.h"

INLINE __u64 mix(__u64 mixed, __u32 low, __u32 high)
{
	mixed = (mixed ^ ((__u64)high << 32 | low)) * 0x9e3779b97f4a7c15;
	return mixed ^ mixed >> 29;
}

INLINE __u64 mix_place(__u64 mixed, const __u32 *address, __u16 port)
{
	mixed = mix(mixed, address[3], address[2] ^ port);
	return mix(mixed, address[1], address[0]);
}

INLINE __u32 reverse_check(const struct reverse_entry *entry, const struct place *backend)
{
	__u64 mixed = mix_place(entry->cookie, entry->address, entry->port);

	return mix_place(mixed, backend->address, backend->port) >> 32;
}

INLINE struct reverse_entry *reverse_of(__u64 cookie)
{
	__u32 at = cookie & (REVERSE_ENTRIES - 1);

	return bpf_map_lookup_elem(&reverse, &at);
}

INLINE void remember_tcp(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct reverse_entry *entry = reverse_of(cookie);

	if (UNLIKELY(!entry))
		return;
	entry->cookie = cookie;
	copy_address(entry->address, dial->to.address);
	entry->port = dial->to.port;
	entry->check = reverse_check(entry, &dial->backend);
}

INLINE bool recall_tcp(struct bpf_sock_addr *ctx, struct place *peer)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct reverse_entry *entry = reverse_of(cookie);
	struct reverse_entry seen;

	if (!entry || entry->cookie != cookie)
		return false;
	seen.cookie = cookie;
	copy_address(seen.address, entry->address);
	seen.port = entry->port;
	if (READ_ONCE(entry->check) != reverse_check(&seen, peer))
		return false;
	copy_address(peer->address, seen.address);
	peer->port = seen.port;
	return true;
}

INLINE void remember_udp_as(void *map, const struct udp_key *key, const struct place *place, __u32 slot)
{
	struct udp_value *known = bpf_map_lookup_elem(map, key);
	struct udp_value value = {
		.port = place->port,
		.slot = slot,
	};

	if (known && known->slot == slot && known->port == place->port &&
	    same_address(known->address, place->address))
		return;
	copy_address(value.address, place->address);
	bpf_map_update_elem(map, key, &value, BPF_ANY);
}

INLINE void remember_udp(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	struct udp_key key;

	udp_key_of(ctx, &key, &dial->to);
	remember_udp_as(&udp_sticky, &key, &dial->backend, dial->slot);
	copy_address(key.address, dial->backend.address);
	key.port = dial->backend.port;
	remember_udp_as(&udp_reverse, &key, &dial->to, 0);
}

INLINE bool recall_udp(struct bpf_sock_addr *ctx, struct place *peer)
{
	struct udp_key key;
	struct udp_value *dialled;

	udp_key_of(ctx, &key, peer);
	dialled = bpf_map_lookup_elem(&udp_reverse, &key);
	if (!dialled)
		return false;
	copy_address(peer->address, dialled->address);
	peer->port = dialled->port;
	return true;
}

INLINE void remember(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	if (dial->transport == IPPROTO_TCP)
		remember_tcp(ctx, dial);
	else
		remember_udp(ctx, dial);
}

/* Turns a backend into what the socket dialled; `false`: it is just a peer. */
INLINE bool recall(struct bpf_sock_addr *ctx, struct place *peer)
{
	if (ctx->protocol == IPPROTO_TCP)
		return recall_tcp(ctx, peer);
	if (ctx->protocol == IPPROTO_UDP)
		return recall_udp(ctx, peer);
	return false;
}

#endif

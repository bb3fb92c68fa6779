/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a TCP socket dialled, by its cookie: kept when it is translated, shown by getpeername. */
#ifndef HOLDFAST_REVERSE_H
#define HOLDFAST_REVERSE_H

#include "dial.h"
#include "maps.h"

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

INLINE void remember_tcp(__u64 cookie, const struct dial *dial)
{
	struct reverse_entry *entry = reverse_of(cookie);

	if (UNLIKELY(!entry))
		return;
	entry->cookie = cookie;
	copy_address(entry->address, dial->to.address);
	entry->port = dial->to.port;
	entry->check = reverse_check(entry, &dial->backend);
}

/*
 * Forgets what the socket dialled: its peer is no frontend now, and may be the backend that it had before. No socket
 * has the cookie 0.
 */
INLINE void forget_tcp(__u64 cookie)
{
	struct reverse_entry *entry = reverse_of(cookie);

	if (entry && entry->cookie == cookie)
		entry->cookie = 0;
}

/* Turns a backend into what the socket dialled; `false`: it is just a peer. */
INLINE bool recall_tcp(__u64 cookie, struct place *peer)
{
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

#endif

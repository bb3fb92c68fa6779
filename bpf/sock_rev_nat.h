/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a TCP socket dialled, by its cookie: kept when it is translated, shown by getpeername. */
#ifndef HOLDFAST_SOCK_REV_NAT_H
#define HOLDFAST_SOCK_REV_NAT_H

#include "common.h"
#include "lb.h"
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

/* Conversations over UDP: what a socket dialled and the backend that it got, kept with the socket. */

/* What asks for a socket's peer: recvmsg for a datagram's sender, or getpeername for what it is connected to. */
enum asked { ASKED_SENDER, ASKED_PEER };

/* By which of its ends a pair is looked for. */
enum end { BY_DIALLED, BY_BACKEND };

INLINE __u32 pair_check(const struct place *dialled, const struct place *backend)
{
	__u64 mixed = mix_place(0, dialled->address, dialled->port);

	return mix_place(mixed, backend->address, backend->port) >> 32;
}

INLINE bool ends_at(const struct udp_pair *pair, enum end end, const struct place *place)
{
	if (end == BY_DIALLED)
		return pair->dialled_port == place->port && same_address(pair->dialled, place->address);
	return pair->backend_port == place->port && same_address(pair->backend, place->address);
}

/* The verifier has to see the bound, even where the compiler believes that it knows it. */
INLINE struct udp_pair *pair_at(struct udp_socket *socket, __u32 at)
{
	asm volatile("" : "+r"(at));
	return &socket->pairs[at & (UDP_PAIRS - 1)];
}

/*
 * Finds a pair by one of its ends: the pair that was used last, or else any other; UDP_PAIRS: there is none. The pair
 * of connect() comes last: a socket that was connected to a backend which has left may have sent datagrams to another
 * one since.
 */
INLINE __u32 find_pair(struct udp_socket *socket, enum end end, const struct place *place)
{
	__u32 last = READ_ONCE(socket->last) & (UDP_PAIRS - 1);

	if (LIKELY(ends_at(pair_at(socket, last), end, place)))
		return last;
#pragma unroll
	for (__u32 at = 1; at <= UDP_PAIRS; at++)
		if (ends_at(&socket->pairs[at & (UDP_PAIRS - 1)], end, place))
			return at & (UDP_PAIRS - 1);
	return UDP_PAIRS;
}

/*
 * Whether a conversation goes on. A datagram goes where the one before it went, as long as that backend serves: a
 * conversation is more than one datagram, and a backend that is not chosen for new ones any more may still answer.
 */
INLINE bool goes_on(struct udp_socket *socket, struct dial *dial)
{
	__u32 at = find_pair(socket, BY_DIALLED, &dial->to);
	struct udp_pair *pair;

	if (at == UDP_PAIRS)
		return false;
	pair = pair_at(socket, at);
	copy_address(dial->backend.address, pair->backend);
	dial->backend.port = pair->backend_port;
	if (READ_ONCE(pair->check) != pair_check(&dial->to, &dial->backend) || !is_member(dial, SCOPE_SERVING))
		return false;
	if (socket->last != at)
		socket->last = at;
	return true;
}

INLINE void write_pair(struct udp_pair *pair, const struct dial *dial)
{
	copy_address(pair->dialled, dial->to.address);
	pair->dialled_port = dial->to.port;
	copy_address(pair->backend, dial->backend.address);
	pair->backend_port = dial->backend.port;
	pair->check = pair_check(&dial->to, &dial->backend);
}

/* The first pair is for what a socket dials by connect(). If another pair had that before, it is wiped. */
INLINE __u32 connected_pair(struct udp_socket *socket, __u32 found)
{
	if (found != UDP_PAIRS)
		pair_at(socket, found)->dialled_port = 0;
	return 0;
}

/*
 * The pair for a datagram, which leaves the pair of connect() alone: the socket stays connected, wherever it sends
 * datagrams.
 */
INLINE __u32 datagram_pair(struct udp_socket *socket, __u32 found)
{
	if (found == UDP_PAIRS || !found)
		return 1 + socket->written++ % (UDP_PAIRS - 1);
	return found;
}

INLINE void remember_udp(struct udp_socket *socket, const struct dial *dial, bool connecting)
{
	__u32 at = find_pair(socket, BY_DIALLED, &dial->to);

	at = connecting ? connected_pair(socket, at) : datagram_pair(socket, at);
	write_pair(pair_at(socket, at), dial);
	socket->last = at;
}

/*
 * Forgets the pair of connect(): the socket is connected now to a peer that is no frontend, and may be a backend that
 * the socket had before.
 */
INLINE void forget_peer(struct udp_socket *socket)
{
	socket->pairs[0].dialled_port = socket->pairs[0].backend_port = 0;
}

/*
 * Notes that the socket sends to that place itself. If the place is the backend of something that the socket dialled,
 * it gets a pair of its own, which was used last: so its answers bear its own address until the socket dials that other
 * place again. An answer does not say which question it answers, so the last question counts.
 */
INLINE void note_direct(struct udp_socket *socket, const struct place *to)
{
	const struct dial direct = { .to = *to, .backend = *to };
	__u32 at = find_pair(socket, BY_BACKEND, to);

	if (at != UDP_PAIRS && !ends_at(pair_at(socket, at), BY_DIALLED, to))
		remember_udp(socket, &direct, false);
}

/* Turns a backend into what the socket dialled; `false`: it is just a peer. */
INLINE bool recall_udp(struct udp_socket *socket, struct place *peer, enum asked asked)
{
	struct udp_pair *pair;
	struct place seen;
	__u32 at = 0;

	if (asked == ASKED_SENDER)
		at = find_pair(socket, BY_BACKEND, peer);
	if (at == UDP_PAIRS)
		return false;
	pair = pair_at(socket, at);
	copy_address(seen.address, pair->dialled);
	seen.port = pair->dialled_port;
	if (READ_ONCE(pair->check) != pair_check(&seen, peer))
		return false;
	copy_address(peer->address, seen.address);
	peer->port = seen.port;
	return true;
}

#endif

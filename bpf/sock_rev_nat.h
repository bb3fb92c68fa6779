/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a TCP socket dialled, by its cookie: kept when it is translated, shown by getpeername. */
#ifndef HOLDFAST_SOCK_REV_NAT_H
#define HOLDFAST_SOCK_REV_NAT_H

#include "common.h"
#include "lb.h"
#include "maps.h"

INLINE __u32 rev_nat_check(const struct sock_rev_nat *entry, const struct endpoint *backend)
{
	__u64 mixed = mix_endpoint(entry->cookie, entry->address, entry->port);

	return mix_endpoint(mixed, backend->address, backend->port) >> 32;
}

INLINE struct sock_rev_nat *get_rev_nat(__u64 cookie)
{
	__u32 at = cookie & (SOCK_REV_NAT_ENTRIES - 1);

	return bpf_map_lookup_elem(&reverse, &at);
}

INLINE void save_tcp_frontend(__u64 cookie, const struct lb_request *request)
{
	struct sock_rev_nat *entry = get_rev_nat(cookie);

	if (UNLIKELY(!entry))
		return;
	entry->cookie = cookie;
	copy_address(entry->address, request->to.address);
	entry->port = request->to.port;
	entry->check = rev_nat_check(entry, &request->backend);
}

/*
 * Forgets what the socket dialled: its peer is no frontend now, and may be the backend that it had before. No socket
 * has the cookie 0.
 */
INLINE void clear_tcp_frontend(__u64 cookie)
{
	struct sock_rev_nat *entry = get_rev_nat(cookie);

	if (entry && entry->cookie == cookie)
		entry->cookie = 0;
}

/* Turns a backend into what the socket dialled; `false`: it is just a peer. */
INLINE bool restore_tcp_frontend(__u64 cookie, struct endpoint *peer)
{
	struct sock_rev_nat *entry = get_rev_nat(cookie);
	struct sock_rev_nat seen;

	if (!entry || entry->cookie != cookie)
		return false;
	seen.cookie = cookie;
	copy_address(seen.address, entry->address);
	seen.port = entry->port;
	if (READ_ONCE(entry->check) != rev_nat_check(&seen, peer))
		return false;
	copy_address(peer->address, seen.address);
	peer->port = seen.port;
	return true;
}

/* Conversations over UDP: what a socket dialled and the backend that it got, kept with the socket. */

/* What asks for a socket's peer: recvmsg for a datagram's sender, or getpeername for what it is connected to. */
enum peer_query { QUERY_SENDER, QUERY_PEER };

/* By which of its ends a pair is looked for. */
enum pair_end { BY_DIALLED, BY_BACKEND };

INLINE __u32 pair_check(const struct endpoint *dialled, const struct endpoint *backend)
{
	__u64 mixed = mix_endpoint(0, dialled->address, dialled->port);

	return mix_endpoint(mixed, backend->address, backend->port) >> 32;
}

INLINE bool has_end(const struct udp_pair *pair, enum pair_end end, const struct endpoint *endpoint)
{
	if (end == BY_DIALLED)
		return pair->dialled_port == endpoint->port && same_address(pair->dialled, endpoint->address);
	return pair->backend_port == endpoint->port && same_address(pair->backend, endpoint->address);
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
INLINE __u32 find_pair(struct udp_socket *socket, enum pair_end end, const struct endpoint *endpoint)
{
	__u32 last = READ_ONCE(socket->last) & (UDP_PAIRS - 1);

	if (LIKELY(has_end(pair_at(socket, last), end, endpoint)))
		return last;
#pragma unroll
	for (__u32 at = 1; at <= UDP_PAIRS; at++)
		if (has_end(&socket->pairs[at & (UDP_PAIRS - 1)], end, endpoint))
			return at & (UDP_PAIRS - 1);
	return UDP_PAIRS;
}

/*
 * Whether a conversation goes on. A datagram goes where the one before it went, as long as that backend serves: a
 * conversation is more than one datagram, and a backend that is not chosen for new ones any more may still answer.
 */
INLINE bool reuse_pair(struct udp_socket *socket, struct lb_request *request)
{
	__u32 at = find_pair(socket, BY_DIALLED, &request->to);
	struct udp_pair *pair;

	if (at == UDP_PAIRS)
		return false;
	pair = pair_at(socket, at);
	copy_address(request->backend.address, pair->backend);
	request->backend.port = pair->backend_port;
	if (READ_ONCE(pair->check) != pair_check(&request->to, &request->backend) || !is_member(request, SCOPE_SERVING))
		return false;
	if (socket->last != at)
		socket->last = at;
	return true;
}

INLINE void write_pair(struct udp_pair *pair, const struct lb_request *request)
{
	copy_address(pair->dialled, request->to.address);
	pair->dialled_port = request->to.port;
	copy_address(pair->backend, request->backend.address);
	pair->backend_port = request->backend.port;
	pair->check = pair_check(&request->to, &request->backend);
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

INLINE void save_udp_pair(struct udp_socket *socket, const struct lb_request *request, bool connecting)
{
	__u32 at = find_pair(socket, BY_DIALLED, &request->to);

	at = connecting ? connected_pair(socket, at) : datagram_pair(socket, at);
	write_pair(pair_at(socket, at), request);
	socket->last = at;
}

/*
 * Forgets the pair of connect(): the socket is connected now to a peer that is no frontend, and may be a backend that
 * the socket had before.
 */
INLINE void clear_connected_pair(struct udp_socket *socket)
{
	socket->pairs[0].dialled_port = socket->pairs[0].backend_port = 0;
}

/*
 * Notes that the socket sends to that place itself. If the place is the backend of something that the socket dialled,
 * it gets a pair of its own, which was used last: so its answers bear its own address until the socket dials that other
 * place again. An answer does not say which question it answers, so the last question counts.
 */
INLINE void save_direct_pair(struct udp_socket *socket, const struct endpoint *to)
{
	const struct lb_request direct = { .to = *to, .backend = *to };
	__u32 at = find_pair(socket, BY_BACKEND, to);

	if (at != UDP_PAIRS && !has_end(pair_at(socket, at), BY_DIALLED, to))
		save_udp_pair(socket, &direct, false);
}

/* Turns a backend into what the socket dialled; `false`: it is just a peer. */
INLINE bool restore_udp_frontend(struct udp_socket *socket, struct endpoint *peer, enum peer_query query)
{
	struct udp_pair *pair;
	struct endpoint seen;
	__u32 at = 0;

	if (query == QUERY_SENDER)
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

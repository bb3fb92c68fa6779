/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The reverse translation for sockets: what a socket dialled, shown in place of its backend.
 *
 * Owns: `reverse` for TCP and `udp_sockets` for UDP. Reads: `members`. Writes: those maps.
 */
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
	copy_address(entry->address, request->frontend.address);
	entry->port = request->frontend.port;
	entry->check = rev_nat_check(entry, &request->backend);
}

/*
 * Clears what the socket dialled: its peer is no frontend now, and may be its former backend. No socket has cookie 0.
 */
INLINE void clear_tcp_frontend(__u64 cookie)
{
	struct sock_rev_nat *entry = get_rev_nat(cookie);

	if (entry && entry->cookie == cookie)
		entry->cookie = 0;
}

/* Replaces a backend by what the socket dialled. `false`: the peer is no backend of the socket. */
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

/* --- UDP: what a socket dialled and the backends that it got, in socket storage. --- */

/* What the caller asks for: recvmsg for the sender of a datagram, getpeername for the connected peer. */
enum peer_query { QUERY_SENDER, QUERY_PEER };

/* The end by which a pair is looked up. */
enum pair_end { BY_DIALLED, BY_BACKEND };

INLINE __u32 pair_check(const struct endpoint *dialled, const struct endpoint *backend)
{
	__u64 mixed = mix_endpoint(0, dialled->address, dialled->port);

	return mix_endpoint(mixed, backend->address, backend->port) >> 32;
}

/* 1 if that end of a pair is the endpoint, or 0. Without branches, as find_pair(). */
INLINE __u32 has_end(const struct udp_pair *pair, enum pair_end end, const struct endpoint *endpoint)
{
	const __u32 *address = end == BY_DIALLED ? pair->dialled : pair->backend;
	__u16 port = end == BY_DIALLED ? pair->dialled_port : pair->backend_port;
	__u64 diff = address_diff(address, endpoint->address) | (port ^ endpoint->port);

	return (diff - 1) >> 63;
}

/* The mask is for the verifier. Inline assembly keeps the compiler from dropping it. */
INLINE struct udp_pair *pair_at(struct udp_socket *socket, __u32 at)
{
	asm volatile("" : "+r"(at));
	return &socket->pairs[at & (UDP_PAIRS - 1)];
}

/*
 * Finds a pair by one end: the one that was used last, or any other. UDP_PAIRS: there is none. The pair of connect()
 * comes last: a socket whose connected backend is gone may have sent datagrams to another one since. All pairs are
 * compared without branches: the verifier would follow everything behind the search once for each pair.
 */
INLINE __u32 find_pair(struct udp_socket *socket, enum pair_end end, const struct endpoint *endpoint)
{
	__u32 last = READ_ONCE(socket->last) & (UDP_PAIRS - 1), result = UDP_PAIRS;

	if (LIKELY(has_end(pair_at(socket, last), end, endpoint)))
		return last;
#pragma unroll
	for (__u32 at = 0; at < UDP_PAIRS; at++) {
		__u32 is_preferred = has_end(&socket->pairs[at], end, endpoint);

		result ^= (result ^ at) & -is_preferred;
		asm volatile("" : "+r"(result));
	}
	return result;
}

/*
 * Whether a conversation continues. A datagram goes to the backend of the one before, as long as that serves. A
 * conversation has several datagrams, and a draining backend may still reply.
 */
INLINE bool reuse_pair(struct udp_socket *socket, struct lb_request *request)
{
	__u32 at = find_pair(socket, BY_DIALLED, &request->frontend);
	struct udp_pair *pair;

	if (at == UDP_PAIRS)
		return false;
	pair = pair_at(socket, at);
	copy_address(request->backend.address, pair->backend);
	request->backend.port = pair->backend_port;
	if (READ_ONCE(pair->check) != pair_check(&request->frontend, &request->backend) ||
	    !is_member(request, SCOPE_SERVING))
		return false;
	if (socket->last != at)
		socket->last = at;
	return true;
}

INLINE void write_pair(struct udp_pair *pair, const struct lb_request *request)
{
	copy_address(pair->dialled, request->frontend.address);
	pair->dialled_port = request->frontend.port;
	copy_address(pair->backend, request->backend.address);
	pair->backend_port = request->backend.port;
	pair->check = pair_check(&request->frontend, &request->backend);
}

/* The first pair is for connect(). If another pair has the same destination, it is cleared. */
INLINE __u32 connected_pair(struct udp_socket *socket, __u32 index)
{
	if (index != UDP_PAIRS)
		pair_at(socket, index)->dialled_port = 0;
	return 0;
}

/* The pair for a datagram. It is never that of connect(), because the socket stays connected. */
INLINE __u32 datagram_pair(struct udp_socket *socket, __u32 index)
{
	if (index == UDP_PAIRS || !index)
		return 1 + socket->written++ % (UDP_PAIRS - 1);
	return index;
}

INLINE void save_udp_pair(struct udp_socket *socket, const struct lb_request *request, bool connecting)
{
	__u32 at = find_pair(socket, BY_DIALLED, &request->frontend);

	at = connecting ? connected_pair(socket, at) : datagram_pair(socket, at);
	write_pair(pair_at(socket, at), request);
	socket->last = at;
}

/*
 * Clears the pair of connect(): the socket is connected to a peer that is no frontend, and that may be its former
 * backend.
 */
INLINE void clear_connected_pair(struct udp_socket *socket)
{
	socket->pairs[0].dialled_port = socket->pairs[0].backend_port = 0;
}

/*
 * Notes that the socket sends to an endpoint directly. If that is the backend of something that it dialled, the direct
 * pair becomes the last used one. So replies show the backend's own address, until the socket dials the frontend again.
 * A reply does not show which query it belongs to, so the last query counts.
 */
INLINE void save_direct_pair(struct udp_socket *socket, const struct endpoint *to)
{
	const struct lb_request direct = { .frontend = *to, .backend = *to };
	__u32 at = find_pair(socket, BY_BACKEND, to);

	if (at != UDP_PAIRS && !has_end(pair_at(socket, at), BY_DIALLED, to))
		save_udp_pair(socket, &direct, false);
}

/* Replaces a backend by what the socket dialled. `false`: the peer is no backend of the socket. */
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

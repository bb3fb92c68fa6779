/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Between a socket and the rules: what the kernel tells of a socket that dials, sends, receives or asks for its peer
 * becomes plain values, and what was decided becomes what the kernel does. No other header knows the kernel's context.
 */
#ifndef HOLDFAST_SOCKET_H
#define HOLDFAST_SOCKET_H

#include <linux/errno.h>
#include "choose.h"
#include "dial.h"
#include "lookup.h"
#include "maps.h"
#include "reverse.h"
#include "udp.h"
#include "verdict.h"

/* Before Linux 5.18 a program cannot say which errno its refusal has; the kernel's own would be EPERM. */
const volatile bool has_set_retval = false;

/* What a program returns. */
enum { DENY = 0, ALLOW = 1 };

/* AF_INET6; its header is not the kernel's. */
#define FAMILY6 10

/* --- Where it dials, and where it is sent. --- */

INLINE bool is_mapped(struct bpf_sock_addr *ctx)
{
	return ctx->user_ip6[0] == 0 && ctx->user_ip6[1] == 0 && ctx->user_ip6[2] == MAPPED;
}

INLINE void place6(struct place *place, struct bpf_sock_addr *ctx)
{
	place->address[0] = ctx->user_ip6[0];
	place->address[1] = ctx->user_ip6[1];
	place->address[2] = ctx->user_ip6[2];
	place->address[3] = ctx->user_ip6[3];
	place->port = ctx->user_port;
}

INLINE void go4(struct bpf_sock_addr *ctx, const struct place *place)
{
	ctx->user_ip4 = place->address[3];
	ctx->user_port = place->port;
}

INLINE void go6(struct bpf_sock_addr *ctx, const struct place *place)
{
	ctx->user_ip6[0] = place->address[0];
	ctx->user_ip6[1] = place->address[1];
	ctx->user_ip6[2] = place->address[2];
	ctx->user_ip6[3] = place->address[3];
	ctx->user_port = place->port;
}

/*
 * When an IPv6 socket that is connected over IPv4 sends without an address, the kernel shows the address that it is
 * connected to. About that one connect() has decided, and it may not be what the client dialled: of 0.0.0.0 the kernel
 * has made a loopback address since.
 */
INLINE bool goes_where_connected(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && sk->family == FAMILY6 && sk->state == BPF_TCP_ESTABLISHED && sk->dst_ip4 == ctx->user_ip4 &&
	       sk->dst_port == ctx->user_port;
}

/* --- The client that dials. --- */

/* Whether the client is in the host's network namespace: a pod's loopback is the pod's own. */
INLINE bool in_host_netns(struct bpf_sock_addr *ctx)
{
	struct control *told = the_control();
	__u64 host = told ? told->host_netns : 0;

	if (!host)
		host = bpf_get_netns_cookie(NULL);
	return bpf_get_netns_cookie(ctx) == host;
}

/* Compares the ids of the client's cgroups from the top down, so that the depth of a subtree need not be known. */
INLINE bool in_exempt_subtree(void)
{
	for (int level = 1; level <= CGROUP_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			return false;
		if (bpf_map_lookup_elem(&exempt_cgroups, &id))
			return true;
	}
	return false;
}

/* Clients that the operator wants left to the network as it is. */
APART int is_left_alone(struct bpf_sock_addr *ctx, __u32 restrictions)
{
	if (restrictions & NOT_UDP && ctx->protocol == IPPROTO_UDP)
		return true;
	if (restrictions & ONLY_HOST && !in_host_netns(ctx))
		return true;
	return restrictions & NOT_SUBTREES && in_exempt_subtree();
}

/*
 * Whether a pod dials its own loopback, which a frontend at the host's is not. Kernels that do not tell the host's
 * network namespace leave that unknown.
 */
INLINE bool is_pods_loopback(struct bpf_sock_addr *ctx, const struct dial *dial, __u64 host)
{
	return UNLIKELY(means_loopback(dial)) && host && bpf_get_netns_cookie(ctx) != host;
}

/*
 * The daemon's own sockets, its cgroup, and clients that are left alone see the world as it is. That is looked at only
 * where a lookup has found something, because all other clients would pay for it; the cgroup comes last, since it costs
 * the most. Where no client is to be left alone, the restrictions cost one look at a word that was read anyway.
 */
INLINE bool is_exempt(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	struct control *told = the_control();
	struct bpf_sock *sk = ctx->sk;

	if (UNLIKELY(!told))
		return true;
	if (sk && told->exempt_mark && sk->mark == told->exempt_mark)
		return true;
	if (UNLIKELY(told->restrictions) && is_left_alone(ctx, told->restrictions))
		return true;
	if (is_pods_loopback(ctx, dial, told->host_netns))
		return true;
	return told->exempt_cgroup && told->exempt_cgroup == bpf_get_current_cgroup_id();
}

/* All sockets of a network namespace are one client: that is a pod, or the node. */
INLINE void know_client(struct bpf_sock_addr *ctx, struct client *client)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);

	client->id[0] = (__u32)cookie;
	client->id[1] = cookie >> 32;
	client->id[2] = 0;
	client->id[3] = 0;
	client->kind = CLIENT_NETNS;
}

/* --- What it dials, and the backend that it gets. --- */

/* Whether it dials an address at which this node answers node ports. */
INLINE bool is_here(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	return means_loopback(dial) ? has_loopback_ports(dial) && in_host_netns(ctx) : is_node(dial);
}

/* An exact frontend, or a node port on an address of this node. */
INLINE bool find(struct bpf_sock_addr *ctx, struct dial *dial)
{
	if (find_exact(dial))
		return true;
	return any_node_port(dial->to.port) && is_here(ctx, dial) && find_node_port(dial);
}

/*
 * Whether a client dials a cluster IP at a port that its service does not have. The node refuses for itself at its own
 * addresses. connect() for datagrams sends nothing and is left alone: resolvers connect to each address, at whichever
 * port, to learn the source address that it gets.
 */
INLINE bool lacks_port(struct bpf_sock_addr *ctx, const struct dial *dial, bool connecting)
{
	if (dial->transport != IPPROTO_TCP && (dial->transport != IPPROTO_UDP || connecting))
		return false;
	return may_be_frontend(dial) && is_cluster_ip(dial) && !is_node(dial) && !is_exempt(ctx, dial);
}

INLINE bool choose_for(struct bpf_sock_addr *ctx, struct dial *dial, __u64 word)
{
	if (has_affinity(word))
		know_client(ctx, &dial->client);
	return choose(dial, word);
}

/* --- What it dialled before. --- */

/*
 * What is kept with a UDP socket. `flags` say whether it is made for a socket that has none; NULL: there is none, or no
 * memory for it.
 */
INLINE struct udp_socket *udp_socket_of(struct bpf_sock_addr *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&udp_sockets, sk, NULL, flags) : NULL;
}

INLINE bool conversation_goes_on(struct bpf_sock_addr *ctx, struct dial *dial)
{
	struct udp_socket *socket = udp_socket_of(ctx, 0);

	return socket && goes_on(socket, dial);
}

INLINE void remember_conversation(struct bpf_sock_addr *ctx, const struct dial *dial, bool connecting)
{
	struct udp_socket *socket = udp_socket_of(ctx, BPF_SK_STORAGE_GET_F_CREATE);

	if (UNLIKELY(!socket))
		return;
	if (connecting) {
		socket->cookie = bpf_get_socket_cookie(ctx);
		socket->netns = bpf_get_netns_cookie(ctx);
	}
	remember_udp(socket, dial, connecting);
}

INLINE void remember(struct bpf_sock_addr *ctx, const struct dial *dial, bool connecting)
{
	if (dial->transport == IPPROTO_TCP)
		remember_tcp(bpf_get_socket_cookie(ctx), dial);
	else
		remember_conversation(ctx, dial, connecting);
}

INLINE void forget_udp_peer(struct bpf_sock_addr *ctx)
{
	struct udp_socket *socket = udp_socket_of(ctx, 0);

	if (socket)
		forget_peer(socket);
}

/* Whether the socket had a peer before: when it is disconnected, the kernel leaves that one's address there. */
INLINE bool had_peer(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return false;
	if (sk->family == FAMILY6)
		return sk->dst_ip6[0] | sk->dst_ip6[1] | sk->dst_ip6[2] | sk->dst_ip6[3];
	return sk->dst_ip4;
}

/* A socket that connects for the first time, as nearly all do, has nothing to forget. */
INLINE void forget_tcp_peer(struct bpf_sock_addr *ctx)
{
	if (UNLIKELY(had_peer(ctx)))
		forget_tcp(bpf_get_socket_cookie(ctx));
}

/* Forgets what the socket dialled by connect(), because it connects to a peer that is no frontend. */
INLINE void forget_dialled(struct bpf_sock_addr *ctx)
{
	if (ctx->protocol == IPPROTO_TCP)
		forget_tcp_peer(ctx);
	else if (ctx->protocol == IPPROTO_UDP)
		forget_udp_peer(ctx);
}

/*
 * Notes a datagram that goes where the client sent it. A socket that is connected hears its peer alone, which it knows
 * by what it dialled.
 */
APART int note_direct_datagram(struct bpf_sock_addr *ctx, const struct place *to)
{
	struct bpf_sock *sk = ctx->sk;
	struct udp_socket *socket;

	if (ctx->protocol != IPPROTO_UDP || !sk || sk->state == BPF_TCP_ESTABLISHED)
		return 0;
	socket = udp_socket_of(ctx, 0);
	if (socket)
		note_direct(socket, to);
	return 0;
}

/* Turns a backend into what the socket dialled; `false`: it is just a peer. */
INLINE bool recall(struct bpf_sock_addr *ctx, struct place *peer, enum asked asked)
{
	struct udp_socket *socket;

	if (ctx->protocol == IPPROTO_TCP)
		return recall_tcp(bpf_get_socket_cookie(ctx), peer);
	if (ctx->protocol != IPPROTO_UDP)
		return false;
	socket = udp_socket_of(ctx, 0);
	return socket && recall_udp(socket, peer, asked);
}

/* --- What happens to a client where no backend serves. --- */

INLINE void report(struct bpf_sock_addr *ctx, const struct dial *dial, enum verdict verdict, enum reason reason)
{
	__u64 who = bpf_get_current_pid_tgid(), cgroup = bpf_get_current_cgroup_id();
	struct refusal *refusal = begin_refusal(dial, verdict, STAGE_SOCKET, cgroup);

	if (!refusal)
		return;
	refusal->reason = reason;
	refusal->cgroup = cgroup;
	refusal->netns = bpf_get_netns_cookie(ctx);
	refusal->process = who >> 32;
	refusal->thread = (__u32)who;
	bpf_get_current_comm(refusal->comm, sizeof(refusal->comm));
	bpf_ringbuf_submit(refusal, 0);
}

/* Port 1 of the loopback address is closed, so the client's own kernel says ECONNREFUSED. */
INLINE enum outcome lead_to_closed_port(struct dial *dial)
{
	const __u32 loopback6[4] = { 0, 0, 0, bpf_htonl(1) };

	if (dial->v4)
		place4(&dial->backend, bpf_htonl(0x7f000001), bpf_htons(1));
	else
		copy_address(dial->backend.address, loopback6);
	dial->backend.port = bpf_htons(1);
	return SERVED;
}

/*
 * The client never gets EPERM, which points an operator nowhere. Where its packets would be dropped it gets the error
 * that it would get in the end, ETIMEDOUT, but at once.
 */
INLINE enum outcome deny(struct bpf_sock_addr *ctx, struct dial *dial, __u64 word, enum reason reason)
{
	enum verdict verdict = verdict_of(word);

	count(dial, verdict);
	report(ctx, dial, verdict, reason);
	if (!has_set_retval)
		return lead_to_closed_port(dial);
	bpf_set_retval(verdict == VERDICT_DROPPED ? -ETIMEDOUT : -ECONNREFUSED);
	return DENIED;
}

#endif

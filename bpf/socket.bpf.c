// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The socket programs: a client's destination becomes a backend before the first packet exists, and the
 * backend becomes what the client dialled wherever the client asks.
 */
#include <linux/errno.h>
#include "common.h"
#include "events.h"
#include "lb.h"
#include "maps.h"
#include "sock_rev_nat.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Between a socket and the rules: what the kernel tells of a socket that dials, sends, receives or asks for its peer
 * becomes plain values, and what was decided becomes what the kernel does. No other header knows the kernel's context.
 */

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

/* Forces these types into BTF, so that the skeleton generator sees them. No program reads it. */
const volatile struct told {
	struct refusal refusal;
	struct udp_connection udp_connection;
	enum size size;
	enum frontend_kind frontend_kind;
	enum word_part word_part;
	enum word_flag word_flag;
	enum target_part target_part;
	enum scope scope;
	enum slot_state slot_state;
	enum restriction restriction;
	enum verdict verdict;
	enum stage stage;
	enum reason reason;
	enum client_kind client_kind;
} told_to_daemon = {};

INLINE bool is_ours(struct bpf_sock_addr *ctx, struct dial *dial)
{
	dial->transport = ctx->protocol;
	if (dial->transport != IPPROTO_TCP && dial->transport != IPPROTO_UDP)
		return false;
	return find(ctx, dial) && !is_exempt(ctx, dial);
}

/*
 * Finds what a client dials and leads it to a backend. It looks twice, although the daemon waits: the daemon wipes a
 * range, and the word of a port with frontends that have moved or gone, only when every run that could have read what
 * led there has ended. Another process that writes to the maps does not wait, and the daemon repairs that; until then a
 * second look costs only clients that are refused, and spares others that error.
 */
INLINE enum outcome translate(struct bpf_sock_addr *ctx, struct dial *dial, bool connecting)
{
	__u64 word = 0;

	if (!is_ours(ctx, dial))
		return lacks_port(ctx, dial, connecting) ? deny(ctx, dial, 0, REASON_NO_SUCH_PORT) : PASSED;
	if (!connecting && conversation_goes_on(ctx, dial))
		return SERVED;
	for (int attempt = 0; attempt < 2; attempt++) {
		word = read_word(dial);
		if (!word_count(word)) {
			__u32 before = dial->port_index;

			if (!find(ctx, dial))
				return PASSED;
			if (dial->port_index == before)
				break;
			continue;
		}
		if (choose_for(ctx, dial, word)) {
			remember(ctx, dial, connecting);
			return SERVED;
		}
	}
	return deny(ctx, dial, word, REASON_NO_BACKEND);
}

/*
 * What translate() does with nearly every TCP connect: not ours and at no cluster IP, or a list for all clients that is
 * not empty and has no affinity. In all other cases nothing was changed, and the outcome is UNSURE.
 */
INLINE enum outcome translate_quickly(struct bpf_sock_addr *ctx, struct dial *dial)
{
	__u64 target = NOT_FOUND, word;
	struct port *port;

	dial->transport = ctx->protocol;
	if (UNLIKELY(dial->transport != IPPROTO_TCP))
		return UNSURE;
	if (may_be_frontend(dial)) {
		target = look(dial, dial->to.address, DIALLED);
		if (target == NOT_FOUND && is_cluster_ip(dial))
			return UNSURE;
	}
	if (target == NOT_FOUND)
		return UNLIKELY(any_node_port(dial->to.port)) ? UNSURE : PASSED;
	if (UNLIKELY(!take_target(dial, target)))
		return UNSURE;
	if (is_exempt(ctx, dial))
		return PASSED;
	port = port_of(dial);
	if (UNLIKELY(!port))
		return UNSURE;
	word = READ_ONCE(port->cluster);
	if (UNLIKELY(!word_count(word) || word_flags(word) & (WORD_AFFINITY | WORD_INTERNAL_LOCAL) ||
		     !choose_random(dial, word)))
		return UNSURE;
	count_connect(port);
	remember_tcp(bpf_get_socket_cookie(ctx), dial);
	return SERVED;
}

/* The three ways in: IPv4, IPv4 by an IPv6 socket, IPv6. */
enum way { WAY4, WAY_MAPPED, WAY6 };

INLINE void enter(struct bpf_sock_addr *ctx, struct dial *dial, enum way way)
{
	dial->v4 = way != WAY6;
	if (way == WAY6)
		place6(&dial->to, ctx);
	else
		place4(&dial->to, way == WAY4 ? ctx->user_ip4 : ctx->user_ip6[3], ctx->user_port);
}

INLINE int leave(struct bpf_sock_addr *ctx, const struct dial *dial, enum way way, enum outcome outcome)
{
	if (outcome == SERVED && way == WAY4)
		go4(ctx, &dial->backend);
	else if (outcome == SERVED)
		go6(ctx, &dial->backend);
	return outcome == DENIED ? DENY : ALLOW;
}

INLINE int dial(struct bpf_sock_addr *ctx, enum way way, bool connecting)
{
	struct dial dial = {};
	enum outcome outcome;

	enter(ctx, &dial, way);
	outcome = translate(ctx, &dial, connecting);
	if (outcome == PASSED && connecting)
		forget_dialled(ctx);
	else if (outcome == PASSED)
		note_direct_datagram(ctx, &dial.to);
	return leave(ctx, &dial, way, outcome);
}

/* Each begins anew: whatever a caller has found out is not worth the room that it takes in the verifier. */
APART int connect_with_care4(struct bpf_sock_addr *ctx)
{
	return dial(ctx, WAY4, true);
}

APART int connect_with_care_mapped(struct bpf_sock_addr *ctx)
{
	return dial(ctx, WAY_MAPPED, true);
}

APART int connect_with_care6(struct bpf_sock_addr *ctx)
{
	return dial(ctx, WAY6, true);
}

INLINE int connect_with_care(struct bpf_sock_addr *ctx, enum way way)
{
	if (way == WAY4)
		return connect_with_care4(ctx);
	return way == WAY_MAPPED ? connect_with_care_mapped(ctx) : connect_with_care6(ctx);
}

INLINE int connect_by(struct bpf_sock_addr *ctx, enum way way)
{
	struct dial dial = {};
	enum outcome outcome;

	enter(ctx, &dial, way);
	outcome = translate_quickly(ctx, &dial);
	if (UNLIKELY(outcome == UNSURE))
		return connect_with_care(ctx, way);
	if (outcome == PASSED)
		forget_tcp_peer(ctx);
	return leave(ctx, &dial, way, outcome);
}

INLINE int peer4(struct bpf_sock_addr *ctx, enum asked asked)
{
	struct place peer;

	place4(&peer, ctx->user_ip4, ctx->user_port);
	if (recall(ctx, &peer, asked))
		go4(ctx, &peer);
	return ALLOW;
}

INLINE int peer6(struct bpf_sock_addr *ctx, enum asked asked)
{
	struct place peer;

	place6(&peer, ctx);
	if (recall(ctx, &peer, asked))
		go6(ctx, &peer);
	return ALLOW;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return connect_by(ctx, WAY4);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return is_mapped(ctx) ? connect_by(ctx, WAY_MAPPED) : connect_by(ctx, WAY6);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return goes_where_connected(ctx) ? ALLOW : dial(ctx, WAY4, false);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return is_mapped(ctx) ? dial(ctx, WAY_MAPPED, false) : dial(ctx, WAY6, false);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return peer4(ctx, ASKED_SENDER);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return peer6(ctx, ASKED_SENDER);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return peer4(ctx, ASKED_PEER);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return peer6(ctx, ASKED_PEER);
}

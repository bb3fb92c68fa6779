// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The socket programs. connect() and sendmsg() get a backend in place of the frontend, before there is any packet.
 * recvmsg() and getpeername() show the frontend in place of the backend.
 *
 * Owns: the hooks of sockets. Only this file reads the kernel's context of a socket. Reads: the socket, `control`,
 * `exempt_cgroups`, frontends and lists. Writes: the socket's address, `reverse`, `udp_sockets`, `affinity`, refusals.
 */
#include <linux/errno.h>
#include "common.h"
#include "events.h"
#include "lb.h"
#include "maps.h"
#include "sock_rev_nat.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Whether the kernel lets a program set the errno of a denial (Linux 5.18). Otherwise it would be EPERM. */
const volatile bool has_set_retval = false;

/* What a program returns. */
enum { DENY = 0, ALLOW = 1 };

/* AF_INET6, whose header is not part of the kernel's. */
#define FAMILY6 10

/* --- The address. --- */

INLINE bool is_mapped(struct bpf_sock_addr *ctx)
{
	return ctx->user_ip6[0] == 0 && ctx->user_ip6[1] == 0 && ctx->user_ip6[2] == V4_MAPPED_PREFIX;
}

INLINE void endpoint6(struct endpoint *endpoint, struct bpf_sock_addr *ctx)
{
	endpoint->address[0] = ctx->user_ip6[0];
	endpoint->address[1] = ctx->user_ip6[1];
	endpoint->address[2] = ctx->user_ip6[2];
	endpoint->address[3] = ctx->user_ip6[3];
	endpoint->port = ctx->user_port;
}

INLINE void set_destination4(struct bpf_sock_addr *ctx, const struct endpoint *endpoint)
{
	ctx->user_ip4 = endpoint->address[3];
	ctx->user_port = endpoint->port;
}

INLINE void set_destination6(struct bpf_sock_addr *ctx, const struct endpoint *endpoint)
{
	ctx->user_ip6[0] = endpoint->address[0];
	ctx->user_ip6[1] = endpoint->address[1];
	ctx->user_ip6[2] = endpoint->address[2];
	ctx->user_ip6[3] = endpoint->address[3];
	ctx->user_port = endpoint->port;
}

/*
 * An IPv6 socket that is connected over IPv4 may send without an address. Then the kernel shows the connected address.
 * connect() has handled it, and it may differ from what the client dialled: the kernel has replaced 0.0.0.0 by a
 * loopback address.
 */
INLINE bool is_sent_to_peer(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && sk->family == FAMILY6 && sk->state == BPF_TCP_ESTABLISHED && sk->dst_ip4 == ctx->user_ip4 &&
	       sk->dst_port == ctx->user_port;
}

/* --- The client. --- */

/* Whether the client is in the host's network namespace. A pod has its own loopback. */
INLINE bool in_host_netns(struct bpf_sock_addr *ctx)
{
	struct control *control = get_control();
	__u64 host = control ? control->host_netns : 0;

	if (!host)
		host = bpf_get_netns_cookie(NULL);
	return bpf_get_netns_cookie(ctx) == host;
}

/* Compares the ids of the client's cgroups from the top down, so the depth of an exempt subtree need not be known. */
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

/* Whether the operator has exempted the client. */
GLOBAL int is_restricted(struct bpf_sock_addr *ctx, __u32 restrictions)
{
	if (restrictions & NOT_UDP && ctx->protocol == IPPROTO_UDP)
		return true;
	if (restrictions & ONLY_HOST && !in_host_netns(ctx))
		return true;
	return restrictions & NOT_SUBTREES && in_exempt_subtree();
}

/*
 * Whether a pod dials its own loopback, where the host's frontends do not serve. On kernels without netns cookies of
 * the host this is unknown.
 */
INLINE bool is_pod_loopback(struct bpf_sock_addr *ctx, const struct lb_request *request, __u64 host)
{
	return UNLIKELY(is_loopback(request)) && host && bpf_get_netns_cookie(ctx) != host;
}

/*
 * Whether the socket is exempt: the daemon's own, its cgroup's, or one that the operator exempted. It is checked only
 * after a look-up has found something, because all other clients would pay for it. The cgroup comes last, because it
 * costs most. Without restrictions, the check costs one look at a word that was read anyway.
 */
INLINE bool is_exempt(struct bpf_sock_addr *ctx, const struct lb_request *request)
{
	struct control *control = get_control();
	struct bpf_sock *sk = ctx->sk;

	if (UNLIKELY(!control))
		return true;
	if (sk && control->exempt_mark && sk->mark == control->exempt_mark)
		return true;
	if (UNLIKELY(control->restrictions) && is_restricted(ctx, control->restrictions))
		return true;
	if (is_pod_loopback(ctx, request, control->host_netns))
		return true;
	return control->exempt_cgroup && control->exempt_cgroup == bpf_get_current_cgroup_id();
}

/* All sockets of a network namespace are one client: a pod, or the node. */
INLINE void set_netns_client(struct bpf_sock_addr *ctx, struct client_id *client)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);

	client->id[0] = (__u32)cookie;
	client->id[1] = cookie >> 32;
	client->id[2] = 0;
	client->id[3] = 0;
	client->kind = CLIENT_NETNS;
}

/* How a socket dials: IPv4, IPv4 by an IPv6 socket, or IPv6. */
enum sock_family { SOCK_V4, SOCK_V4_MAPPED, SOCK_V6 };

INLINE void read_destination(struct bpf_sock_addr *ctx, struct lb_request *request, enum sock_family family)
{
	request->v4 = family != SOCK_V6;
	if (family == SOCK_V6)
		endpoint6(&request->frontend, ctx);
	else
		endpoint4(&request->frontend, family == SOCK_V4 ? ctx->user_ip4 : ctx->user_ip6[3], ctx->user_port);
}

/* --- The frontend and the backend. --- */

/* Whether the client dials an address at which this node answers node ports. */
INLINE bool has_node_ports(struct bpf_sock_addr *ctx, const struct lb_request *request)
{
	return is_loopback(request) ? has_loopback_node_ports(request) && in_host_netns(ctx) : is_node_address(request);
}

/* Finds an exact frontend, or a node port on an address of this node. */
INLINE __u64 find_socket_target(struct bpf_sock_addr *ctx, const struct lb_request *request)
{
	__u64 target = find_exact_target(request);

	if (target != TARGET_NONE)
		return target;
	if (!has_node_port(request->frontend.port) || !has_node_ports(ctx, request))
		return TARGET_NONE;
	return find_node_port_target(request);
}

/*
 * Whether a client dials a cluster IP at a port that its service does not have. At its own addresses the node refuses
 * by itself. connect() of a UDP socket sends nothing, so it is never refused: resolvers connect to each address, at any
 * port, to learn their source address.
 */
INLINE bool is_unknown_port(const struct lb_request *request, bool connecting)
{
	if (request->transport == IPPROTO_UDP && connecting)
		return false;
	return may_be_frontend(request) && is_cluster_ip(request) && !is_node_address(request);
}

/* Whether services have the transport. Without branches, as find_pair(). */
INLINE bool has_services(__u32 transport)
{
	__u64 transports = 1ULL << IPPROTO_TCP | 1ULL << IPPROTO_UDP;

	return transports >> (transport & 63) & ((__u64)transport - 64) >> 63 & 1;
}

/* What find_service() returns for a port that the service does not have. */
#define TARGET_UNKNOWN_PORT (~2ULL)

/*
 * Finds what a client dials: the frontend's target. TARGET_NONE: it dials no service, or is exempt. A global function,
 * so the verifier follows its caller once, and not once for each way in which a frontend is found.
 */
INLINE __u64 find_service(struct bpf_sock_addr *ctx, enum sock_family family, bool connecting)
{
	struct lb_request request = {};
	__u64 target;

	read_destination(ctx, &request, family);
	request.transport = ctx->protocol;
	if (!has_services(request.transport))
		return TARGET_NONE;
	target = find_socket_target(ctx, &request);
	if (target == TARGET_NONE && is_unknown_port(&request, connecting))
		target = TARGET_UNKNOWN_PORT;
	return target == TARGET_NONE || is_exempt(ctx, &request) ? TARGET_NONE : target;
}

GLOBAL __u64 find_service4(struct bpf_sock_addr *ctx, __u32 connecting)
{
	return find_service(ctx, SOCK_V4, connecting);
}

GLOBAL __u64 find_service_mapped(struct bpf_sock_addr *ctx, __u32 connecting)
{
	return find_service(ctx, SOCK_V4_MAPPED, connecting);
}

GLOBAL __u64 find_service6(struct bpf_sock_addr *ctx, __u32 connecting)
{
	return find_service(ctx, SOCK_V6, connecting);
}

INLINE __u64 find_dialled_service(struct bpf_sock_addr *ctx, enum sock_family family, bool connecting)
{
	if (family == SOCK_V4)
		return find_service4(ctx, connecting);
	return family == SOCK_V4_MAPPED ? find_service_mapped(ctx, connecting) : find_service6(ctx, connecting);
}

INLINE bool select_for_socket(struct bpf_sock_addr *ctx, struct lb_request *request, __u64 word)
{
	if (has_affinity(word))
		set_netns_client(ctx, &request->client);
	return select_from_list(request, word);
}

/* --- What the socket dialled before. --- */

/* The storage of a UDP socket. `flags` tell whether to create it. NULL: there is none, or no memory for it. */
INLINE struct udp_socket *get_udp_socket(struct bpf_sock_addr *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&udp_sockets, sk, NULL, flags) : NULL;
}

INLINE bool continues_conversation(struct bpf_sock_addr *ctx, struct lb_request *request)
{
	struct udp_socket *socket = get_udp_socket(ctx, 0);

	return socket && reuse_pair(socket, request);
}

INLINE void save_conversation(struct bpf_sock_addr *ctx, const struct lb_request *request, bool connecting)
{
	struct udp_socket *socket = get_udp_socket(ctx, BPF_SK_STORAGE_GET_F_CREATE);

	if (UNLIKELY(!socket))
		return;
	if (connecting) {
		socket->cookie = bpf_get_socket_cookie(ctx);
		socket->netns = bpf_get_netns_cookie(ctx);
	}
	save_udp_pair(socket, request, connecting);
}

INLINE void save_frontend(struct bpf_sock_addr *ctx, const struct lb_request *request, bool connecting)
{
	if (request->transport == IPPROTO_TCP)
		save_tcp_frontend(bpf_get_socket_cookie(ctx), request);
	else
		save_conversation(ctx, request, connecting);
}

INLINE void clear_udp_peer(struct bpf_sock_addr *ctx)
{
	struct udp_socket *socket = get_udp_socket(ctx, 0);

	if (socket)
		clear_connected_pair(socket);
}

/* Whether the socket had a peer. The kernel keeps the peer's address after a disconnect. */
INLINE bool had_peer(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return false;
	if (sk->family == FAMILY6)
		return sk->dst_ip6[0] | sk->dst_ip6[1] | sk->dst_ip6[2] | sk->dst_ip6[3];
	return sk->dst_ip4;
}

/* Nearly all sockets connect for the first time, and have nothing to clear. */
INLINE void clear_tcp_peer(struct bpf_sock_addr *ctx)
{
	if (UNLIKELY(had_peer(ctx)))
		clear_tcp_frontend(bpf_get_socket_cookie(ctx));
}

/* Clears what the socket dialled by connect(), because its new peer is no frontend. */
INLINE void clear_peer(struct bpf_sock_addr *ctx)
{
	if (ctx->protocol == IPPROTO_TCP)
		clear_tcp_peer(ctx);
	else if (ctx->protocol == IPPROTO_UDP)
		clear_udp_peer(ctx);
}

/*
 * Notes a datagram that goes where the client sent it. A connected socket receives from its peer alone, which it knows
 * by what it dialled.
 */
INLINE void note_direct_datagram(struct bpf_sock_addr *ctx, const struct endpoint *to)
{
	struct bpf_sock *sk = ctx->sk;
	struct udp_socket *socket;

	if (ctx->protocol != IPPROTO_UDP || !sk || sk->state == BPF_TCP_ESTABLISHED)
		return;
	socket = get_udp_socket(ctx, 0);
	if (socket)
		save_direct_pair(socket, to);
}

/* Replaces a backend by what the socket dialled. `false`: the peer is no backend of the socket. */
INLINE bool restore_frontend(struct bpf_sock_addr *ctx, struct endpoint *peer, enum peer_query query)
{
	struct udp_socket *socket;

	if (ctx->protocol == IPPROTO_TCP)
		return restore_tcp_frontend(bpf_get_socket_cookie(ctx), peer);
	if (ctx->protocol != IPPROTO_UDP)
		return false;
	socket = get_udp_socket(ctx, 0);
	return socket && restore_udp_frontend(socket, peer, query);
}

/* --- Refusals. --- */

INLINE void report_socket_refusal(struct bpf_sock_addr *ctx, const struct lb_request *request, enum verdict verdict,
				  enum reason reason)
{
	__u64 who = bpf_get_current_pid_tgid(), cgroup = bpf_get_current_cgroup_id();
	struct refusal *refusal = reserve_refusal(request, verdict, STAGE_SOCKET, cgroup);

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

/* Port 1 of the loopback address is closed, so the client's own kernel returns ECONNREFUSED. */
INLINE enum outcome redirect_to_closed_port(struct lb_request *request)
{
	const __u32 loopback6[4] = { 0, 0, 0, bpf_htonl(1) };

	if (request->v4)
		endpoint4(&request->backend, bpf_htonl(0x7f000001), bpf_htons(1));
	else
		copy_address(request->backend.address, loopback6);
	request->backend.port = bpf_htons(1);
	return SERVED;
}

/*
 * Denies a client. EPERM would mislead an operator. A client whose packets would be dropped gets ETIMEDOUT, as it would
 * in the end, but at once.
 */
INLINE enum outcome deny_client(struct bpf_sock_addr *ctx, struct lb_request *request, __u64 word, enum reason reason)
{
	enum verdict verdict = empty_list_verdict(word);

	count_verdict(request, verdict);
	report_socket_refusal(ctx, request, verdict, reason);
	if (!has_set_retval)
		return redirect_to_closed_port(request);
	bpf_set_retval(verdict == VERDICT_DROPPED ? -ETIMEDOUT : -ECONNREFUSED);
	return DENIED;
}

/* Puts these types into BTF for the skeleton generator. No program reads it. */
const volatile struct exported_types {
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
} exported_types = {};

/*
 * What translate() does with nearly every TCP connect: the address is no frontend and no cluster IP, or its list serves
 * all clients, is not empty and has no affinity. In any other case nothing has changed, and the outcome is UNSURE.
 */
INLINE enum outcome translate_fast(struct bpf_sock_addr *ctx, struct lb_request *request)
{
	__u64 target = TARGET_NONE, word;
	struct port *port;

	request->transport = ctx->protocol;
	if (UNLIKELY(request->transport != IPPROTO_TCP))
		return UNSURE;
	if (may_be_frontend(request)) {
		target = lookup_frontend(request, request->frontend.address, EXACT_ADDRESS);
		if (target == TARGET_NONE && is_cluster_ip(request))
			return UNSURE;
	}
	if (target == TARGET_NONE)
		return UNLIKELY(has_node_port(request->frontend.port)) ? UNSURE : PASSED;
	if (UNLIKELY(!set_target(request, target)))
		return UNSURE;
	if (is_exempt(ctx, request))
		return PASSED;
	port = lookup_port(request);
	if (UNLIKELY(!port))
		return UNSURE;
	word = READ_ONCE(port->cluster);
	if (UNLIKELY(!word_count(word) || word_flags(word) & (WORD_AFFINITY | WORD_INTERNAL_LOCAL) ||
		     !select_random(request, word)))
		return UNSURE;
	count_connect(port);
	save_tcp_frontend(bpf_get_socket_cookie(ctx), request);
	return SERVED;
}

INLINE void write_destination(struct bpf_sock_addr *ctx, const struct lb_request *request, enum sock_family family)
{
	if (family == SOCK_V4)
		set_destination4(ctx, &request->backend);
	else
		set_destination6(ctx, &request->backend);
}

/* Leaves a client alone that dials no service, and forgets what its socket dialled before. */
INLINE enum outcome pass_client(struct bpf_sock_addr *ctx, const struct lb_request *request, bool connecting)
{
	if (connecting)
		clear_peer(ctx);
	else
		note_direct_datagram(ctx, &request->frontend);
	return PASSED;
}

/*
 * Finds what a client dials, and selects a backend. UNSURE: there was none, and it is not the last attempt.
 */
INLINE enum outcome select_for_request(struct bpf_sock_addr *ctx, struct lb_request *request, __u64 target,
				       bool connecting, bool is_last)
{
	__u64 word;

	if (target == TARGET_UNKNOWN_PORT)
		return deny_client(ctx, request, 0, REASON_NO_SUCH_PORT);
	if (!set_target(request, target))
		return pass_client(ctx, request, connecting);
	if (!connecting && continues_conversation(ctx, request))
		return SERVED;
	word = read_list_word(request);
	if (word_count(word) && select_for_socket(ctx, request, word)) {
		save_frontend(ctx, request, connecting);
		return SERVED;
	}
	return is_last ? deny_client(ctx, request, word, REASON_NO_BACKEND) : UNSURE;
}

INLINE enum outcome try_translate(struct bpf_sock_addr *ctx, enum sock_family family, bool connecting, bool is_last)
{
	__u64 target = find_dialled_service(ctx, family, connecting);
	struct lb_request request = {};
	enum outcome outcome;

	read_destination(ctx, &request, family);
	request.transport = ctx->protocol;
	outcome = select_for_request(ctx, &request, target, connecting, is_last);
	if (outcome == SERVED)
		write_destination(ctx, &request, family);
	return outcome;
}

/*
 * The attempts to translate, as global functions: what their callers know is not worth its cost in the verifier.
 */
#define TRY_TRANSLATE(suffix, family)                                                    \
	GLOBAL int try_translate_connect##suffix(struct bpf_sock_addr *ctx, __u32 is_last) \
	{                                                                                \
		return try_translate(ctx, family, true, is_last);                        \
	}                                                                                \
	GLOBAL int try_translate_sendmsg##suffix(struct bpf_sock_addr *ctx, __u32 is_last) \
	{                                                                                \
		return try_translate(ctx, family, false, is_last);                       \
	}

TRY_TRANSLATE(4, SOCK_V4)
TRY_TRANSLATE(_mapped, SOCK_V4_MAPPED)
TRY_TRANSLATE(6, SOCK_V6)

INLINE enum outcome try_connect(struct bpf_sock_addr *ctx, enum sock_family family, bool is_last)
{
	if (family == SOCK_V4)
		return try_translate_connect4(ctx, is_last);
	return family == SOCK_V4_MAPPED ? try_translate_connect_mapped(ctx, is_last) :
					  try_translate_connect6(ctx, is_last);
}

INLINE enum outcome try_sendmsg(struct bpf_sock_addr *ctx, enum sock_family family, bool is_last)
{
	if (family == SOCK_V4)
		return try_translate_sendmsg4(ctx, is_last);
	return family == SOCK_V4_MAPPED ? try_translate_sendmsg_mapped(ctx, is_last) :
					  try_translate_sendmsg6(ctx, is_last);
}

/*
 * Translates what a client dials. It looks twice, although the daemon waits before it clears anything: until every run
 * is over that may have read what led to a range, or to the word of a port whose frontends have moved. Another process
 * that writes to the maps does not wait. The daemon repairs that. Until then the second look spares clients an error,
 * and only refused clients pay for it.
 */
INLINE int translate(struct bpf_sock_addr *ctx, enum sock_family family, bool connecting)
{
	enum outcome outcome = connecting ? try_connect(ctx, family, false) : try_sendmsg(ctx, family, false);

	if (UNLIKELY(outcome == UNSURE))
		outcome = connecting ? try_connect(ctx, family, true) : try_sendmsg(ctx, family, true);
	return outcome == DENIED ? DENY : ALLOW;
}

INLINE int connect_fast(struct bpf_sock_addr *ctx, enum sock_family family)
{
	struct lb_request request = {};
	enum outcome outcome;

	read_destination(ctx, &request, family);
	outcome = translate_fast(ctx, &request);
	if (UNLIKELY(outcome == UNSURE))
		return translate(ctx, family, true);
	if (outcome == PASSED)
		clear_tcp_peer(ctx);
	else
		write_destination(ctx, &request, family);
	return ALLOW;
}

INLINE int restore_peer4(struct bpf_sock_addr *ctx, enum peer_query query)
{
	struct endpoint peer;

	endpoint4(&peer, ctx->user_ip4, ctx->user_port);
	if (restore_frontend(ctx, &peer, query))
		set_destination4(ctx, &peer);
	return ALLOW;
}

INLINE int restore_peer6(struct bpf_sock_addr *ctx, enum peer_query query)
{
	struct endpoint peer;

	endpoint6(&peer, ctx);
	if (restore_frontend(ctx, &peer, query))
		set_destination6(ctx, &peer);
	return ALLOW;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return connect_fast(ctx, SOCK_V4);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return is_mapped(ctx) ? connect_fast(ctx, SOCK_V4_MAPPED) : connect_fast(ctx, SOCK_V6);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return is_sent_to_peer(ctx) ? ALLOW : translate(ctx, SOCK_V4, false);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return is_mapped(ctx) ? translate(ctx, SOCK_V4_MAPPED, false) : translate(ctx, SOCK_V6, false);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return restore_peer4(ctx, QUERY_SENDER);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return restore_peer6(ctx, QUERY_SENDER);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return restore_peer4(ctx, QUERY_PEER);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return restore_peer6(ctx, QUERY_PEER);
}

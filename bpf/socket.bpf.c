// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The socket programs: a client's destination becomes a backend before the first packet exists, and the
 * backend becomes what the client dialled wherever the client asks.
 */
#include "socket.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

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

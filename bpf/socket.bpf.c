// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The socket programs: a client's destination becomes a backend before the first packet exists, and the
 * backend becomes what the client dialled wherever the client asks.
 */
#include "choose.h"
#include "dial.h"
#include "lookup.h"
#include "maps.h"
#include "reverse.h"
#include "verdict.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Makes known to the daemon what no map names. Nobody reads it. */
const volatile struct told {
	struct refusal refusal;
	enum size size;
	enum frontend_kind frontend_kind;
	enum word_flag word_flag;
	enum scope scope;
	enum slot_state slot_state;
	enum verdict verdict;
} told_to_daemon = {};

INLINE bool is_ours(struct bpf_sock_addr *ctx, struct dial *dial)
{
	dial->transport = ctx->protocol;
	if (dial->transport != IPPROTO_TCP && dial->transport != IPPROTO_UDP)
		return false;
	return !is_exempt(ctx) && find(ctx, dial);
}

/*
 * Twice: a range that was wiped under our eyes has been replaced by another one, and a word that was wiped
 * after we found its frontend belongs to one that has moved or gone.
 */
INLINE enum outcome translate(struct bpf_sock_addr *ctx, struct dial *dial)
{
	__u64 word = 0;

	if (!is_ours(ctx, dial))
		return PASSED;
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
		if (choose(ctx, dial, word, !attempt)) {
			remember(ctx, dial);
			return SERVED;
		}
	}
	return deny(ctx, dial, word_flags(word));
}

INLINE int dial4(struct bpf_sock_addr *ctx, bool connecting)
{
	struct dial dial = { .v4 = true, .connecting = connecting };
	enum outcome outcome;

	place4(&dial.to, ctx->user_ip4, ctx->user_port);
	outcome = translate(ctx, &dial);
	if (outcome == SERVED)
		go4(ctx, &dial.backend);
	return outcome == DENIED ? DENY : ALLOW;
}

INLINE int dial_mapped(struct bpf_sock_addr *ctx, bool connecting)
{
	struct dial dial = { .v4 = true, .connecting = connecting };
	enum outcome outcome;

	place4(&dial.to, ctx->user_ip6[3], ctx->user_port);
	outcome = translate(ctx, &dial);
	if (outcome == SERVED)
		go6(ctx, &dial.backend);
	return outcome == DENIED ? DENY : ALLOW;
}

INLINE int dial6(struct bpf_sock_addr *ctx, bool connecting)
{
	struct dial dial = { .v4 = false, .connecting = connecting };
	enum outcome outcome;

	if (is_mapped(ctx))
		return dial_mapped(ctx, connecting);
	place6(&dial.to, ctx);
	outcome = translate(ctx, &dial);
	if (outcome == SERVED)
		go6(ctx, &dial.backend);
	return outcome == DENIED ? DENY : ALLOW;
}

INLINE int peer4(struct bpf_sock_addr *ctx)
{
	struct place peer;

	place4(&peer, ctx->user_ip4, ctx->user_port);
	if (recall(ctx, &peer))
		go4(ctx, &peer);
	return ALLOW;
}

INLINE int peer6(struct bpf_sock_addr *ctx)
{
	struct place peer;

	place6(&peer, ctx);
	if (recall(ctx, &peer))
		go6(ctx, &peer);
	return ALLOW;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return dial4(ctx, true);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return dial6(ctx, true);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return dial4(ctx, false);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return dial6(ctx, false);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return peer4(ctx);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return peer6(ctx);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return peer4(ctx);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return peer6(ctx);
}

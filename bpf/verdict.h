/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What happens to a client that is not served, and who gets to know. */
#ifndef HOLDFAST_VERDICT_H
#define HOLDFAST_VERDICT_H

#include <linux/errno.h>
#include "choose.h"
#include "dial.h"
#include "lookup.h"
#include "maps.h"

/* Before Linux 5.18 a program cannot say which errno its refusal has; the kernel's own would be EPERM. */
const volatile bool has_set_retval = false;

/* What a program returns. */
enum { DENY = 0, ALLOW = 1 };

INLINE void count(const struct dial *dial, enum verdict verdict)
{
	struct port *port = port_of(dial);

	if (port)
		__sync_fetch_and_add(verdict == VERDICT_DROPPED ? &port->dropped : &port->refused, 1);
}

INLINE void report(struct bpf_sock_addr *ctx, const struct dial *dial, enum verdict verdict)
{
	struct refusal *refusal = bpf_ringbuf_reserve(&refusals, sizeof(*refusal), 0);
	__u64 who = bpf_get_current_pid_tgid();

	if (!refusal) {
		struct control *told = the_control();

		if (told)
			__sync_fetch_and_add(&told->refusals_lost, 1);
		return;
	}
	refusal->at_ns = bpf_ktime_get_ns();
	refusal->cgroup = bpf_get_current_cgroup_id();
	refusal->netns = bpf_get_netns_cookie(ctx);
	refusal->process = who >> 32;
	refusal->thread = (__u32)who;
	bpf_get_current_comm(refusal->comm, sizeof(refusal->comm));
	copy_address(refusal->address, dial->to.address);
	refusal->port = dial->to.port;
	refusal->transport = dial->transport;
	refusal->verdict = verdict;
	refusal->port_index = dial->port_index;
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

/* Never EPERM, which points an operator nowhere. A dropped attempt ends with what it would end with, but at once. */
INLINE enum outcome deny(struct bpf_sock_addr *ctx, struct dial *dial, __u32 flags)
{
	enum verdict verdict = flags & WORD_DROP ? VERDICT_DROPPED : VERDICT_REFUSED;

	count(dial, verdict);
	report(ctx, dial, verdict);
	if (!has_set_retval)
		return lead_to_closed_port(dial);
	bpf_set_retval(verdict == VERDICT_DROPPED ? -ETIMEDOUT : -ECONNREFUSED);
	return DENIED;
}

#endif

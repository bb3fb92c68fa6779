/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Refusals: what happens to a client that is not served, and how the daemon learns of it.
 *
 * Owns: the rate limit and the ring of refusals. Reads: the word of a list. Writes: `refusals`, `refusal_paces`, the
 * counts in `ports`, and `refusals_lost` in `control`.
 */
#ifndef HOLDFAST_EVENTS_H
#define HOLDFAST_EVENTS_H

#include "common.h"
#include "lb.h"
#include "maps.h"

/* What happens to a client of an empty list. */
INLINE enum verdict empty_list_verdict(__u64 word)
{
	return word_flags(word) & WORD_DROP ? VERDICT_DROPPED : VERDICT_REFUSED;
}

INLINE void count_verdict(const struct lb_request *request, enum verdict verdict)
{
	struct port *port = lookup_port(request);

	if (port)
		ATOMIC_ADD(verdict == VERDICT_DROPPED ? &port->dropped : &port->refused, 1);
}

INLINE void count_lost_event(void)
{
	struct control *control = get_control();

	if (control)
		ATOMIC_ADD(&control->refusals_lost, 1);
}

/*
 * How many refusals are reported in a second at most, of two kinds: those of all outside clients at one namespace's
 * frontends, and those of one cgroup's processes at them. The daemon reads fifty times as many. Ports that no service
 * has count as one more namespace.
 */
#define EVENTS_PER_SECOND 200

/*
 * Whether the rate limit allows one more report. A flood at one namespace does not use up the limit of another, unless
 * both have the same pace: by chance, or because a tenant has chosen a cgroup for it. The program counts each report
 * that it leaves out.
 * `cgroup`: the client's, or 0 for an outside client. Two CPUs may both begin a second, so a few more are reported
 * then.
 */
INLINE bool may_report(const struct lb_request *request, __u64 cgroup)
{
	__u32 second = bpf_ktime_get_ns() / NS_PER_SECOND;
	__u32 at = mix(mix(request->share, (__u32)cgroup, cgroup >> 32), 0, 0) >> 32 & (REFUSAL_PACES - 1);
	struct refusal_pace *pace = bpf_map_lookup_elem(&refusal_paces, &at);

	if (!pace)
		return false;
	if (READ_ONCE(pace->second) != second) {
		pace->second = second;
		pace->reported = 0;
	}
	if (READ_ONCE(pace->reported) >= EVENTS_PER_SECOND)
		return false;
	ATOMIC_ADD(&pace->reported, 1);
	return true;
}

/* Outside clients of all namespaces may fill half of the ring at most. */
INLINE bool has_ring_room(enum stage stage)
{
	return stage == STAGE_SOCKET || bpf_ringbuf_query(&refusals, BPF_RB_AVAIL_DATA) < REFUSAL_BYTES / 2;
}

/*
 * Reserves a refusal in the ring. The caller adds the client and submits it. NULL: the rate limit is reached, or the
 * ring is full. Both are counted.
 */
INLINE struct refusal *reserve_refusal(const struct lb_request *request, enum verdict verdict, enum stage stage,
				       __u64 cgroup)
{
	const __u32 none[4] = {};
	struct refusal *refusal = NULL;

	if (may_report(request, cgroup) && has_ring_room(stage))
		refusal = bpf_ringbuf_reserve(&refusals, sizeof(*refusal), 0);
	if (!refusal) {
		count_lost_event();
		return NULL;
	}
	refusal->at_ns = bpf_ktime_get_ns();
	copy_address(refusal->address, request->frontend.address);
	copy_address(refusal->source, none);
	refusal->port = request->frontend.port;
	refusal->source_port = 0;
	refusal->transport = request->transport;
	refusal->verdict = verdict;
	refusal->stage = stage;
	refusal->reason = REASON_NO_BACKEND;
	refusal->port_and_share = (request->port_index & ((1 << FLOW_SHARE_AT) - 1)) | request->share << FLOW_SHARE_AT;
	refusal->device = 0;
	return refusal;
}

#endif

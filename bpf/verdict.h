/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What happens to a client that is not served, and what the daemon gets to know of it. */
#ifndef HOLDFAST_VERDICT_H
#define HOLDFAST_VERDICT_H

#include "choose.h"
#include "dial.h"
#include "lookup.h"
#include "maps.h"

/* By the word of the list that is empty. */
INLINE enum verdict verdict_of(__u64 word)
{
	return word_flags(word) & WORD_DROP ? VERDICT_DROPPED : VERDICT_REFUSED;
}

INLINE void count(const struct dial *dial, enum verdict verdict)
{
	struct port *port = port_of(dial);

	if (port)
		__sync_fetch_and_add(verdict == VERDICT_DROPPED ? &port->dropped : &port->refused, 1);
}

INLINE void count_lost(void)
{
	struct control *told = the_control();

	if (told)
		__sync_fetch_and_add(&told->refusals_lost, 1);
}

/*
 * What the daemon gets to know of it. The caller, which knows the client, writes into it which one that is, and submits
 * it. None: there is no room, which is counted.
 */
INLINE struct refusal *begin_refusal(const struct dial *dial, enum verdict verdict, enum stage stage)
{
	const __u32 none[4] = {};
	struct refusal *refusal = bpf_ringbuf_reserve(&refusals, sizeof(*refusal), 0);

	if (!refusal) {
		count_lost();
		return NULL;
	}
	refusal->at_ns = bpf_ktime_get_ns();
	copy_address(refusal->address, dial->to.address);
	copy_address(refusal->source, none);
	refusal->port = dial->to.port;
	refusal->source_port = 0;
	refusal->transport = dial->transport;
	refusal->verdict = verdict;
	refusal->stage = stage;
	refusal->reason = REASON_NO_BACKEND;
	refusal->port_index = dial->port_index;
	refusal->device = 0;
	return refusal;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Conntrack: the flows, the entries that lead to them, and their lifetimes.
 *
 * Owns: `flow_table`, `entries4/6`, `free_flows` and `flow_counts`, and the release of a flow with its SNAT port.
 * Reads: `packet_settings`, the clock. Writes: those maps, and `backend_ports`.
 *
 * A flow belongs to the one caller that deletes its ENTRY_TRANSLATED, which succeeds once. While that entry exists, the
 * flow is complete.
 */
#ifndef HOLDFAST_CONNTRACK_H
#define HOLDFAST_CONNTRACK_H

#include "lb.h"
#include "packet.h"

/* The direction of a packet of a flow. */
enum direction { NO_DIRECTION, TO_BACKEND, TO_CLIENT };

/*
 * The second of the last clock read, and below it the kernel's tick of that read. One word holds both, so that they
 * always belong together. 0 before the first read.
 */
__u64 cached_clock;

/* The seconds since boot. A clock read costs a fifth of a flow's packet, so one for each tick has to do. */
INLINE __u32 seconds(void)
{
	__u32 tick = bpf_jiffies64();
	__u64 looked = READ_ONCE(cached_clock);
	__u64 now;

	if (LIKELY((__u32)looked == tick && looked))
		return looked >> 32;
	now = bpf_ktime_get_ns() / NS_PER_SECOND;
	*(volatile __u64 *)&cached_clock = now << 32 | tick;
	return now;
}

/*
 * Whether flows are frozen, because the daemon moves them to a table of another size. Then the programs open no flow,
 * and pass no packet that ends or establishes one: only one of the two tables might learn of it. The daemon sets the
 * end in advance, so nothing has to unfreeze the flows.
 */
INLINE bool are_flows_frozen(void)
{
	__u32 zero = 0;
	const struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);
	__u32 until = settings ? READ_ONCE(settings->drains) : DRAINS_NOT;

	return UNLIKELY(until > DRAINS) && seconds() < until;
}

/* Whether flows are frozen, and the segment would change the state of its connection. */
INLINE bool must_wait_for_table(const struct packet *packet)
{
	return UNLIKELY(packet->flags & (TCP_SYN | TCP_FIN | TCP_RST)) && are_flows_frozen();
}

/* --- Entries. --- */

/* All ones if the source is greater. Without branches, as address_diff(), and for the same reason. */
INLINE __u32 is_reversed(const struct tuple *tuple, bool v4)
{
	__u64 less = 0, equal = 1, a, b;

	for (int at = v4 ? 3 : 0; at < 4; at++) {
		a = tuple->source.address[at];
		b = tuple->destination.address[at];
		less |= equal & (b - a) >> 63;
		equal &= ((a ^ b) - 1) >> 63;
	}
	a = tuple->source.port;
	b = tuple->destination.port;
	less |= equal & (b - a) >> 63;
	return -(__u32)less;
}

union entry_key {
	struct entry4_key v4;
	struct entry6_key v6;
};

INLINE __u32 pick(__u32 a, __u32 b, __u32 mask)
{
	return a ^ ((a ^ b) & mask);
}

INLINE void set_entry4_key(struct entry4_key *key, const struct tuple *tuple, __u32 turned)
{
	const struct endpoint *a = &tuple->source, *b = &tuple->destination;

	key->source = pick(a->address[3], b->address[3], turned);
	key->destination = pick(b->address[3], a->address[3], turned);
	key->source_port = pick(a->port, b->port, turned);
	key->destination_port = pick(b->port, a->port, turned);
	key->pad = 0;
}

INLINE void set_entry6_key(struct entry6_key *key, const struct tuple *tuple, __u32 turned)
{
	const struct endpoint *a = &tuple->source, *b = &tuple->destination;

	for (int at = 0; at < 4; at++) {
		key->source[at] = pick(a->address[at], b->address[at], turned);
		key->destination[at] = pick(b->address[at], a->address[at], turned);
	}
	key->source_port = pick(a->port, b->port, turned);
	key->destination_port = pick(b->port, a->port, turned);
	key->pad = 0;
}

INLINE void set_entry_key(union entry_key *key, const struct tuple *tuple, enum entry_kind kind, bool v4)
{
	__u32 turned = kind == ENTRY_TRANSLATED ? is_reversed(tuple, v4) : 0;

	if (v4) {
		set_entry4_key(&key->v4, tuple, turned);
		key->v4.transport = tuple->transport;
		key->v4.kind = kind;
	} else {
		set_entry6_key(&key->v6, tuple, turned);
		key->v6.transport = tuple->transport;
		key->v6.kind = kind;
	}
}

INLINE __u32 *find_entry(const struct tuple *tuple, enum entry_kind kind, bool v4)
{
	union entry_key key;

	set_entry_key(&key, tuple, kind, v4);
	return v4 ? bpf_map_lookup_elem(&entries4, &key) : bpf_map_lookup_elem(&entries6, &key);
}

/* The number of the flow of an ingress packet with that tuple, or NO_FLOW. */
INLINE __u32 find_ingress_flow(const struct tuple *tuple, bool v4)
{
	const __u32 *entry = find_entry(tuple, ENTRY_WIRE, v4);

	return entry ? *entry : NO_FLOW;
}

/* Adds an entry only if there is none. */
INLINE long add_entry(const struct tuple *tuple, enum entry_kind kind, __u32 number, bool v4)
{
	union entry_key key;

	set_entry_key(&key, tuple, kind, v4);
	return v4 ? bpf_map_update_elem(&entries4, &key, &number, BPF_NOEXIST) :
		    bpf_map_update_elem(&entries6, &key, &number, BPF_NOEXIST);
}

INLINE bool entry_leads_to(const struct tuple *tuple, enum entry_kind kind, __u32 number, bool v4)
{
	const __u32 *entry = find_entry(tuple, kind, v4);

	return entry && *entry == number;
}

/* `true`: the entry existed, and this call has removed it. */
INLINE bool remove_entry(const struct tuple *tuple, enum entry_kind kind, bool v4)
{
	union entry_key key;

	set_entry_key(&key, tuple, kind, v4);
	return !(v4 ? bpf_map_delete_elem(&entries4, &key) : bpf_map_delete_elem(&entries6, &key));
}

INLINE struct flow *get_flow(__u32 number)
{
	return bpf_map_lookup_elem(&flow_table, &number);
}

INLINE struct port_bytes *get_backend_ports(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&backend_ports, &zero);
}

/* Makes the prefilter pass packets from and to that backend port. */
INLINE void mark_backend_port(__u16 port)
{
	struct port_bytes *ports = get_backend_ports();

	if (ports && !ports->is_set[port])
		ports->is_set[port] = 1;
}

/* Whether a leaving packet may belong to a flow. */
INLINE bool may_belong_to_flow(__u16 source, __u16 destination)
{
	const struct port_bytes *ports = get_backend_ports();

	return !ports || ports->is_set[source] | ports->is_set[destination];
}

/* --- The tuples of a flow. --- */

INLINE void set_endpoint(struct endpoint *endpoint, const __u32 *address, __u16 port)
{
	copy_address(endpoint->address, address);
	endpoint->port = port;
}

/* A packet that the client sends: original. */
INLINE void original_tuple(struct tuple *tuple, const struct flow *flow)
{
	set_endpoint(&tuple->source, flow->client, flow->client_port);
	set_endpoint(&tuple->destination, flow->frontend, flow->frontend_port);
	tuple->transport = flow->transport;
}

/* A reply that a backend on another node sends to the SNAT address. */
INLINE void snat_reply_tuple(struct tuple *tuple, const struct flow *flow)
{
	set_endpoint(&tuple->source, flow->backend, flow->backend_port);
	set_endpoint(&tuple->destination, flow->nat, flow->nat_port);
	tuple->transport = flow->transport;
}

/* A reply in the stack: between backend and client. */
INLINE void stack_reply_tuple(struct tuple *tuple, const struct flow *flow)
{
	set_endpoint(&tuple->source, flow->backend, flow->backend_port);
	set_endpoint(&tuple->destination, flow->client, flow->translated_port);
	tuple->transport = flow->transport;
}

INLINE bool same_endpoint(const struct endpoint *endpoint, const __u32 *address, __u16 port, bool v4)
{
	__u32 differs = endpoint->port ^ port;

	return !(differs | (v4 ? endpoint->address[3] ^ address[3] : address_diff(endpoint->address, address)));
}

/* The tuple of a packet's reply. */
INLINE void reverse_tuple(struct tuple *to, const struct tuple *from)
{
	to->source = from->destination;
	to->destination = from->source;
	to->transport = from->transport;
}

/* Whether the client's packets go encapsulated to another node. The backend's replies do not pass this node. */
INLINE bool is_encapsulated(const struct flow *flow)
{
	return flow->client_flags & FLOW_ENCAP;
}

/* Whether the flow's backend is on another node. */
INLINE bool is_backend_remote(const struct flow *flow)
{
	return flow->nat_port || is_encapsulated(flow);
}

/* Translates the tuple of an ingress packet, if the packet belongs to the flow. */
INLINE enum direction translate_ingress(const struct flow *flow, const struct tuple *tuple, struct tuple *to, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial);
	enum direction direction = NO_DIRECTION;

	flow = (const struct flow *)load_after((const __u64 *)flow, serial);
	if (flow->transport != tuple->transport || flow->v4 != v4)
		return NO_DIRECTION;
	*to = *tuple;
	if (LIKELY(same_endpoint(&tuple->source, flow->client, flow->client_port, v4) &&
		   same_endpoint(&tuple->destination, flow->frontend, flow->frontend_port, v4))) {
		to->source.port = flow->translated_port;
		set_endpoint(&to->destination, flow->backend, flow->backend_port);
		direction = TO_BACKEND;
	} else if (flow->nat_port && !(flow->backend_flags & FLOW_SNAT_UNUSED) &&
		   same_endpoint(&tuple->source, flow->backend, flow->backend_port, v4) &&
		   same_endpoint(&tuple->destination, flow->nat, flow->nat_port, v4)) {
		set_endpoint(&to->destination, flow->client, flow->translated_port);
		direction = TO_CLIENT;
	}
	return serial && READ_ONCE(flow->serial) == serial ? direction : NO_DIRECTION;
}

/* Notes that a packet of the client has left from the flow's SNAT port. */
INLINE void mark_snat_used(struct flow *flow)
{
	if (UNLIKELY(flow->backend_flags & FLOW_SNAT_UNUSED))
		flow->backend_flags &= ~FLOW_SNAT_UNUSED;
}

/*
 * Translates the tuple of a leaving packet, if it belongs to the flow and changes here. For an encapsulated flow,
 * packets of the same two hosts that pass here belong to a connection without a frontend.
 */
INLINE enum direction translate_egress(const struct flow *flow, const struct tuple *tuple, struct tuple *to, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial);
	enum direction direction = NO_DIRECTION;

	flow = (const struct flow *)load_after((const __u64 *)flow, serial);
	if (flow->transport != tuple->transport || flow->v4 != v4 || UNLIKELY(is_encapsulated(flow)))
		return NO_DIRECTION;
	*to = *tuple;
	if (LIKELY(same_endpoint(&tuple->source, flow->backend, flow->backend_port, v4) &&
		   same_endpoint(&tuple->destination, flow->client, flow->translated_port, v4))) {
		set_endpoint(&to->source, flow->frontend, flow->frontend_port);
		to->destination.port = flow->client_port;
		direction = TO_CLIENT;
	} else if (flow->nat_port && same_endpoint(&tuple->source, flow->client, flow->translated_port, v4) &&
		   same_endpoint(&tuple->destination, flow->backend, flow->backend_port, v4)) {
		set_endpoint(&to->source, flow->nat, flow->nat_port);
		direction = TO_BACKEND;
	}
	return serial && READ_ONCE(flow->serial) == serial ? direction : NO_DIRECTION;
}

INLINE bool is_own_backend(const struct flow *flow)
{
	return same_address(flow->client, flow->backend);
}

/*
 * Whether a client that is its own backend would send from the port that it dials: then request and reply would look
 * the same.
 */
INLINE bool is_port_hairpin(const struct flow *flow)
{
	return flow->translated_port == flow->backend_port && is_own_backend(flow);
}

/* --- Lifetime. --- */

INLINE bool has_both_fins(const struct flow *flow)
{
	return flow->client_flags & flow->backend_flags & FLOW_FIN_SEEN;
}

/* Whether one side sent RST. If that side goes on sending, the RST is cleared. */
INLINE bool is_reset(const struct flow *flow)
{
	return (flow->client_flags | flow->backend_flags) & FLOW_RST_SEEN;
}

/*
 * Whether the backend confirms the abort. Any host may send a RST in the client's name, and the backend need not accept
 * it.
 */
INLINE bool is_aborted(const struct flow *flow)
{
	return flow->backend_flags & FLOW_RST_SEEN ||
	       (flow->client_flags & FLOW_RST_SEEN && flow->backend_flags & FLOW_FIN_SEEN);
}

/* Whether a UDP conversation is more than one query and its reply. */
INLINE bool is_stream(const struct flow *flow)
{
	return (__s32)(flow->seen - flow->began) > STREAM_AFTER;
}

/* Whether FIN was seen in the client's name alone, because the backend's packets do not pass this node. */
INLINE bool is_closed_by_client(const struct flow *flow)
{
	return is_encapsulated(flow) && flow->client_flags & FLOW_FIN_SEEN;
}

/* The lifetime of an established connection. */
INLINE __u32 established_lifetime(const struct flow *flow)
{
	if (is_reset(flow) || is_closed_by_client(flow))
		return LIFE_RESET_BY_CLIENT;
	if (has_both_fins(flow))
		return LIFE_CLOSED;
	return (flow->client_flags | flow->backend_flags) & FLOW_FIN_SEEN ? LIFE_HALF_CLOSED : LIFE_TCP;
}

/* Whether the backend has to reply, and the reply would pass this node. */
INLINE bool awaits_reply(const struct flow *flow)
{
	return flow->unacked && !is_encapsulated(flow);
}

/* The daemon has the same rule: see `flows/lifetime.rs`. */
INLINE __u32 lifetime(const struct flow *flow)
{
	__u32 agreed;

	if (flow->state == FLOW_OPENING)
		return LIFE_OPENING;
	if (flow->transport == IPPROTO_UDP)
		return is_stream(flow) ? LIFE_UDP : LIFE_UDP_BRIEF;
	if (is_aborted(flow))
		return LIFE_RESET;
	agreed = established_lifetime(flow);
	return awaits_reply(flow) && agreed > LIFE_UNANSWERED ? LIFE_UNANSWERED : agreed;
}

/* The seconds since the flow's last packet. Clocks of two CPUs may differ: then it is 0. */
INLINE __u32 idle_time(const struct flow *flow, __u32 now)
{
	__s32 since = now - READ_ONCE(flow->seen);

	return since > 0 ? since : 0;
}

INLINE bool has_expired(const struct flow *flow, __u32 now)
{
	return idle_time(flow, now) > lifetime(flow);
}

INLINE bool is_closing(const struct flow *flow)
{
	if (flow->transport == IPPROTO_UDP)
		return flow->state == FLOW_OPEN && !is_stream(flow);
	return has_both_fins(flow) || is_reset(flow) || is_closed_by_client(flow);
}

/* Whether a flow that needs room may evict this one. */
INLINE bool may_end(const struct flow *flow, __u32 now)
{
	__u32 since = idle_time(flow, now);

	return since > lifetime(flow) || (since > LIFE_UNDER_PRESSURE && is_closing(flow));
}

/* Whether the connection is closed by what the backend sent, and not by the client's packets alone. */
INLINE bool is_closed(const struct flow *flow)
{
	return has_both_fins(flow) || is_aborted(flow);
}

/*
 * Whether another flow may take the port of this one while no other port is free. A backend that closed a connection
 * keeps it in TIME_WAIT, and accepts a SYN that is newer than what it knows. To an older SYN it replies with what it
 * knows. The client then sends RST, and repeats its SYN after a second.
 */
INLINE bool may_be_replaced(const struct flow *flow, __u32 now)
{
	return may_end(flow, now) ||
	       (is_connection_oriented(flow->transport) && is_closed(flow) && idle_time(flow, now) > LIFE_TIME_WAIT);
}

/* --- Counts. --- */

INLINE __u64 *get_flow_count(__u32 at)
{
	return bpf_map_lookup_elem(&flow_counts, &at);
}

/* The port index of the frontend. */
INLINE __u32 flow_port_index(const struct flow *flow)
{
	return flow->port_and_share & ((1 << FLOW_SHARE_AT) - 1);
}

/* A flow counts for the namespace of its service, whatever the count of the service's ports. */
INLINE __u32 flow_share(const struct flow *flow)
{
	return flow->port_and_share >> FLOW_SHARE_AT;
}

INLINE __u64 *share_count(__u32 share)
{
	return get_flow_count(COUNT_OF_SHARES + (share & (FLOW_SHARES - 1)));
}

INLINE void count_flow(__u32 share, __s64 more)
{
	__u64 *all = get_flow_count(COUNT_OF_ALL), *of_share = share_count(share);

	if (all && of_share) {
		ATOMIC_ADD(all, more);
		ATOMIC_ADD(of_share, more);
	}
}

/* Removes a flow from the counts. A flow from before there were counts is in none. */
INLINE void uncount_flow(const struct flow *flow)
{
	if (flow->backend_flags & FLOW_COUNTED)
		count_flow(flow_share(flow), -1);
}

/*
 * Clears a flow that belongs to the caller, and frees its SNAT port with the entry. The entries go first: a program
 * that follows an entry to a free record may take the entry for a stale one. If the flow was decapsulated, another flow
 * may own the entry of the client's packets.
 */
INLINE void clear_flow(struct flow *flow, __u32 number, bool v4)
{
	struct tuple tuple;

	original_tuple(&tuple, flow);
	if (LIKELY(!(flow->backend_flags & FLOW_DECAP)) || entry_leads_to(&tuple, ENTRY_WIRE, number, v4))
		remove_entry(&tuple, ENTRY_WIRE, v4);
	if (flow->nat_port) {
		snat_reply_tuple(&tuple, flow);
		remove_entry(&tuple, ENTRY_WIRE, v4);
	}
	uncount_flow(flow);
	flow->serial = 0;
	flow->state = FLOW_FREE;
}

/*
 * Takes a flow out of the entries. `true`: the flow and its number belong to the caller. If another flow took the
 * record meanwhile, the caller has deleted that flow's entry, and puts it back.
 */
INLINE bool claim_flow_at(__u32 number, __u32 serial, bool v4)
{
	struct flow *flow = get_flow(number);
	struct tuple tuple;

	if (!flow)
		return false;
	stack_reply_tuple(&tuple, flow);
	if (!serial || READ_ONCE(flow->serial) != serial)
		return false;
	if (!entry_leads_to(&tuple, ENTRY_TRANSLATED, number, v4) || !remove_entry(&tuple, ENTRY_TRANSLATED, v4))
		return false;
	if (UNLIKELY(READ_ONCE(flow->serial) != serial)) {
		add_entry(&tuple, ENTRY_TRANSLATED, number, v4);
		return false;
	}
	clear_flow(flow, number, v4);
	return true;
}

GLOBAL int claim_flow4(__u32 number, __u32 serial)
{
	return claim_flow_at(number, serial, true);
}

GLOBAL int claim_flow6(__u32 number, __u32 serial)
{
	return claim_flow_at(number, serial, false);
}

INLINE bool claim_flow(__u32 number, __u32 serial, bool v4)
{
	return v4 ? claim_flow4(number, serial) : claim_flow6(number, serial);
}

INLINE void release_flow(__u32 number)
{
	bpf_map_push_elem(&free_flows, &number, BPF_ANY);
}

/* Ends a flow, and frees its number. `false`: the flow does not belong to the caller. */
INLINE bool end_flow(__u32 number, __u32 serial, bool v4)
{
	if (!claim_flow(number, serial, v4))
		return false;
	release_flow(number);
	return true;
}

#endif

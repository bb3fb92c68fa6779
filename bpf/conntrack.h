/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows: how they are found by how a packet looks, kept while they live, and ended in a way that never ends another
 * flow.
 *
 * A flow belongs to the one caller that deletes its entry LEG_THROUGH, which succeeds once. While that entry is there
 * all that the flow needs is there.
 */
#ifndef HOLDFAST_CONNTRACK_H
#define HOLDFAST_CONNTRACK_H

#include "lb.h"
#include "packet.h"

/* In which direction a packet of a flow goes. */
enum direction { NOWHERE, TO_BACKEND, TO_CLIENT };

/*
 * The second of the last look at the clock, and in the lower half the kernel's tick of that look. Both are in one word,
 * so that they always belong together. 0 before the first look.
 */
__u64 looked_at_clock;

/*
 * The seconds since boot. A look at the clock costs a fifth of what a packet of a flow does, and one in a tick is
 * enough.
 */
INLINE __u32 seconds(void)
{
	__u32 tick = bpf_jiffies64();
	__u64 looked = READ_ONCE(looked_at_clock);
	__u64 now;

	if (LIKELY((__u32)looked == tick && looked))
		return looked >> 32;
	now = bpf_ktime_get_ns() / NS_PER_SECOND;
	*(volatile __u64 *)&looked_at_clock = now << 32 | tick;
	return now;
}

/*
 * Whether flows stand still, because they move to a table of another size. Meanwhile no flow may begin, and no packet
 * may pass by which one ends or is agreed to: only one of the two tables might learn of it. The daemon says until when,
 * so that nothing has to end the standstill.
 */
INLINE bool stand_still(void)
{
	__u32 zero = 0;
	const struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);
	__u32 until = settings ? READ_ONCE(settings->drains) : DRAINS_NOT;

	return UNLIKELY(until > DRAINS) && seconds() < until;
}

/* Whether a segment would change what is known of its connection while flows stand still. */
INLINE bool must_wait(const struct packet *packet)
{
	return UNLIKELY(packet->flags & (TCP_SYN | TCP_FIN | TCP_RST)) && stand_still();
}

/* --- Entries. --- */

/* All ones if the source is the greater one. Without branches, as differences() is, and for the same reason. */
INLINE __u32 is_turned(const struct tuple *tuple, bool v4)
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

INLINE __u32 either(__u32 a, __u32 b, __u32 mask)
{
	return a ^ ((a ^ b) & mask);
}

INLINE void entry4_of(struct entry4_key *key, const struct tuple *tuple, __u32 turned)
{
	const struct place *a = &tuple->source, *b = &tuple->destination;

	key->source = either(a->address[3], b->address[3], turned);
	key->destination = either(b->address[3], a->address[3], turned);
	key->source_port = either(a->port, b->port, turned);
	key->destination_port = either(b->port, a->port, turned);
	key->pad = 0;
}

INLINE void entry6_of(struct entry6_key *key, const struct tuple *tuple, __u32 turned)
{
	const struct place *a = &tuple->source, *b = &tuple->destination;

	for (int at = 0; at < 4; at++) {
		key->source[at] = either(a->address[at], b->address[at], turned);
		key->destination[at] = either(b->address[at], a->address[at], turned);
	}
	key->source_port = either(a->port, b->port, turned);
	key->destination_port = either(b->port, a->port, turned);
	key->pad = 0;
}

INLINE void entry_of(union entry_key *key, const struct tuple *tuple, enum leg leg, bool v4)
{
	__u32 turned = leg == LEG_THROUGH ? is_turned(tuple, v4) : 0;

	if (v4) {
		entry4_of(&key->v4, tuple, turned);
		key->v4.transport = tuple->transport;
		key->v4.leg = leg;
	} else {
		entry6_of(&key->v6, tuple, turned);
		key->v6.transport = tuple->transport;
		key->v6.leg = leg;
	}
}

INLINE __u32 *find_entry(const struct tuple *tuple, enum leg leg, bool v4)
{
	union entry_key key;

	entry_of(&key, tuple, leg, v4);
	return v4 ? bpf_map_lookup_elem(&entries4, &key) : bpf_map_lookup_elem(&entries6, &key);
}

/* The number of the flow of a packet that comes and looks like that; NO_FLOW: it is of none. */
INLINE __u32 flow_of_arrived(const struct tuple *tuple, bool v4)
{
	const __u32 *entry = find_entry(tuple, LEG_IN, v4);

	return entry ? *entry : NO_FLOW;
}

/* Adds an entry only where there is none. */
INLINE long add_entry(const struct tuple *tuple, enum leg leg, __u32 number, bool v4)
{
	union entry_key key;

	entry_of(&key, tuple, leg, v4);
	return v4 ? bpf_map_update_elem(&entries4, &key, &number, BPF_NOEXIST) :
		    bpf_map_update_elem(&entries6, &key, &number, BPF_NOEXIST);
}

INLINE bool leads_to(const struct tuple *tuple, enum leg leg, __u32 number, bool v4)
{
	const __u32 *entry = find_entry(tuple, leg, v4);

	return entry && *entry == number;
}

/* `true`: it was there, and this very call has taken it away. */
INLINE bool remove_entry(const struct tuple *tuple, enum leg leg, bool v4)
{
	union entry_key key;

	entry_of(&key, tuple, leg, v4);
	return !(v4 ? bpf_map_delete_elem(&entries4, &key) : bpf_map_delete_elem(&entries6, &key));
}

INLINE struct flow *flow_at(__u32 number)
{
	return bpf_map_lookup_elem(&flow_table, &number);
}

INLINE struct port_bytes *the_backend_ports(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&backend_ports, &zero);
}

/* Has packets from and to backends at that port looked at from now on. */
INLINE void note_backend_port(__u16 port)
{
	struct port_bytes *ports = the_backend_ports();

	if (ports && !ports->is_set[port])
		ports->is_set[port] = 1;
}

/* Whether a packet that leaves may be of a flow. */
INLINE bool may_be_of_flow(__u16 source, __u16 destination)
{
	const struct port_bytes *ports = the_backend_ports();

	return !ports || ports->is_set[source] | ports->is_set[destination];
}

/* --- How a flow looks. --- */

INLINE void set_place(struct place *place, const __u32 *address, __u16 port)
{
	copy_address(place->address, address);
	place->port = port;
}

/* A packet as the client sends it. */
INLINE void from_client(struct tuple *tuple, const struct flow *flow)
{
	set_place(&tuple->source, flow->client, flow->client_port);
	set_place(&tuple->destination, flow->frontend, flow->frontend_port);
	tuple->transport = flow->transport;
}

/* An answer as a backend of another node sends it. */
INLINE void from_remote(struct tuple *tuple, const struct flow *flow)
{
	set_place(&tuple->source, flow->backend, flow->backend_port);
	set_place(&tuple->destination, flow->nat, flow->nat_port);
	tuple->transport = flow->transport;
}

/* An answer as the stack sees it. */
INLINE void through(struct tuple *tuple, const struct flow *flow)
{
	set_place(&tuple->source, flow->backend, flow->backend_port);
	set_place(&tuple->destination, flow->client, flow->through_port);
	tuple->transport = flow->transport;
}

INLINE bool same_place(const struct place *place, const __u32 *address, __u16 port, bool v4)
{
	__u32 differs = place->port ^ port;

	return !(differs | (v4 ? place->address[3] ^ address[3] : differences(place->address, address)));
}

/* The packet that answers this one. */
INLINE void turned(struct tuple *to, const struct tuple *from)
{
	to->source = from->destination;
	to->destination = from->source;
	to->transport = from->transport;
}

/* Whether what the client says goes to another node as it came, and the backend's answers do not come here. */
INLINE bool is_wrapped(const struct flow *flow)
{
	return flow->of_client & IS_WRAPPED;
}

/* Whether the flow's backend is on another node. */
INLINE bool leads_away(const struct flow *flow)
{
	return flow->nat_port || is_wrapped(flow);
}

INLINE bool is_v4(const struct flow *flow)
{
	return flow->v4;
}

/* What a packet that comes becomes, if it is of this flow. */
INLINE enum direction turn_in(const struct flow *flow, const struct tuple *tuple, struct tuple *to, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial);
	enum direction direction = NOWHERE;

	flow = (const struct flow *)after((const __u64 *)flow, serial);
	if (flow->transport != tuple->transport || flow->v4 != v4)
		return NOWHERE;
	*to = *tuple;
	if (LIKELY(same_place(&tuple->source, flow->client, flow->client_port, v4) &&
		   same_place(&tuple->destination, flow->frontend, flow->frontend_port, v4))) {
		to->source.port = flow->through_port;
		set_place(&to->destination, flow->backend, flow->backend_port);
		direction = TO_BACKEND;
	} else if (flow->nat_port && !(flow->of_backend & IS_UNSENT) &&
		   same_place(&tuple->source, flow->backend, flow->backend_port, v4) &&
		   same_place(&tuple->destination, flow->nat, flow->nat_port, v4)) {
		set_place(&to->destination, flow->client, flow->through_port);
		direction = TO_CLIENT;
	}
	return serial && READ_ONCE(flow->serial) == serial ? direction : NOWHERE;
}

/* Notes that a packet of the client leaves from the port that the flow has at this node. */
INLINE void note_sent(struct flow *flow)
{
	if (UNLIKELY(flow->of_backend & IS_UNSENT))
		flow->of_backend &= ~IS_UNSENT;
}

/*
 * What a packet that leaves becomes, if it is of this flow and changes here. Where the client's packets go to another
 * node as they came, what the two say to each other here is said without any frontend.
 */
INLINE enum direction turn_out(const struct flow *flow, const struct tuple *tuple, struct tuple *to, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial);
	enum direction direction = NOWHERE;

	flow = (const struct flow *)after((const __u64 *)flow, serial);
	if (flow->transport != tuple->transport || flow->v4 != v4 || UNLIKELY(is_wrapped(flow)))
		return NOWHERE;
	*to = *tuple;
	if (LIKELY(same_place(&tuple->source, flow->backend, flow->backend_port, v4) &&
		   same_place(&tuple->destination, flow->client, flow->through_port, v4))) {
		set_place(&to->source, flow->frontend, flow->frontend_port);
		to->destination.port = flow->client_port;
		direction = TO_CLIENT;
	} else if (flow->nat_port && same_place(&tuple->source, flow->client, flow->through_port, v4) &&
		   same_place(&tuple->destination, flow->backend, flow->backend_port, v4)) {
		set_place(&to->source, flow->nat, flow->nat_port);
		direction = TO_BACKEND;
	}
	return serial && READ_ONCE(flow->serial) == serial ? direction : NOWHERE;
}

INLINE bool is_own_backend(const struct flow *flow)
{
	return same_address(flow->client, flow->backend);
}

/* Whether a client is sent to the very port that it sends from: then request and answer would look the same. */
INLINE bool meets_itself(const struct flow *flow)
{
	return flow->through_port == flow->backend_port && is_own_backend(flow);
}

/* --- Its life. --- */

INLINE bool is_closed(const struct flow *flow)
{
	return flow->of_client & flow->of_backend & HEARD_FIN;
}

/* A RST was sent in the name of one side. If that side goes on sending all the same, the RST is forgotten. */
INLINE bool is_reset(const struct flow *flow)
{
	return (flow->of_client | flow->of_backend) & HEARD_RST;
}

/*
 * Whether the backend, too, says that the connection is over. Any host may send a RST in a client's name, and the
 * backend need not believe it.
 */
INLINE bool is_broken_off(const struct flow *flow)
{
	return flow->of_backend & HEARD_RST || (flow->of_client & HEARD_RST && flow->of_backend & HEARD_FIN);
}

/* Whether a conversation over UDP is more than a question and its answer. */
INLINE bool is_stream(const struct flow *flow)
{
	return (__s32)(flow->seen - flow->began) > STREAM_AFTER;
}

/* Whether the end of a connection was heard in the client's name alone, because the backend is not heard here. */
INLINE bool is_left_by_client(const struct flow *flow)
{
	return is_wrapped(flow) && flow->of_client & HEARD_FIN;
}

/* The lifetime of a connection on which client and backend have agreed. */
INLINE __u32 lifetime_of_agreed(const struct flow *flow)
{
	if (is_reset(flow) || is_left_by_client(flow))
		return LIFE_RESET_BY_CLIENT;
	if (is_closed(flow))
		return LIFE_CLOSED;
	return (flow->of_client | flow->of_backend) & HEARD_FIN ? LIFE_HALF_CLOSED : LIFE_TCP;
}

/* Whether the backend owes an answer that would be seen here. */
INLINE bool is_owed_answer(const struct flow *flow)
{
	return flow->waits && !is_wrapped(flow);
}

/* The daemon judges by the same rule: see `flows/life.rs`. */
INLINE __u32 lifetime(const struct flow *flow)
{
	__u32 agreed;

	if (flow->state == FLOW_OPENING)
		return LIFE_OPENING;
	if (flow->transport == IPPROTO_UDP)
		return is_stream(flow) ? LIFE_UDP : LIFE_UDP_BRIEF;
	if (is_broken_off(flow))
		return LIFE_RESET;
	agreed = lifetime_of_agreed(flow);
	return is_owed_answer(flow) && agreed > LIFE_UNANSWERED ? LIFE_UNANSWERED : agreed;
}

/*
 * The seconds since the flow's last packet. Of two clocks that are read at about the same time either may be ahead:
 * then it is 0.
 */
INLINE __u32 silence(const struct flow *flow, __u32 now)
{
	__s32 since = now - READ_ONCE(flow->seen);

	return since > 0 ? since : 0;
}

INLINE bool has_expired(const struct flow *flow, __u32 now)
{
	return silence(flow, now) > lifetime(flow);
}

INLINE bool is_about_over(const struct flow *flow)
{
	if (flow->transport == IPPROTO_UDP)
		return flow->state == FLOW_OPEN && !is_stream(flow);
	return is_closed(flow) || is_reset(flow) || is_left_by_client(flow);
}

/* A flow that is over may be replaced by another one that needs its room. */
INLINE bool may_go(const struct flow *flow, __u32 now)
{
	__u32 since = silence(flow, now);

	return since > lifetime(flow) || (since > LIFE_CROWDED && is_about_over(flow));
}

/* The connection is over by what the backend has said, and not by what was said in the client's name alone. */
INLINE bool is_over(const struct flow *flow)
{
	return is_closed(flow) || is_broken_off(flow);
}

/*
 * Whether another flow that needs the port of this one may have it, where no other port is free. A backend that closed
 * a connection itself remembers it for a while (TIME_WAIT), and takes a SYN that comes later than what it knows; a SYN
 * that seems to come earlier it answers with what it knows, to which the client says RST, and asks again after a
 * second.
 */
INLINE bool may_yield(const struct flow *flow, __u32 now)
{
	return may_go(flow, now) ||
	       (makes_connections(flow->transport) && is_over(flow) && silence(flow, now) > LIFE_LINGERING);
}

/* --- How many there are. --- */

INLINE __u64 *flow_count(__u32 at)
{
	return bpf_map_lookup_elem(&flow_counts, &at);
}

/* The port behind the frontend. */
INLINE __u32 port_of_flow(const struct flow *flow)
{
	return flow->port_and_share & ((1 << FLOW_SHARE_AT) - 1);
}

/* A flow counts for the namespace of its service, however many ports that has. */
INLINE __u32 share_of(const struct flow *flow)
{
	return flow->port_and_share >> FLOW_SHARE_AT;
}

INLINE __u64 *count_of_share(__u32 share)
{
	return flow_count(COUNT_OF_SHARES + (share & (FLOW_SHARES - 1)));
}

INLINE void count_flow(__u32 share, __s64 more)
{
	__u64 *all = flow_count(COUNT_OF_ALL), *of_share = count_of_share(share);

	if (all && of_share) {
		__sync_fetch_and_add(all, more);
		__sync_fetch_and_add(of_share, more);
	}
}

/* Takes a flow out of the counts. One that began before flows were counted is in no count. */
INLINE void uncount(const struct flow *flow)
{
	if (flow->of_backend & IS_COUNTED)
		count_flow(share_of(flow), -1);
}

/*
 * Wipes a flow that belongs to the caller. The entries that lead to it go first: a program that an entry leads to a
 * free record may take that entry for one that was left over. Beside a flow that came by another node another one may
 * have the entry of the client's packets.
 */
INLINE void wipe(struct flow *flow, __u32 number, bool v4)
{
	struct tuple tuple;

	from_client(&tuple, flow);
	if (LIKELY(!(flow->of_backend & CAME_WRAPPED)) || leads_to(&tuple, LEG_IN, number, v4))
		remove_entry(&tuple, LEG_IN, v4);
	if (flow->nat_port) {
		from_remote(&tuple, flow);
		remove_entry(&tuple, LEG_IN, v4);
	}
	uncount(flow);
	flow->serial = 0;
	flow->state = FLOW_FREE;
}

/*
 * Takes a flow away from where packets find it. `true`: the flow belongs to the caller now, and so does its number, to
 * give back or to use. A caller that read it while another flow was written there has deleted that one's entry, and
 * puts it back.
 */
INLINE bool claim_at(__u32 number, __u32 serial, bool v4)
{
	struct flow *flow = flow_at(number);
	struct tuple tuple;

	if (!flow)
		return false;
	through(&tuple, flow);
	if (!serial || READ_ONCE(flow->serial) != serial)
		return false;
	if (!leads_to(&tuple, LEG_THROUGH, number, v4) || !remove_entry(&tuple, LEG_THROUGH, v4))
		return false;
	if (UNLIKELY(READ_ONCE(flow->serial) != serial)) {
		add_entry(&tuple, LEG_THROUGH, number, v4);
		return false;
	}
	wipe(flow, number, v4);
	return true;
}

ALONE int claim4(__u32 number, __u32 serial)
{
	return claim_at(number, serial, true);
}

ALONE int claim6(__u32 number, __u32 serial)
{
	return claim_at(number, serial, false);
}

INLINE bool claim(__u32 number, __u32 serial, bool v4)
{
	return v4 ? claim4(number, serial) : claim6(number, serial);
}

INLINE void give_back(__u32 number)
{
	bpf_map_push_elem(&free_flows, &number, BPF_ANY);
}

/* Ends a flow and gives its number back. `false`: the flow is not the caller's to end. */
INLINE bool end(__u32 number, __u32 serial, bool v4)
{
	if (!claim(number, serial, v4))
		return false;
	give_back(number);
	return true;
}

#endif

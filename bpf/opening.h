/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flow of a client that arrives: as whom it goes on, which record it gets, and all that leads there.
 *
 * The ways back are put in before the way there. Whoever has the place or the room that a flow needs keeps it until it
 * is over.
 */
#ifndef HOLDFAST_OPENING_H
#define HOLDFAST_OPENING_H

#include <linux/errno.h>
#include "flow.h"
#include "lookup.h"
#include "packet.h"
#include "way.h"

/* How many flows there may be. */
const volatile __u32 flows_most = 1;

/* So many ports are tried by chance: of ten, nine may be taken, and every other client still finds one. */
#define PORT_TRIES 8

/*
 * What is known of a client that arrives. It stands in a map, from which it is read back: so the verifier knows no more
 * of it than the program may, and looks at what follows once, not once for each way here.
 */
struct arrival {
	struct packet packet;
	/* Which backend of which port it got. */
	struct place backend;
	__u32 port_index;
	__u32 device;
	/* Who came by a device of a pod is inside of this node. */
	__u32 from_pod;
	/* The backend is to see the port that the client sends from, where it can. */
	__u32 keeps_port;
	/* Answers go as the frontend's address is routed. */
	__u32 by_address;
	/* Of the flow that is made. */
	__u32 number;
	/* Of the one whose place or room it needs, or past which it began. */
	__u32 rival;
	__u32 rival_serial;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrival);
} arrivals SEC(".maps");

INLINE struct arrival *the_arrival(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&arrivals, &zero);
}

/* --- As whom it goes on. --- */

INLINE void copy_source(struct flow *flow, const struct tuple *tuple)
{
	copy_address(flow->client, tuple->source.address);
	flow->client_port = flow->through_port = tuple->source.port;
	copy_address(flow->frontend, tuple->destination.address);
	flow->frontend_port = tuple->destination.port;
	flow->transport = tuple->transport;
}

INLINE bool has_address(const __u32 *address)
{
	return address[0] | address[1] | address[2] | address[3];
}

INLINE bool is_own_backend(const struct flow *flow)
{
	return same_address(flow->client, flow->backend);
}

/* The device whose address a client is given; 0: it keeps its own. */
INLINE __u32 device_of_nat(struct __sk_buff *skb, const struct arrival *arrival, const struct flow *flow, bool v4)
{
	if (arrival->from_pod)
		return is_own_backend(flow) ? arrival->device : 0;
	return way_out(skb, flow->client, flow->backend, flow->client_port, flow->backend_port, flow->transport, v4);
}

/*
 * A backend of another node answers to this one, and not past it. Whoever asked for the client's address (policy Local)
 * has backends here alone, and what comes from a pod is known everywhere; only the pod itself drops what says that it
 * comes from the pod.
 * `false`: it has to get an address, and there is none to give, so no answer would come back this way.
 */
INLINE bool set_nat(struct __sk_buff *skb, const struct arrival *arrival, struct flow *flow, bool v4)
{
	__u32 number = device_of_nat(skb, arrival, flow, v4);
	struct device *device = number ? bpf_map_lookup_elem(&devices, &number) : NULL;
	const __u32 none[4] = {};

	copy_address(flow->nat, none);
	flow->nat_port = 0;
	if (!device || !(device->flags & (DEVICE_OUTER | DEVICE_BACKENDS) || arrival->from_pod))
		return true;
	if (v4 && device->address4) {
		flow->nat[2] = MAPPED;
		flow->nat[3] = device->address4;
	} else if (!v4) {
		copy_address(flow->nat, device->address6);
	}
	return has_address(flow->nat);
}

/* One of the ports that nothing else of this node uses; 0: there are none. Without branches, as is_turned(). */
INLINE __u16 any_snat_port(void)
{
	__u32 zero = 0, port = 0;
	struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);
	__u64 at, is_in, was_in = 0;

	if (!settings)
		return 0;
	at = (__u64)bpf_get_prandom_u32() * settings->snat_ports >> 32;
	for (int range = 0; range < SNAT_RANGES; range++) {
		is_in = (at - settings->snat[range].count) >> 63;
		port |= (settings->snat[range].first + (__u32)at) & -(__u32)(is_in & ~was_in);
		was_in |= is_in;
		at -= settings->snat[range].count;
	}
	return bpf_htons(port);
}

/*
 * One of the ports that a client does not send from by itself; 0: it is none. A client that is a node of the cluster
 * may come to the same backend by a port of the others, which that node gave to a client of its own.
 */
INLINE __u16 any_through_port(void)
{
	__u32 zero = 0, port = THROUGH_FIRST + ((__u64)bpf_get_prandom_u32() * THROUGH_PORTS >> 32);
	struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);
	__u64 at, is_snat = 0;

	if (!settings)
		return 0;
	for (int range = 0; range < SNAT_RANGES; range++) {
		at = (__u64)port - settings->snat[range].first;
		is_snat |= (at - settings->snat[range].count) >> 63 & ~at >> 63;
	}
	return is_snat ? 0 : bpf_htons(port);
}

/* --- The flow. --- */

/* What one entry of a flow is for. */
enum way { WAY_THROUGH, WAY_OF_REMOTE };

INLINE void tuple_of_way(struct tuple *tuple, const struct flow *flow, __u32 way)
{
	if (way == WAY_THROUGH)
		through(tuple, flow);
	else
		from_remote(tuple, flow);
}

INLINE enum leg leg_of_way(__u32 way)
{
	return way == WAY_THROUGH ? LEG_THROUGH : LEG_IN;
}

/* An entry of a flow that is being made, where nobody has that place. 0, or why not. */
INLINE int put_way(__u32 number, __u32 way, bool v4)
{
	struct flow *flow = flow_at(number);
	struct tuple tuple;

	if (!flow)
		return -ENOENT;
	tuple_of_way(&tuple, flow, way);
	return add_entry(&tuple, leg_of_way(way), number, v4);
}

ALONE int put_way4(__u32 number, __u32 way)
{
	return put_way(number, way, true);
}

ALONE int put_way6(__u32 number, __u32 way)
{
	return put_way(number, way, false);
}

/* Whether who has that place is over, and so whom to end. */
INLINE bool find_rival(__u32 number, __u32 way, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct flow *flow = flow_at(number);
	struct tuple tuple;
	__u32 *there;

	if (!arrival || !flow)
		return false;
	tuple_of_way(&tuple, flow, way);
	there = find_entry(&tuple, leg_of_way(way), v4);
	if (!there)
		return false;
	arrival->rival = *there;
	flow = flow_at(arrival->rival);
	if (!flow)
		return false;
	arrival->rival_serial = READ_ONCE(flow->serial);
	return arrival->rival_serial && may_go(flow, seconds());
}

ALONE int find_rival4(__u32 number, __u32 way)
{
	return find_rival(number, way, true);
}

ALONE int find_rival6(__u32 number, __u32 way)
{
	return find_rival(number, way, false);
}

INLINE int put(__u32 number, __u32 way, bool v4)
{
	return v4 ? put_way4(number, way) : put_way6(number, way);
}

/* The same, also in the place of a flow that is over. */
INLINE int take_way(__u32 number, __u32 way, bool v4)
{
	struct arrival *arrival = the_arrival();
	int added = put(number, way, v4);

	if (LIKELY(added != -EEXIST) || !arrival || !(v4 ? find_rival4(number, way) : find_rival6(number, way)) ||
	    !end(arrival->rival, arrival->rival_serial, v4))
		return added;
	return put(number, way, v4);
}

/* Who is sent to the very port that it sends from: request and answer would look the same. */
INLINE bool meets_itself(const struct flow *flow)
{
	return flow->through_port == flow->backend_port && is_own_backend(flow);
}

/* Over UDP an answer does not say what it is: to a frontend a pod or a socket of this node would send a question. */
INLINE bool leads_to_frontend(__u32 number, bool v4)
{
	struct flow *flow = flow_at(number);

	if (!flow)
		return false;
	return (v4 ? look4(flow->client[3], flow->through_port, flow->transport, DIALLED) :
		     look6(flow->client, flow->through_port, flow->transport, DIALLED)) != NOT_FOUND;
}

ALONE int leads_to_frontend4(__u32 number)
{
	return leads_to_frontend(number, true);
}

ALONE int leads_to_frontend6(__u32 number)
{
	return leads_to_frontend(number, false);
}

/* `false`: chance has found none. */
INLINE bool give_any_port(struct flow *flow, __u32 number, __u32 way, bool v4)
{
	if (way == WAY_OF_REMOTE) {
		flow->nat_port = any_snat_port();
		return flow->nat_port;
	}
	flow->through_port = any_through_port();
	return flow->through_port && !meets_itself(flow) &&
	       !(v4 ? leads_to_frontend4(number) : leads_to_frontend6(number));
}

/* By a port of chance, one whose flow is over only if it may take that. 0, or why not. */
INLINE int put_any(__u32 number, __u32 way, __u32 takes, bool v4)
{
	struct flow *flow = flow_at(number);
	int added = -EEXIST;

	if (!flow)
		return -ENOENT;
	for (int tries = 0; tries < PORT_TRIES && added == -EEXIST; tries++) {
		if (give_any_port(flow, number, way, v4))
			added = takes ? take_way(number, way, v4) : put(number, way, v4);
	}
	return added;
}

ALONE int put_any4(__u32 number, __u32 way, __u32 takes)
{
	return put_any(number, way, takes, true);
}

ALONE int put_any6(__u32 number, __u32 way, __u32 takes)
{
	return put_any(number, way, takes, false);
}

INLINE int any_port(const struct arrival *arrival, enum way way, bool takes, bool v4)
{
	return v4 ? put_any4(arrival->number, way, takes) : put_any6(arrival->number, way, takes);
}

/*
 * The way back of another node's backend. To put it in is to have the port. Where a connection of another proxy has it
 * the daemon has put in one that leads to nobody. A backend remembers for a while what is over (TIME_WAIT), and may
 * doubt who comes from there: so those ports are taken last. 0, or why not.
 */
INLINE int add_remote(const struct arrival *arrival, struct flow *flow, bool v4)
{
	int added = any_port(arrival, WAY_OF_REMOTE, false, v4);

	if (added == -EEXIST)
		added = any_port(arrival, WAY_OF_REMOTE, true, v4);
	if (added)
		flow->nat_port = 0;
	return added;
}

INLINE int put_own_port(const struct arrival *arrival, struct flow *flow, bool v4)
{
	return meets_itself(flow) ? -EEXIST : put(arrival->number, WAY_THROUGH, v4);
}

/* The same, also in the place of a flow that is over. */
INLINE int take_own_port(const struct arrival *arrival, struct flow *flow, bool v4)
{
	flow->through_port = flow->client_port;
	return meets_itself(flow) ? -EEXIST : take_way(arrival->number, WAY_THROUGH, v4);
}

/*
 * Between backend and client. A client that dials the backend itself as well comes round to the same ports both ways,
 * and to the backend the two would be one. So it gets another port here; not where its own is to be seen, nor where the
 * backend, on another node, sees a port of this one. A client may also come from one port to two frontends with one
 * backend. 0, or why not.
 */
INLINE int add_through(const struct arrival *arrival, struct flow *flow, bool v4)
{
	int added = -EEXIST;

	if (arrival->keeps_port || flow->nat_port)
		added = put_own_port(arrival, flow, v4);
	if (added == -EEXIST)
		added = any_port(arrival, WAY_THROUGH, false, v4);
	if (added == -EEXIST)
		added = take_own_port(arrival, flow, v4);
	return added == -EEXIST ? any_port(arrival, WAY_THROUGH, true, v4) : added;
}

/*
 * The way there comes last. Who was killed while it took a flow away may have left an entry that leads to nobody, and
 * would keep the client away for good.
 */
INLINE int put_way_there(__u32 number, bool v4)
{
	struct flow *flow = flow_at(number), *other;
	struct tuple tuple, to;
	__u32 *there, led;
	int added;

	if (!flow)
		return -ENOENT;
	from_client(&tuple, flow);
	added = add_entry(&tuple, LEG_IN, number, v4);
	if (LIKELY(added != -EEXIST))
		return added;
	there = find_entry(&tuple, LEG_IN, v4);
	led = there ? *there : 0;
	other = flow_at(led);
	if (!there || (other && turn_in(other, &tuple, &to, v4) != NOWHERE))
		return added;
	there = find_entry(&tuple, LEG_IN, v4);
	if (there && *there == led)
		remove_entry(&tuple, LEG_IN, v4);
	return add_entry(&tuple, LEG_IN, number, v4);
}

ALONE int put_way_there4(__u32 number)
{
	return put_way_there(number, true);
}

ALONE int put_way_there6(__u32 number)
{
	return put_way_there(number, false);
}

/* What was put in before the rest found no room. */
INLINE void undo(const struct arrival *arrival, struct flow *flow, bool is_through, bool v4)
{
	struct tuple tuple;

	if (is_through) {
		through(&tuple, flow);
		remove_entry(&tuple, LEG_THROUGH, v4);
	}
	if (flow->nat_port) {
		from_remote(&tuple, flow);
		remove_entry(&tuple, LEG_IN, v4);
	}
	flow->serial = 0;
	flow->state = FLOW_FREE;
	give_back(arrival->number);
}

/* What ended while there was room is swept by the daemon. Who needs room looks at so many. */
#define RECLAIM_TRIES 4

/* Among some of one family, one that is over: where the daemon is away nobody sweeps. */
INLINE bool find_over(__u32 now, bool v4)
{
	struct arrival *arrival = the_arrival();
	__u32 at = bpf_get_prandom_u32();

	for (int tries = 0; arrival && tries < RECLAIM_TRIES; tries++) {
		struct flow *flow;

		at += 0x9e3779b1;
		arrival->rival = (__u64)at * flows_most >> 32;
		flow = flow_at(arrival->rival);
		if (!flow)
			continue;
		arrival->rival_serial = READ_ONCE(flow->serial);
		if (arrival->rival_serial && flow->v4 == v4 && may_go(flow, now))
			return true;
	}
	return false;
}

ALONE int find_over4(__u32 now)
{
	return find_over(now, true);
}

ALONE int find_over6(__u32 now)
{
	return find_over(now, false);
}

/* `true`: the number of the rival is the caller's. */
INLINE bool reclaim(const struct arrival *arrival, __u32 now, bool v4)
{
	if (!(v4 ? find_over4(now) : find_over6(now)) || !claim(arrival->rival, arrival->rival_serial, v4))
		return false;
	count_packet(COUNT_RECLAIMED);
	return true;
}

/* NULL: there is no room for a flow. What is over goes before what nobody has answered. */
INLINE struct flow *take_flow(struct arrival *arrival, __u32 now, bool v4)
{
	if (LIKELY(!bpf_map_pop_elem(&free_flows, &arrival->number)))
		return flow_at(arrival->number);
	if (reclaim(arrival, now, v4))
		arrival->number = arrival->rival;
	else if (!forget_unanswered(now, true) || bpf_map_pop_elem(&free_flows, &arrival->number))
		return NULL;
	return flow_at(arrival->number);
}

/* There is no room for what leads to a flow: the next client has that of one that is over. */
INLINE void make_room(const struct arrival *arrival, __u32 now, bool v4)
{
	if (reclaim(arrival, now, v4))
		give_back(arrival->rival);
}

/* What a flow says before anybody can find it. */
INLINE void fill(struct flow *flow, const struct arrival *arrival, __u32 now, bool v4)
{
	const struct tuple *tuple = &arrival->packet.tuple;

	flow->serial = 0;
	copy_source(flow, tuple);
	copy_address(flow->backend, arrival->backend.address);
	flow->backend_port = arrival->backend.port;
	flow->state = FLOW_OPENING;
	flow->of_client = tuple->transport == IPPROTO_TCP ? HEARD_SYN : 0;
	flow->of_backend = 0;
	flow->v4 = v4;
	flow->by_address = arrival->by_address;
	flow->port_index = arrival->port_index;
	flow->seen = flow->began = now;
}

INLINE __u32 any_serial(void)
{
	return bpf_get_prandom_u32() | 1;
}

/* Takes back what was put in of a flow, and gives on why it has to be. */
INLINE int give_up(const struct arrival *arrival, struct flow *flow, bool is_through, int why, bool v4)
{
	undo(arrival, flow, is_through, v4);
	if (why != -EEXIST)
		make_room(arrival, seconds(), v4);
	return why;
}

/* What became of it. */
enum opened { OPENED, OPENED_BY_ANOTHER, NO_ROOM, NO_PORT, NO_ADDRESS };

/* The ways back come before the way there, so nobody is sent anywhere whence no answer comes. */
INLINE enum opened open_flow(struct __sk_buff *skb, struct arrival *arrival, bool v4)
{
	__u32 serial = any_serial();
	__u32 now = seconds();
	struct flow *flow;
	int added = 0;

	flow = take_flow(arrival, now, v4);
	if (!flow)
		return NO_ROOM;
	fill(flow, arrival, now, v4);
	note_backend_port(flow->backend_port);
	if (UNLIKELY(!set_nat(skb, arrival, flow, v4))) {
		undo(arrival, flow, false, v4);
		return NO_ADDRESS;
	}
	if (has_address(flow->nat))
		added = add_remote(arrival, flow, v4);
	if (!added)
		added = add_through(arrival, flow, v4);
	if (added)
		return give_up(arrival, flow, false, added, v4) == -EEXIST ? NO_PORT : NO_ROOM;
	*(volatile __u32 *)&flow->serial = serial;
	added = v4 ? put_way_there4(arrival->number) : put_way_there6(arrival->number);
	if (added)
		return give_up(arrival, flow, true, added, v4) == -EEXIST ? OPENED_BY_ANOTHER : NO_ROOM;
	note_opening(arrival->number, serial, now);
	count_packet(COUNT_FLOWS);
	return OPENED;
}

#endif

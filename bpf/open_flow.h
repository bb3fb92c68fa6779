/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flow of a client that arrives: the address and port with which it goes on, which record it gets, and all that
 * leads there.
 *
 * The ways back are put in before the way there. A flow that has a place which another one needs keeps it until it is
 * over. Where no record is free, room.h decides which flow gives way.
 */
#ifndef HOLDFAST_OPEN_FLOW_H
#define HOLDFAST_OPEN_FLOW_H

#include "dsr.h"
#include "evict.h"
#include "fib.h"
#include "select_backend.h"
#include "snat.h"

/* --- The address with which it goes on. --- */

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

/*
 * The device by which a packet leaves for the flow's backend, had it come by the same device as this one, of which
 * `flags` are known; 0: there is none, now. Where the kernel does not say which one, it is that by which the packet
 * came, which has an address of this node, too.
 */
INLINE __u32 device_to_backend(struct __sk_buff *skb, const struct flow *flow, __u32 class, __u32 flags,
			       bool *is_untold, bool v4)
{
	struct tuple there;
	__u32 way;

	set_place(&there.source, flow->client, flow->client_port);
	set_place(&there.destination, flow->backend, flow->backend_port);
	there.transport = flow->transport;
	way = way_asked(skb, &there, class, skb->ifindex, flags, v4);
	*is_untold = way == WAY_UNTOLD;
	return *is_untold ? skb->ifindex : way;
}

/* The device that lends a client its address; 0: the client keeps its own. */
INLINE __u32 device_of_nat(struct __sk_buff *skb, const struct arrival *arrival, const struct flow *flow,
			   bool *is_untold, bool v4)
{
	if (arrival->from_pod)
		return is_own_backend(flow) ? arrival->device : 0;
	return device_to_backend(skb, flow, class_of(skb, &arrival->packet, v4), arrival->flags, is_untold, v4);
}

/* Whether packets that leave by the device go to other nodes, or to clients outside. */
INLINE bool leads_to_others(const struct device *device)
{
	return device->flags & (DEVICE_OUTER | DEVICE_BACKENDS);
}

/* Whether the address that backends of other nodes see by that device is one by which those know a node. */
INLINE bool bears_node(const struct device *device, bool v4)
{
	return v4 ? is_of_nodes4(device->address4) :
		    is_of_nodes6(device->address6[0], device->address6[1], device->address6[2], device->address6[3]);
}

/* By how much the first bits of two words differ, as a number; 0: they are the same. */
INLINE __u64 differing(__u32 address, __u32 other, __u32 bits)
{
	return (__u64)bpf_ntohl(address ^ other) >> (32 - bits);
}

/* How many of the first `bits` bits of an address lie in its word number `at`. */
INLINE __u32 bits_of_word(__u32 bits, __u32 at)
{
	if (bits < 32 * at)
		return 0;
	return bits - 32 * at < 32 ? bits - 32 * at : 32;
}

INLINE bool is_near4(const struct device *device, __u32 address)
{
	return device->near4 && !differing(address, device->address4, bits_of_word(device->near4, 0));
}

INLINE bool is_near6(const struct device *device, const __u32 *address)
{
	__u64 differ = 0;

	for (__u32 at = 0; at < 4; at++)
		differ |= differing(address[at], device->address6[at], bits_of_word(device->near6, at));
	return device->near6 && !differ;
}

/*
 * Whether the backend is one of this node's own pods behind that device, which may lead to pods of other nodes too, as
 * Cilium's does. Such a pod is to see the client's own address: its answer comes by a device of its own, where no
 * program would give the client's address back.
 */
INLINE bool is_near(const struct device *device, const __u32 *backend, bool v4)
{
	return v4 ? is_near4(device, backend[3]) : is_near6(device, backend);
}

/* Whether the client keeps its own address on the way by that device. */
INLINE bool keeps_address(const struct device *device, const struct flow *flow, __u32 is_local, bool v4)
{
	return is_near(device, flow->backend, v4) || (is_local && device->flags & DEVICE_SWITCH);
}

/*
 * Sets the address that the backend sees instead of the client's, if it has to see one: a backend of another node is to
 * answer to this node, and not past it. A service that asks for the client's address (policy Local) has backends here
 * alone, and an answer to a pod's address comes back here from anywhere; only a pod that is its own backend would drop
 * a packet from its own address. `false`: there is no address to give, so no answer would come back this way.
 */
INLINE bool set_nat(struct __sk_buff *skb, const struct arrival *arrival, struct flow *flow, bool v4)
{
	bool is_untold = false;
	__u32 number = device_of_nat(skb, arrival, flow, &is_untold, v4);
	struct device *device = number ? bpf_map_lookup_elem(&devices, &number) : NULL;
	const __u32 none[4] = {};

	copy_address(flow->nat, none);
	flow->nat_port = 0;
	if (!device || !(leads_to_others(device) || arrival->from_pod) ||
	    keeps_address(device, flow, arrival->is_local, v4))
		return true;
	note_bridge(device->flags);
	if (UNLIKELY(arrival->may_wrap) && !is_untold && !is_secured(skb) && bears_node(device, v4)) {
		flow->of_client |= IS_WRAPPED;
		return true;
	}
	if (v4 && device->address4) {
		flow->nat[2] = MAPPED;
		flow->nat[3] = device->address4;
	} else if (!v4) {
		copy_address(flow->nat, device->address6);
	}
	return has_address(flow->nat);
}

/*
 * Whether a client would go on with another address now than when its flow began: the way to the backend is another
 * one, or there was none then, or the device has another address. While there is no way the stack tells the client so.
 * What a pod says, and what another node has let in, goes on as it is in any case.
 */
INLINE bool is_seen_otherwise(struct __sk_buff *skb, __u32 number, __u32 class, bool v4)
{
	const struct flow *flow = flow_at(number);
	__u32 flags = flags_of(skb->ifindex), way;
	const struct device *device;
	bool is_untold;

	if (!flow || flags & DEVICE_POD || is_wrapped(flow) || flow->of_backend & CAME_WRAPPED)
		return false;
	way = device_to_backend(skb, flow, class, flags, &is_untold, v4);
	if (!way)
		return false;
	device = bpf_map_lookup_elem(&devices, &way);
	/* A client that kept its own at a switch is one of policy Local. */
	if (!device || !leads_to_others(device) || keeps_address(device, flow, !flow->nat_port, v4))
		return flow->nat_port;
	if (!flow->nat_port)
		return true;
	return v4 ? flow->nat[3] != device->address4 : differences(flow->nat, device->address6);
}

ALONE int is_seen_otherwise4(struct __sk_buff *skb, __u32 number, __u32 class)
{
	return is_seen_otherwise(skb, number, class, true);
}

ALONE int is_seen_otherwise6(struct __sk_buff *skb, __u32 number, __u32 class)
{
	return is_seen_otherwise(skb, number, class, false);
}

/*
 * Whether a client is to be given another address, because no backend answers to the one that it has. Where a backend
 * answers, it is the right one; a connection that has begun by it ends with it, and only the two can tell.
 */
INLINE bool needs_another_address(struct __sk_buff *skb, const struct flow *flow, __u32 number,
				  const struct packet *packet, bool v4)
{
	if (flow->transport == IPPROTO_UDP ? flow->state == FLOW_OPEN && !flow->waits :
					     flow->state == FLOW_OPEN || flow->of_backend & HEARD_SYN)
		return false;
	return v4 ? is_seen_otherwise4(skb, number, class_of(skb, packet, v4)) :
		    is_seen_otherwise6(skb, number, class_of(skb, packet, v4));
}

/* --- The flow. --- */

/*
 * Whether a flow does without the entry of the client's packets, because another one has it: see taken.h. It is found
 * by the client's own port.
 */
INLINE bool may_stand_beside(const struct flow *flow, const struct flow *other)
{
	return flow->of_backend & CAME_WRAPPED && flow->through_port == flow->client_port && leads_away(other);
}

/*
 * Puts in the way there, which comes last. A process that was killed while it took a flow away may have left an entry
 * there that leads to no flow: it is replaced, or it would keep the client away for good.
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
	if (!there)
		return added;
	if (other && turn_in(other, &tuple, &to, v4) != NOWHERE)
		return may_stand_beside(flow, other) ? 0 : added;
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

/* Takes out what was put in of a flow that cannot be opened, and frees its record. */
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
	uncount(flow);
	flow->serial = 0;
	flow->state = FLOW_FREE;
	give_back(arrival->number);
}

/* Fills in what a flow says before any packet can find it. */
INLINE void fill(struct flow *flow, const struct arrival *arrival, __u32 now, bool v4)
{
	const struct tuple *tuple = &arrival->packet.tuple;

	flow->serial = 0;
	copy_source(flow, tuple);
	copy_address(flow->backend, arrival->backend.address);
	flow->backend_port = arrival->backend.port;
	flow->state = FLOW_OPENING;
	flow->of_client = (makes_connections(tuple->transport) ? HEARD_SYN : 0) | arrival->sticks | arrival->by_address;
	flow->of_backend = IS_COUNTED | arrival->came_wrapped;
	flow->v4 = v4;
	flow->waits = WAITS_FOR_NOTHING;
	flow->port_and_share = arrival->port_index | arrival->share << FLOW_SHARE_AT;
	flow->seen = flow->began = now;
	count_flow(arrival->share, 1);
}

INLINE __u32 any_serial(void)
{
	return bpf_get_prandom_u32() | 1;
}

/*
 * Takes back what was put in of a flow, and returns `why`. Unless another flow had the place, the entries found no
 * room: then some is made.
 */
INLINE int give_up(struct arrival *arrival, struct flow *flow, bool is_through, int why, bool v4)
{
	undo(arrival, flow, is_through, v4);
	if (why != -EEXIST)
		make_room(arrival, seconds());
	return why;
}

/* What became of a flow that was to be opened. */
enum opened { OPENED, OPENED_BY_ANOTHER, NO_ROOM, NO_PORT, NO_ADDRESS, NOT_HERE, NOT_AWAY };

/*
 * Whether the backend is one of this node, and answers leave for the client by a device at which they are translated.
 * For a flow that came by another node: it goes to no third one, and is not answered past this one. A virtual switch
 * leads to other nodes too, but what is routed to it from outside is for a pod of this one.
 */
INLINE bool is_between_here_and_outside(struct __sk_buff *skb, const struct flow *flow, bool v4)
{
	__u32 there = way_out(skb, flow->client, flow->backend, flow->client_port, flow->backend_port,
			      flow->transport, v4);
	__u32 back = way_out(skb, flow->backend, flow->client, flow->backend_port, flow->client_port,
			     flow->transport, v4);
	const struct device *device = bpf_map_lookup_elem(&devices, &there);

	if (there == WAY_UNTOLD || (device && leads_to_others(device) && !(device->flags & DEVICE_SWITCH) &&
				    !is_near(device, flow->backend, v4)))
		return false;
	device = bpf_map_lookup_elem(&devices, &back);
	return device && leads_to_others(device) && !is_near(device, flow->client, v4);
}

ALONE int is_between4(struct __sk_buff *skb, __u32 number)
{
	const struct flow *flow = flow_at(number);

	return flow && is_between_here_and_outside(skb, flow, true);
}

ALONE int is_between6(struct __sk_buff *skb, __u32 number)
{
	const struct flow *flow = flow_at(number);

	return flow && is_between_here_and_outside(skb, flow, false);
}

/* Whether a flow that came by another node is one for this node. */
INLINE bool may_be_here(struct __sk_buff *skb, const struct arrival *arrival, struct flow *flow, bool v4)
{
	const __u32 none[4] = {};

	copy_address(flow->nat, none);
	flow->nat_port = 0;
	return v4 ? is_between4(skb, arrival->number) : is_between6(skb, arrival->number);
}

/* Gives a flow a record of its own, and the address with which the client goes on. `OPENED`: so far. */
INLINE enum opened begin_flow(struct __sk_buff *skb, struct arrival *arrival, bool v4)
{
	__u32 now = seconds();
	struct flow *flow = take_flow(arrival, now);

	if (!flow)
		return NO_ROOM;
	fill(flow, arrival, now, v4);
	note_backend_port(flow->backend_port);
	if (UNLIKELY(arrival->came_wrapped)) {
		if (may_be_here(skb, arrival, flow, v4))
			return OPENED;
	} else if (LIKELY(set_nat(skb, arrival, flow, v4)) && (LIKELY(!arrival->joins) || is_wrapped(flow))) {
		return OPENED;
	}
	undo(arrival, flow, false, v4);
	if (UNLIKELY(arrival->joins))
		return NOT_AWAY;
	return arrival->came_wrapped ? NOT_HERE : NO_ADDRESS;
}

/*
 * Gives a flow its ports, and with them puts in the ways back. They come before the way there, so no packet goes where
 * its answer would not find back.
 */
INLINE int give_ports(const struct arrival *arrival, bool v4)
{
	struct flow *flow = flow_at(arrival->number);
	int added = 0;

	if (!flow)
		return -ENOENT;
	if (has_address(flow->nat))
		added = add_remote(arrival, flow, v4);
	return added ? added : add_through(arrival, flow, v4);
}

/* Puts in the way there, if the flow has its ports. */
INLINE enum opened end_opening(struct arrival *arrival, int added, bool v4)
{
	struct flow *flow = flow_at(arrival->number);
	__u32 serial = any_serial();

	if (!flow)
		return NO_ROOM;
	if (added)
		return give_up(arrival, flow, false, added, v4) == -EEXIST ? NO_PORT : NO_ROOM;
	*(volatile __u32 *)&flow->serial = serial;
	added = v4 ? put_way_there4(arrival->number) : put_way_there6(arrival->number);
	if (added)
		return give_up(arrival, flow, true, added, v4) == -EEXIST ? OPENED_BY_ANOTHER : NO_ROOM;
	note_opening(arrival->number, serial);
	count_packet(COUNT_FLOWS);
	return OPENED;
}

/* --- The flow. --- */

/* Sends the first packet on, as the backend gets it. A packet that cannot be rewritten leaves no flow behind. */
INLINE int send_first(struct __sk_buff *skb, struct arrival *arrival, bool v4)
{
	struct flow *flow = flow_at(arrival->number);
	struct tuple to = arrival->packet.tuple;

	if (!flow)
		return SHOT;
	to.source.port = flow->through_port;
	set_place(&to.destination, flow->backend, flow->backend_port);
	if (rewrite(skb, &arrival->packet, &to, v4)) {
		mark_for_firewall(skb);
		note_written_in(skb);
		return NEXT;
	}
	count_packet(COUNT_UNWRITABLE);
	arrival->rival = arrival->number;
	arrival->rival_serial = READ_ONCE(flow->serial);
	return IS_FOREIGN;
}

/* Drops the packet of a client that gets no flow, and reports why. */
INLINE int drop_for(const struct arrival *arrival, enum opened why, bool v4)
{
	struct dial dial = { .port_index = arrival->port_index, .share = arrival->share };

	dial_of(&dial, &arrival->packet.tuple, v4);
	if (why == NO_ROOM)
		return drop(arrival, &dial, REASON_FLOWS, COUNT_FULL);
	if (UNLIKELY(why == NOT_HERE)) {
		count_packet(COUNT_NOT_HERE);
		return SHOT;
	}
	if (UNLIKELY(why == NOT_AWAY)) {
		count_packet(COUNT_MIDWAY);
		note_stray(&arrival->packet, false);
		return NEXT;
	}
	return drop(arrival, &dial, why == NO_ADDRESS ? REASON_ADDRESS : REASON_PORTS, COUNT_NO_PORT);
}

/* Begins the flow of a client that has got its backend. */
INLINE int begin(struct __sk_buff *skb, struct arrival *arrival, bool v4)
{
	enum opened opened = begin_flow(skb, arrival, v4);

	return LIKELY(opened == OPENED) ? BEGUN : drop_for(arrival, opened, v4);
}

INLINE bool is_flow_wrapped(const struct arrival *arrival)
{
	const struct flow *flow = flow_at(arrival->number);

	return flow && is_wrapped(flow);
}

/* Says whether the flow has got all that it needs for its first packet. */
INLINE int settle(struct arrival *arrival, int added, bool v4)
{
	enum opened opened = end_opening(arrival, added, v4);

	if (UNLIKELY(arrival->joins) && opened == OPENED)
		count_packet(COUNT_JOINED);
	if (LIKELY(opened == OPENED))
		return UNLIKELY(arrival->may_wrap) && is_flow_wrapped(arrival) ? WRAPS : GOES_ON;
	return opened == OPENED_BY_ANOTHER ? FOLLOWS : drop_for(arrival, opened, v4);
}

#endif

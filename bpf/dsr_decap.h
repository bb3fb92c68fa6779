/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What comes from another node behind a header of that one: see wrap.h. The client's packet is judged as if the client
 * had dialled the frontend here, and goes to the backend that the other node has chosen, if any client here could get
 * that one and it is on this node. So a forged packet can no more than dial the frontend in another's name.
 *
 * A packet that was taken out goes to a backend of this node, or nowhere: it is not sent to a third node, and the stack
 * does not get it as it is.
 */
#ifndef HOLDFAST_DSR_DECAP_H
#define HOLDFAST_DSR_DECAP_H

#include "conntrack.h"
#include "dsr.h"
#include "dsr_encap.h"
#include "flow_state.h"
#include "packet.h"
#include "select_backend.h"

/*
 * How long a client's segments may be where its packets come by another node: shorter by the header that they come
 * behind than the backend says, so that they fit on that way.
 */

enum { OPTION_END = 0, OPTION_NONE = 1, OPTION_LONGEST = 2, OPTION_LONGEST_SIZE = 4 };

/* How many options are looked at. Hosts say this one first. */
#define OPTIONS_MOST 8

/* How much of an option is read. */
struct tcp_option {
	__u8 kind;
	__u8 length;
	__u16 value;
};

INLINE int write_longest(struct __sk_buff *skb, __u32 transport, __u32 at, __u16 before, __u32 less)
{
	__u32 longest = bpf_ntohs(before);
	__u16 after = bpf_htons(longest - less);

	if (longest <= less || bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0))
		return 0;
	return bpf_l4_csum_replace(skb, transport + offsetof(struct tcphdr, check), before, after, sizeof(after));
}

/* Lowers what a SYN or its answer says of the longest segment by that many bytes. */
ALONE int shorten_segments(struct __sk_buff *skb, __u32 transport, __u32 less)
{
	__u32 at = transport + sizeof(struct tcphdr), end;
	__u8 length;

	if (bpf_skb_load_bytes(skb, transport + 12, &length, sizeof(length)))
		return 0;
	end = transport + (length >> 4) * 4;
	for (int seen = 0; seen < OPTIONS_MOST; seen++) {
		struct tcp_option option;

		if (at + sizeof(option) > end || bpf_skb_load_bytes(skb, at, &option, sizeof(option)))
			return 0;
		/* The sum has words of two bytes, and this one begins with such a word. */
		if (option.kind == OPTION_LONGEST && option.length == OPTION_LONGEST_SIZE && !((at - transport) & 1))
			return write_longest(skb, transport, at + offsetof(struct tcp_option, value), option.value,
					     less);
		if (option.kind == OPTION_END || (option.kind != OPTION_NONE && option.length < 2))
			return 0;
		at += option.kind == OPTION_NONE ? 1 : option.length;
	}
	return 0;
}

/* Whether the backend agrees to a connection over TCP that came by another node. */
INLINE bool agrees_by_node(const struct flow *flow, const struct packet *packet)
{
	return packet->flags & TCP_SYN && flow->of_backend & CAME_WRAPPED && flow->transport == IPPROTO_TCP &&
	       packet->part == WHOLE;
}

/*
 * The flow of a packet that was taken out from behind another node's header.
 *
 * It is with a backend of this node. A flow of the same client and frontend may lead to another node: one of what came
 * here by itself, maybe long ago, when the frontend's packets came in by this node. The two stand beside each other:
 * that one has the entry of the client's packets, and this one is found by the backend that the other node names.
 */

/* Whether a packet is of that flow's client, as far as is needed here: what follows the flow looks again. */
INLINE bool is_of_client(const struct flow *flow, const struct tuple *tuple, bool v4)
{
	return flow->transport == tuple->transport && flow->v4 == v4 &&
	       same_place(&tuple->source, flow->client, flow->client_port, v4) &&
	       same_place(&tuple->destination, flow->frontend, flow->frontend_port, v4);
}

/* Nothing leads anywhere there. No record has this number. */
#define NO_ENTRY (~1U)

/*
 * The number to which that leads which stands as `between` in the map of arrivals, if it is that of a flow of the
 * client with a backend of this node. NO_FLOW: it leads elsewhere.
 */
INLINE __u32 find_led_here(enum leg leg, bool v4)
{
	const struct arrival *arrival = the_arrival();
	const __u32 *entry = arrival ? find_entry(&arrival->between, leg, v4) : NULL;
	const struct flow *flow;
	__u32 number;

	if (!entry)
		return NO_ENTRY;
	number = *entry;
	flow = flow_at(number);
	return flow && !leads_away(flow) && is_of_client(flow, &arrival->packet.tuple, v4) ? number : NO_FLOW;
}

/* A step of its own, which the verifier looks at once, and not for each segment. */
ALONE int find_between4(void)
{
	return find_led_here(LEG_THROUGH, true);
}

/*
 * How many segments a packet has at most that is cut again behind the other header. For each further one the kernel
 * counts the number of the datagram up, which says the backend's port: see wrap.h.
 */
#define SEGMENTS_MOST 64

/* Finds a flow by the backend that the other header names, of which any of so many segments may be; one by IPv6. */
INLINE __u32 find_named(struct arrival *arrival, int segments, bool v4)
{
	__u16 named = bpf_ntohs(arrival->proposed.port);
	__u32 number;

	arrival->between.destination = arrival->proposed;
	if (!v4)
		return find_led_here(LEG_THROUGH, false);
	for (int segment = 0; segment < segments; segment++) {
		arrival->between.destination.port = bpf_htons(named - segment);
		number = find_between4();
		if (number < NO_ENTRY)
			return number;
	}
	return NO_FLOW;
}

/*
 * Puts in the way there that another flow had until it ended, so that the next segments need not name the backend. A
 * flow that has ended meanwhile does not take that away any more.
 */
ALONE int take_way_there4(__u32 number)
{
	const struct arrival *arrival = the_arrival();
	const struct flow *flow = flow_at(number);

	if (arrival && flow && !add_entry(&arrival->packet.tuple, LEG_IN, number, true) && !READ_ONCE(flow->serial))
		remove_entry(&arrival->packet.tuple, LEG_IN, true);
	return NEXT;
}

/* Finds the flow of the packet that stands in the map of arrivals. */
INLINE __u32 find_taken(bool v4)
{
	struct arrival *arrival = the_arrival();
	__u32 led, number;

	if (!arrival)
		return NO_FLOW;
	arrival->between = arrival->packet.tuple;
	led = find_led_here(LEG_IN, v4);
	if (LIKELY(led < NO_ENTRY))
		return led;
	number = find_named(arrival, led == NO_FLOW ? SEGMENTS_MOST : 1, v4);
	if (number >= NO_ENTRY)
		return NO_FLOW;
	if (v4 && led == NO_ENTRY)
		take_way_there4(number);
	return number;
}

ALONE int find_taken4(void)
{
	return find_taken(true);
}

ALONE int find_taken6(void)
{
	return find_taken(false);
}

/* The number of the flow of a packet that looks like that; NO_FLOW: it is of none. */
INLINE __u32 flow_of_taken(const struct tuple *tuple, bool v4)
{
	struct arrival *arrival = the_arrival();

	if (!arrival)
		return NO_FLOW;
	arrival->packet.tuple = *tuple;
	return v4 ? find_taken4() : find_taken6();
}

/* What the first look at such a packet says. Beside these: SHOT. */
enum { IS_PLAIN = 120, IS_TAKEN_OUT = 121 };

INLINE int go_astray(enum packet_count counted)
{
	count_packet(counted);
	return SHOT;
}

/* --- The other header. --- */

/* By a device of a pod no node comes, nor as it came where the stack is to see whether IPsec let it in. */
INLINE bool may_come_from_node(const struct __sk_buff *skb)
{
	__u32 number = skb->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &number);

	return device && device->flags & (DEVICE_OUTER | DEVICE_BACKENDS) &&
	       !(device->flags & (DEVICE_POD | DEVICE_SECURED)) && skb->pkt_type == PACKET_HOST;
}

/* `false`: the packet is not behind such a header, and is none of ours for now. */
INLINE bool read_wrapper4(const struct __sk_buff *skb, struct place *from, struct place *to)
{
	const struct iphdr *ip = header(skb, link_header, sizeof(*ip));

	if (!ip || *(const __u8 *)ip != 0x45 || ip->protocol != IN_IPV4 ||
	    ip->frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET) ||
	    fold16(sum_of(ip, sizeof(*ip), 0)) != 0xffff)
		return false;
	place4(from, ip->saddr, 0);
	place4(to, ip->daddr, ip->id);
	return true;
}

/* As above. */
INLINE bool read_wrapper6(const struct __sk_buff *skb, struct place *from, struct place *to)
{
	const struct ipv6hdr *ip = header(skb, link_header, sizeof(*ip));

	if (!ip || ip->version != 6 || ip->nexthdr != IN_IPV6)
		return false;
	set_place(from, ip->saddr.in6_u.u6_addr32, 0);
	set_place(to, ip->daddr.in6_u.u6_addr32, bpf_htons(bpf_ntohl(*(const __u32 *)ip)));
	return true;
}

INLINE bool is_own_address(const __u32 *address, bool v4)
{
	return v4 ? is_node4(address[3]) : is_node6(address);
}

/*
 * Whether the packet inside is for a frontend that this node knows. If it does not show its ports, the address has to
 * do: such a packet may be an error, or a fragment. What is for none is a tunnel of others.
 */
INLINE bool is_for_frontend(struct __sk_buff *skb, bool v4)
{
	struct packet inner = { .ip = link_header + size_of_wrapper(v4) };
	struct dial dial = {};
	__u16 ports[2];

	if (!make_readable(skb, inner.ip + size_of_wrapper(v4)) || !(v4 ? parse4(skb, &inner) : parse6(skb, &inner)))
		return false;
	dial_of(&dial, &inner.tuple, v4);
	if (means_loopback(&dial) || !may_be_frontend(&dial))
		return false;
	if (inner.part == LATER_FRAGMENT || is_icmp(&inner, v4))
		return true;
	if (!is_transport(inner.tuple.transport) || bpf_skb_load_bytes(skb, inner.transport, ports, sizeof(ports)))
		return false;
	dial.to.port = ports[1];
	return find_exact(&dial);
}

ALONE int is_for_frontend4(struct __sk_buff *skb)
{
	return is_for_frontend(skb, true);
}

ALONE int is_for_frontend6(struct __sk_buff *skb)
{
	return is_for_frontend(skb, false);
}

/* Takes a client's packet out from behind another node's header. */
INLINE int unwrap(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct place from;

	if (!arrival || !may_come_from_node(skb) || !make_readable(skb, link_header + 2 * size_of_wrapper(v4)) ||
	    !(v4 ? read_wrapper4(skb, &from, &arrival->proposed) : read_wrapper6(skb, &from, &arrival->proposed)) ||
	    !is_of_nodes(from.address, v4) || is_own_address(from.address, v4) ||
	    is_of_nodes(arrival->proposed.address, v4))
		return IS_PLAIN;
	if (!(v4 ? is_for_frontend4(skb) : is_for_frontend6(skb)))
		return IS_PLAIN;
	if (bpf_skb_adjust_room(skb, -(__s32)size_of_wrapper(v4), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return go_astray(COUNT_UNWRITABLE);
	count_packet(COUNT_UNWRAPPED);
	return IS_TAKEN_OUT;
}

/* --- Whether the backend may be had. --- */

/*
 * As is_listed(), for a backend that another node names: while the daemon writes a list, an empty slot is no proof. A
 * backend that serves is one of its service, whichever list it is in.
 */
INLINE bool is_surely_listed(struct arrival *arrival, const struct dial *dial, __u64 word, __u64 cluster, bool v4)
{
	struct dial found = { .v4 = v4 };

	if (word_flags(cluster) & WORD_MEMBERS && is_member(dial, SCOPE_SERVING))
		return true;
	if (word_flags(word) & WORD_TABLE)
		return is_member(dial, dial->scope);
	return is_sorted_in(arrival, word, v4) &&
	       read_slot(&found, arrival->first + arrival->left / 2, &found.backend) &&
	       same_place(&found.backend, dial->backend.address, dial->backend.port, false);
}

INLINE int choose_proposed(struct arrival *arrival, struct dial *dial, __u64 word, __u64 cluster, bool v4)
{
	dial->backend = arrival->sought = arrival->proposed;
	if (!is_surely_listed(arrival, dial, word, cluster, v4))
		return go_astray(COUNT_NOT_LISTED);
	arrival->backend = dial->backend;
	arrival->port_index = dial->port_index;
	arrival->share = dial->share;
	arrival->is_local = false;
	arrival->keeps_port = true;
	return CHOSEN;
}

/* Whether a segment of no known connection is to be answered as a host answers it that knows none. */
INLINE bool may_be_denied(const struct packet *packet)
{
	return packet->tuple.transport == IPPROTO_TCP && packet->part == WHOLE &&
	       (packet->flags & (TCP_ACK | TCP_RST)) == TCP_ACK;
}

/*
 * As arrive(), for a client that came by another node. A node that drains serves it too: no other proxy takes it, and
 * the other nodes go on to send theirs.
 */
INLINE int arrive_by_node(struct __sk_buff *skb, struct arrival *arrival, bool v4)
{
	const struct packet *packet = &arrival->packet;
	struct dial dial = {};
	__u64 word, cluster;
	struct device *device = bpf_map_lookup_elem(&devices, &arrival->device);

	arrival->from_pod = arrival->sticks = arrival->may_wrap = 0;
	arrival->by_address = device && device->flags & DEVICE_BY_ADDRESS ? IS_BY_ADDRESS : 0;
	if (device)
		note_bridge(device->flags);
	dial_of(&dial, &packet->tuple, v4);
	if (means_loopback(&dial) || !find_exact(&dial) || says_to_be_node(packet, v4) ||
	    is_of_nodes(packet->tuple.source.address, v4))
		return go_astray(COUNT_ASTRAY);
	if (UNLIKELY(comes_from_frontend(&packet->tuple, &dial, v4)))
		return go_astray(COUNT_LOOP);
	word = read_word_for(arrival, &dial, &cluster);
	if (is_barred(arrival, &dial, cluster))
		return drop(arrival, &dial, REASON_SOURCE, COUNT_SOURCE);
	if (!begins(packet))
		return may_be_denied(packet) ? IS_UNKNOWN_HERE : go_astray(COUNT_ASTRAY);
	return stand_still() ? SHOT : choose_proposed(arrival, &dial, word, cluster, v4);
}

/*
 * Connections that another node has let in: where all nodes choose alike, what belongs to one goes on to the backend of
 * that choice, on that one's node. That node knows the connection, or denies it.
 */

/* The state that the kernel gives a socket that waits for connections. */
#define LISTENING 10

/*
 * Whether the segment is of a connection of a process of this node: that may be at an address of the node's own which
 * is a frontend's, too.
 */
INLINE bool is_of_process(struct __sk_buff *skb, bool v4)
{
	const struct arrival *arrival = the_arrival();
	struct bpf_sock_tuple asked = {};
	struct bpf_sock *socket;
	bool is_connected;

	if (!arrival)
		return false;
	socket_tuple(&asked, &arrival->packet.tuple, v4);
	socket = bpf_skc_lookup_tcp(skb, &asked, v4 ? sizeof(asked.ipv4) : sizeof(asked.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	is_connected = socket->state != LISTENING;
	bpf_sk_release(socket);
	return is_connected;
}

/*
 * Chooses for a client that is none of this node's so far, where all nodes choose alike: so the backend is the one that
 * another node has chosen, unless the list has changed since.
 */
INLINE bool choose_as_others(struct arrival *arrival, struct dial *dial, __u64 *word)
{
	__u64 cluster;

	know_by_address(&dial->client, &arrival->packet.tuple.source);
	*word = read_word_for(arrival, dial, &cluster);
	return is_by_maglev(*word) && word_count(*word) && !is_barred(arrival, dial, cluster) &&
	       choose_by_client(dial, *word, mixed_sight(dial, arrival->packet.tuple.source.port));
}

/* Notes the backend on another node that a client of this frontend would get with a SYN. `false`: there is none. */
INLINE bool find_others_choice(struct arrival *arrival, struct dial *dial, bool v4)
{
	__u64 word;

	if (says_to_be_node(&arrival->packet, v4) || !choose_as_others(arrival, dial, &word))
		return false;
	arrival->sticks = 0;
	note_choice(arrival, dial, word, v4);
	return arrival->may_wrap;
}

/* Has a packet go to the node of the backend that was found, and opens no flow for it. */
INLINE int go_stateless(struct arrival *arrival)
{
	arrival->number = NO_FLOW;
	arrival->between = arrival->packet.tuple;
	arrival->between.destination = arrival->backend;
	return WRAPS;
}

/*
 * Whether a packet goes on to the backend that a client with a SYN would get here, on that one's node: that node knows
 * the connection, or denies it. It goes there as it came or not at all, because only then the backend knows the client.
 * Nothing follows a reset, so that opens no flow.
 */
INLINE int join(struct arrival *arrival, bool v4)
{
	bool is_reset = arrival->packet.flags & TCP_RST;
	struct dial dial = {};

	dial_of(&dial, &arrival->packet.tuple, v4);
	if (!find_frontend(&dial))
		return NEXT;
	arrival->joins = find_others_choice(arrival, &dial, v4) && !(is_reset && arrival->flags & DEVICE_SECURED);
	if (arrival->joins && is_reset)
		return go_stateless(arrival);
	if (arrival->joins)
		return stand_still() ? SHOT : CHOSEN;
	leave_to_stack(arrival, &dial);
	return NEXT;
}

/*
 * Whether an error goes on to the backend that the client of the quoted answer would get here, on that one's node. In
 * the map of arrivals the packet looks as that client's. Routers share errors out by other rules than packets, so an
 * error may come to a node that has never heard of the connection.
 */
INLINE int join_error(void *ctx, struct arrival *arrival, bool v4)
{
	struct device *device = bpf_map_lookup_elem(&devices, &arrival->device);
	const struct tuple *tuple = &arrival->packet.tuple;
	struct dial dial = {};

	arrival->flags = device ? device->flags : 0;
	arrival->from_pod = arrival->flags & DEVICE_POD;
	dial_of(&dial, tuple, v4);
	if (arrival->flags & (DEVICE_BACKENDS | DEVICE_SECURED) || is_draining() || !may_be_of_others(arrival) ||
	    !find_frontend(&dial) || is_answer_to_own(ctx, &dial, tuple, v4) ||
	    !find_others_choice(arrival, &dial, v4))
		return NEXT;
	return go_stateless(arrival);
}

#endif

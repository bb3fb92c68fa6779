/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What comes from another node behind a header of that one: see dsr_encap.h. The client's packet is judged as if the
 * client had dialled the frontend here, and goes to the backend that the other node has chosen, if any client here
 * could get that one and it is on this node. So a forged packet can no more than dial the frontend in another's name.
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

enum { OPTION_END = 0, OPTION_NONE = 1, OPTION_MSS = 2, OPTION_MSS_SIZE = 4 };

/* How many options are looked at. Hosts say this one first. */
#define OPTIONS_MAX 8

/* How much of an option is read. */
struct tcp_option {
	__u8 kind;
	__u8 length;
	__u16 value;
};

INLINE int write_mss(struct __sk_buff *skb, __u32 transport, __u32 at, __u16 before, __u32 less)
{
	__u32 mss = bpf_ntohs(before);
	__u16 after = bpf_htons(mss - less);

	if (mss <= less || bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0))
		return 0;
	return bpf_l4_csum_replace(skb, transport + offsetof(struct tcphdr, check), before, after, sizeof(after));
}

/* Lowers what a SYN or its answer says of the longest segment by that many bytes. */
GLOBAL int clamp_mss(struct __sk_buff *skb, __u32 transport, __u32 less)
{
	__u32 at = transport + sizeof(struct tcphdr), end;
	__u8 length;

	if (bpf_skb_load_bytes(skb, transport + 12, &length, sizeof(length)))
		return 0;
	end = transport + (length >> 4) * 4;
	for (int seen = 0; seen < OPTIONS_MAX; seen++) {
		struct tcp_option option;

		if (at + sizeof(option) > end || bpf_skb_load_bytes(skb, at, &option, sizeof(option)))
			return 0;
		/* The sum has words of two bytes, and this one begins with such a word. */
		if (option.kind == OPTION_MSS && option.length == OPTION_MSS_SIZE && !((at - transport) & 1))
			return write_mss(skb, transport, at + offsetof(struct tcp_option, value), option.value, less);
		if (option.kind == OPTION_END || (option.kind != OPTION_NONE && option.length < 2))
			return 0;
		at += option.kind == OPTION_NONE ? 1 : option.length;
	}
	return 0;
}

/* Whether the backend agrees to a connection over TCP that came by another node. */
INLINE bool is_decap_syn_ack(const struct flow *flow, const struct packet *packet)
{
	return packet->flags & TCP_SYN && flow->backend_flags & FLOW_DECAP && flow->transport == IPPROTO_TCP &&
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
INLINE bool is_from_client(const struct flow *flow, const struct tuple *tuple, bool v4)
{
	return flow->transport == tuple->transport && flow->v4 == v4 &&
	       same_endpoint(&tuple->source, flow->client, flow->client_port, v4) &&
	       same_endpoint(&tuple->destination, flow->frontend, flow->frontend_port, v4);
}

/* Nothing leads anywhere there. No record has this number. */
#define NO_ENTRY (~1U)

/*
 * The number to which that leads which stands as `translated` in the map of arrivals, if it is that of a flow of the
 * client with a backend of this node. NO_FLOW: it leads elsewhere.
 */
INLINE __u32 find_local_flow(enum entry_kind kind, bool v4)
{
	const struct scratch *scratch = get_scratch();
	const __u32 *entry = scratch ? find_entry(&scratch->translated, kind, v4) : NULL;
	const struct flow *flow;
	__u32 number;

	if (!entry)
		return NO_ENTRY;
	number = *entry;
	flow = get_flow(number);
	return flow && !is_backend_remote(flow) && is_from_client(flow, &scratch->packet.tuple, v4) ? number : NO_FLOW;
}

/* A step of its own, which the verifier looks at once, and not for each segment. */
GLOBAL int find_translated4(void)
{
	return find_local_flow(ENTRY_TRANSLATED, true);
}

/*
 * How many segments a packet has at most that is cut again behind the other header. For each further one the kernel
 * counts the number of the datagram up, which says the backend's port: see dsr_encap.h.
 */
#define SEGMENTS_MAX 64

/* Finds a flow by the backend that the other header names, of which any of so many segments may be; one by IPv6. */
INLINE __u32 find_flow_by_backend(struct scratch *scratch, int segments, bool v4)
{
	__u16 named = bpf_ntohs(scratch->named_backend.port);
	__u32 number;

	scratch->translated.destination = scratch->named_backend;
	if (!v4)
		return find_local_flow(ENTRY_TRANSLATED, false);
	for (int segment = 0; segment < segments; segment++) {
		scratch->translated.destination.port = bpf_htons(named - segment);
		number = find_translated4();
		if (number < NO_ENTRY)
			return number;
	}
	return NO_FLOW;
}

/*
 * Puts in the way there that another flow had until it ended, so that the next segments need not name the backend. A
 * flow that has ended meanwhile does not take that away any more.
 */
GLOBAL int take_original_entry4(__u32 number)
{
	const struct scratch *scratch = get_scratch();
	const struct flow *flow = get_flow(number);

	if (scratch && flow && !add_entry(&scratch->packet.tuple, ENTRY_WIRE, number, true) && !READ_ONCE(flow->serial))
		remove_entry(&scratch->packet.tuple, ENTRY_WIRE, true);
	return 0;
}

/* Finds the flow of the packet that stands in the map of arrivals. */
INLINE __u32 find_decap_flow(bool v4)
{
	struct scratch *scratch = get_scratch();
	__u32 led, number;

	if (!scratch)
		return NO_FLOW;
	scratch->translated = scratch->packet.tuple;
	led = find_local_flow(ENTRY_WIRE, v4);
	if (LIKELY(led < NO_ENTRY))
		return led;
	number = find_flow_by_backend(scratch, led == NO_FLOW ? SEGMENTS_MAX : 1, v4);
	if (number >= NO_ENTRY)
		return NO_FLOW;
	if (v4 && led == NO_ENTRY)
		take_original_entry4(number);
	return number;
}

GLOBAL int find_decap_flow4(void)
{
	return find_decap_flow(true);
}

GLOBAL int find_decap_flow6(void)
{
	return find_decap_flow(false);
}

/* The number of the flow of a packet that looks like that; NO_FLOW: it is of none. */
INLINE __u32 get_decap_flow(const struct tuple *tuple, bool v4)
{
	struct scratch *scratch = get_scratch();

	if (!scratch)
		return NO_FLOW;
	scratch->packet.tuple = *tuple;
	return v4 ? find_decap_flow4() : find_decap_flow6();
}

/* What became of a packet that may be behind such a header. */
enum decap_result { DECAP_DROP = TC_ACT_SHOT, DECAP_NONE = 120, DECAP_DONE = 121 };

INLINE enum step drop_decap(enum packet_count counted)
{
	count_packet(counted);
	return STEP_DROP;
}

/* --- The other header. --- */

/* By a device of a pod no node comes, nor as it came where the stack is to see whether IPsec let it in. */
INLINE bool may_come_from_node(const struct __sk_buff *skb)
{
	__u32 number = skb->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &number);

	return device && device->flags & (DEVICE_OUTER | DEVICE_BACKENDS) &&
	       !(device->flags & (DEVICE_POD | DEVICE_IPSEC)) && skb->pkt_type == PACKET_HOST;
}

/* `false`: the packet is not behind such a header, and is none of ours for now. */
INLINE bool read_encap4(const struct __sk_buff *skb, struct endpoint *from, struct endpoint *to)
{
	const struct iphdr *ip = get_header(skb, link_header, sizeof(*ip));

	if (!ip || *(const __u8 *)ip != 0x45 || ip->protocol != ENCAP_IPV4 ||
	    ip->frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET) ||
	    csum_fold16(csum_add(ip, sizeof(*ip), 0)) != 0xffff)
		return false;
	endpoint4(from, ip->saddr, 0);
	endpoint4(to, ip->daddr, ip->id);
	return true;
}

/* As above. */
INLINE bool read_encap6(const struct __sk_buff *skb, struct endpoint *from, struct endpoint *to)
{
	const struct ipv6hdr *ip = get_header(skb, link_header, sizeof(*ip));

	if (!ip || ip->version != 6 || ip->nexthdr != ENCAP_IPV6)
		return false;
	set_endpoint(from, ip->saddr.in6_u.u6_addr32, 0);
	set_endpoint(to, ip->daddr.in6_u.u6_addr32, bpf_htons(bpf_ntohl(*(const __u32 *)ip)));
	return true;
}

INLINE bool is_own_address(const __u32 *address, bool v4)
{
	return v4 ? is_node_address4(address[3]) : is_node_address6(address);
}

/*
 * Whether the packet inside is for a frontend that this node knows. If it does not show its ports, the address has to
 * do: such a packet may be an error, or a fragment. What is for none is a tunnel of others.
 */
INLINE bool is_for_frontend(struct __sk_buff *skb, bool v4)
{
	struct packet inner = { .ip = link_header + encap_header_size(v4) };
	struct lb_request request = {};
	__u16 ports[2];

	if (!make_readable(skb, inner.ip + encap_header_size(v4)) || !(v4 ? parse4(skb, &inner) : parse6(skb, &inner)))
		return false;
	set_request(&request, &inner.tuple, v4);
	if (is_loopback(&request) || !may_be_frontend(&request))
		return false;
	if (inner.part == LATER_FRAGMENT || is_icmp(&inner, v4))
		return true;
	if (!is_transport(inner.tuple.transport) || bpf_skb_load_bytes(skb, inner.transport, ports, sizeof(ports)))
		return false;
	request.to.port = ports[1];
	return find_exact_frontend(&request);
}

GLOBAL int is_for_frontend4(struct __sk_buff *skb)
{
	return is_for_frontend(skb, true);
}

GLOBAL int is_for_frontend6(struct __sk_buff *skb)
{
	return is_for_frontend(skb, false);
}

/* Takes a client's packet out from behind another node's header. */
INLINE enum decap_result decap(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct endpoint from;

	if (!scratch || !may_come_from_node(skb) || !make_readable(skb, link_header + 2 * encap_header_size(v4)) ||
	    !(v4 ? read_encap4(skb, &from, &scratch->named_backend) :
		   read_encap6(skb, &from, &scratch->named_backend)) ||
	    !is_dsr_node(from.address, v4) || is_own_address(from.address, v4) ||
	    is_dsr_node(scratch->named_backend.address, v4))
		return DECAP_NONE;
	if (!(v4 ? is_for_frontend4(skb) : is_for_frontend6(skb)))
		return DECAP_NONE;
	if (bpf_skb_adjust_room(skb, -(__s32)encap_header_size(v4), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO)) {
		count_packet(COUNT_UNWRITABLE);
		return DECAP_DROP;
	}
	count_packet(COUNT_DECAP);
	return DECAP_DONE;
}

/* --- Whether the backend may be had. --- */

/*
 * As is_in_list(), for a backend that another node names: while the daemon writes a list, an empty slot is no proof. A
 * backend that serves is one of its service, whichever list it is in.
 */
INLINE bool is_certainly_in_list(struct scratch *scratch, const struct lb_request *request, __u64 word, __u64 cluster,
				 bool v4)
{
	struct lb_request found = { .v4 = v4 };

	if (word_flags(cluster) & WORD_MEMBERS && is_member(request, SCOPE_SERVING))
		return true;
	if (word_flags(word) & WORD_TABLE)
		return is_member(request, request->scope);
	return is_in_sorted_list(scratch, word, v4) &&
	       read_slot(&found, scratch->first + scratch->left / 2, &found.backend) &&
	       same_endpoint(&found.backend, request->backend.address, request->backend.port, false);
}

INLINE enum step select_named_backend(struct scratch *scratch, struct lb_request *request, __u64 word, __u64 cluster,
				      bool v4)
{
	request->backend = scratch->searched = scratch->named_backend;
	if (!is_certainly_in_list(scratch, request, word, cluster, v4))
		return drop_decap(COUNT_NOT_LISTED);
	scratch->backend = request->backend;
	scratch->port_index = request->port_index;
	scratch->share = request->share;
	scratch->is_local = false;
	scratch->keeps_port = true;
	return STEP_OPEN_FLOW;
}

/* Whether a segment of no known connection is to be answered as a host answers it that knows none. */
INLINE bool may_reset(const struct packet *packet)
{
	return packet->tuple.transport == IPPROTO_TCP && packet->part == WHOLE &&
	       (packet->flags & (TCP_ACK | TCP_RST)) == TCP_ACK;
}

/*
 * As select_client_backend(), for a client that came by another node. A node that drains serves it too: no other proxy
 * takes it, and the other nodes go on to send theirs.
 */
INLINE enum step select_decap_backend(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	const struct packet *packet = &scratch->packet;
	struct lb_request request = {};
	__u64 word, cluster;
	struct device *device = bpf_map_lookup_elem(&devices, &scratch->device);

	scratch->from_pod = scratch->affinity_flag = scratch->may_encap = 0;
	scratch->reply_flag = device && device->flags & DEVICE_REPLY_BY_FRONTEND ? FLOW_REPLY_BY_FRONTEND : 0;
	if (device)
		note_bridge(device->flags);
	set_request(&request, &packet->tuple, v4);
	if (is_loopback(&request) || !find_exact_frontend(&request) || claims_node_source(packet, v4) ||
	    is_dsr_node(packet->tuple.source.address, v4))
		return drop_decap(COUNT_DECAP_UNKNOWN);
	if (UNLIKELY(has_frontend_source(&packet->tuple, &request, v4)))
		return drop_decap(COUNT_LOOP);
	word = read_packet_list_word(scratch, &request, &cluster);
	if (is_source_denied(scratch, &request, cluster))
		return drop_client(scratch, &request, REASON_SOURCE, COUNT_SOURCE);
	if (!opens_flow(packet))
		return may_reset(packet) ? STEP_RESET_UNKNOWN_SEGMENT : drop_decap(COUNT_DECAP_UNKNOWN);
	return are_flows_frozen() ? STEP_DROP : select_named_backend(scratch, &request, word, cluster, v4);
}

/*
 * Connections that another node has let in: where all nodes choose alike, what belongs to one goes on to the backend of
 * that choice, on that one's node. That node knows the connection, or denies it.
 */

/* The state that the kernel gives a socket that waits for connections. */
#define SOCKET_LISTENING 10

/*
 * Whether the segment is of a connection of a process of this node: that may be at an address of the node's own which
 * is a frontend's, too.
 */
INLINE bool has_local_socket(struct __sk_buff *skb, bool v4)
{
	const struct scratch *scratch = get_scratch();
	struct bpf_sock_tuple key = {};
	struct bpf_sock *socket;
	bool is_connected;

	if (!scratch)
		return false;
	set_socket_tuple(&key, &scratch->packet.tuple, v4);
	socket = bpf_skc_lookup_tcp(skb, &key, v4 ? sizeof(key.ipv4) : sizeof(key.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	is_connected = socket->state != SOCKET_LISTENING;
	bpf_sk_release(socket);
	return is_connected;
}

/*
 * Chooses for a client that is none of this node's so far, where all nodes choose alike: so the backend is the one that
 * another node has chosen, unless the list has changed since.
 */
INLINE bool select_as_peers(struct scratch *scratch, struct lb_request *request, __u64 *word)
{
	__u64 cluster;

	set_client_address(&request->client, &scratch->packet.tuple.source);
	*word = read_packet_list_word(scratch, request, &cluster);
	return uses_maglev(*word) && word_count(*word) && !is_source_denied(scratch, request, cluster) &&
	       select_by_hash(request, *word, maglev_hash(request, scratch->packet.tuple.source.port));
}

/* Notes the backend on another node that a client of this frontend would get with a SYN. `false`: there is none. */
INLINE bool find_peer_backend(struct scratch *scratch, struct lb_request *request, bool v4)
{
	__u64 word;

	if (claims_node_source(&scratch->packet, v4) || !select_as_peers(scratch, request, &word))
		return false;
	scratch->affinity_flag = 0;
	save_selection(scratch, request, word, v4);
	return scratch->may_encap;
}

/* Has a packet go to the node of the backend that was found, and opens no flow for it. */
INLINE enum step encap_stateless(struct scratch *scratch)
{
	scratch->number = NO_FLOW;
	scratch->translated = scratch->packet.tuple;
	scratch->translated.destination = scratch->backend;
	return STEP_ENCAP;
}

/*
 * Whether a packet goes on to the backend that a client with a SYN would get here, on that one's node: that node knows
 * the connection, or denies it. It goes there as it came or not at all, because only then the backend knows the client.
 * Nothing follows a reset, so that opens no flow.
 */
INLINE enum step adopt_flow(struct scratch *scratch, bool v4)
{
	bool is_reset = scratch->packet.flags & TCP_RST;
	struct lb_request request = {};

	set_request(&request, &scratch->packet.tuple, v4);
	if (!find_frontend(&request))
		return STEP_PASS;
	scratch->adopts = find_peer_backend(scratch, &request, v4) && !(is_reset && scratch->flags & DEVICE_IPSEC);
	if (scratch->adopts && is_reset)
		return encap_stateless(scratch);
	if (scratch->adopts)
		return are_flows_frozen() ? STEP_DROP : STEP_OPEN_FLOW;
	pass_unknown_segment(scratch, &request);
	return STEP_PASS;
}

/*
 * Whether an error goes on to the backend that the client of the quoted answer would get here, on that one's node. In
 * the map of arrivals the packet looks as that client's. Routers share errors out by other rules than packets, so an
 * error may come to a node that has never heard of the connection.
 */
INLINE enum step adopt_error(void *ctx, struct scratch *scratch, bool v4)
{
	struct device *device = bpf_map_lookup_elem(&devices, &scratch->device);
	const struct tuple *tuple = &scratch->packet.tuple;
	struct lb_request request = {};

	scratch->flags = device ? device->flags : 0;
	scratch->from_pod = scratch->flags & DEVICE_POD;
	set_request(&request, tuple, v4);
	if (scratch->flags & (DEVICE_BACKENDS | DEVICE_IPSEC) || is_draining() || !may_be_remote_flow(scratch) ||
	    !find_frontend(&request) || is_reply_to_node(ctx, &request, tuple, v4) ||
	    !find_peer_backend(scratch, &request, v4))
		return STEP_PASS;
	return encap_stateless(scratch);
}

#endif

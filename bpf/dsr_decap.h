/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DSR: packets that arrive encapsulated from another node, and connections that another node has opened. See
 * dsr_encap.h.
 *
 * Owns: the look-up of decapsulated flows, and the choice whether to adopt a connection. Reads: the outer header, the
 * lists, `flow_table`. Writes: the packet, the scratch map, `entries4/6`.
 *
 * The programs treat the client's packet as if the client had dialled the frontend here. It goes to the backend that
 * the other node names, if any client here could get that backend and the backend is on this node. So a forged packet
 * gains nothing over dialling the frontend in another host's name. A decapsulated packet goes to a backend of this node
 * or is dropped: the programs send it to no third node, and do not leave it to the stack.
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
 * --- The MSS. A client whose packets arrive encapsulated gets a smaller MSS, so that its segments and the outer header
 * fit. ---
 */

enum { OPTION_END = 0, OPTION_NONE = 1, OPTION_MSS = 2, OPTION_MSS_SIZE = 4 };

/* How many options are read. Hosts send the MSS first. */
#define OPTIONS_MAX 8

/* The bytes of an option that are read. */
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

/* Lowers the MSS in a SYN or its reply. */
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
		/* The checksum has words of two bytes. This value begins with such a word. */
		if (option.kind == OPTION_MSS && option.length == OPTION_MSS_SIZE && !((at - transport) & 1))
			return write_mss(skb, transport, at + offsetof(struct tcp_option, value), option.value, less);
		if (option.kind == OPTION_END || (option.kind != OPTION_NONE && option.length < 2))
			return 0;
		at += option.kind == OPTION_NONE ? 1 : option.length;
	}
	return 0;
}

/* Whether the backend accepts a TCP connection that arrives encapsulated. */
INLINE bool is_decap_syn_ack(const struct flow *flow, const struct packet *packet)
{
	return has_dsr_from && packet->flags & TCP_SYN && flow->backend_flags & FLOW_DECAP &&
	       flow->transport == IPPROTO_TCP && packet->part == WHOLE;
}

/*
 * --- The flow of a decapsulated packet. ---
 *
 * Its backend is on this node. Another flow of the same client and frontend may have a backend on another node, if the
 * client's packets once arrived here without a header. Then the other flow has the entry of the client's packets, and
 * this one is found by the backend that the other node names.
 */

/* Whether a packet is from the flow's client. The code that follows the flow checks the rest. */
INLINE bool is_from_client(const struct flow *flow, const struct tuple *tuple, bool v4)
{
	return flow->transport == tuple->transport && flow->v4 == v4 &&
	       same_endpoint(&tuple->source, flow->client, flow->client_port, v4) &&
	       same_endpoint(&tuple->destination, flow->frontend, flow->frontend_port, v4);
}

/* No entry. No record has this number. */
#define NO_ENTRY (~1U)

/*
 * The number of the flow that the scratch map's `translated` tuple leads to, if it is a flow of the client with a
 * backend on this node. NO_FLOW: it leads to another flow.
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

/* A global function, so the verifier checks it once, and not for each segment. */
GLOBAL int find_translated4(void)
{
	return find_local_flow(ENTRY_TRANSLATED, true);
}

/*
 * The most segments of an encapsulated packet that is cut again. For each further segment the kernel increments the IP
 * id, which holds the backend's port: see dsr_encap.h.
 */
#define SEGMENTS_MAX 64

/* Finds a flow by the backend that the outer header names. Over IPv4 the packet may be any of so many segments. */
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
 * Adds the original entry after the other flow has ended, so that further segments need not name the backend. If this
 * flow has ended meanwhile, nothing else would remove the entry.
 */
GLOBAL int take_original_entry4(__u32 number)
{
	const struct scratch *scratch = get_scratch();
	const struct flow *flow = get_flow(number);

	if (scratch && flow && !add_entry(&scratch->packet.tuple, ENTRY_WIRE, number, true) && !READ_ONCE(flow->serial))
		remove_entry(&scratch->packet.tuple, ENTRY_WIRE, true);
	return 0;
}

/* Finds the flow of the packet in the scratch map. */
INLINE __u32 find_decap_flow(bool v4)
{
	struct scratch *scratch = get_scratch();
	__u32 number_at_wire, number;

	if (!has_dsr_from || !scratch)
		return NO_FLOW;
	scratch->translated = scratch->packet.tuple;
	number_at_wire = find_local_flow(ENTRY_WIRE, v4);
	if (LIKELY(number_at_wire < NO_ENTRY))
		return number_at_wire;
	number = find_flow_by_backend(scratch, number_at_wire == NO_FLOW ? SEGMENTS_MAX : 1, v4);
	if (number >= NO_ENTRY)
		return NO_FLOW;
	if (v4 && number_at_wire == NO_ENTRY)
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

/* The number of the flow of a packet with that tuple, or NO_FLOW. */
INLINE __u32 get_decap_flow(const struct tuple *tuple, bool v4)
{
	struct scratch *scratch = get_scratch();

	if (!has_dsr_from || !scratch)
		return NO_FLOW;
	scratch->packet.tuple = *tuple;
	return v4 ? find_decap_flow4() : find_decap_flow6();
}

/* What became of a packet that may be encapsulated. */
enum decap_result { DECAP_DROP = TC_ACT_SHOT, DECAP_NONE = 120, DECAP_DONE = 121 };

INLINE enum step drop_decap(enum packet_count counted)
{
	count_packet(counted);
	return STEP_DROP;
}

/* --- The outer header. --- */

/*
 * Whether another node may send by the ingress device. A pod's device is none. Nor is one with IPsec, because the stack
 * has to check the policies.
 */
INLINE bool may_come_from_node(const struct __sk_buff *skb)
{
	__u32 number = skb->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &number);

	return device && device->flags & (DEVICE_OUTER | DEVICE_BACKENDS) &&
	       !(device->flags & (DEVICE_POD | DEVICE_IPSEC)) && skb->pkt_type == PACKET_HOST;
}

/* `false`: the packet is not encapsulated, and none of ours so far. */
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

/* As above, for IPv6. */
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
 * Whether the inner packet is for a frontend of this node. If its ports are not known, the address decides: the packet
 * may be an ICMP error or a fragment. A packet for no frontend belongs to another tunnel.
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
	request.frontend.port = ports[1];
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

/* Removes the outer header of another node. */
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

/* --- The backend that the other node names. --- */

/*
 * As is_in_list(), for a backend that another node names: an empty slot proves nothing, while the daemon writes a list.
 * A serving backend belongs to its service, whichever list has it.
 */
INLINE bool is_certainly_in_list(struct scratch *scratch, const struct lb_request *request, __u64 word, __u64 cluster,
				 bool v4)
{
	struct lb_request slot = { .v4 = v4 };

	if (word_flags(cluster) & WORD_MEMBERS && is_member(request, SCOPE_SERVING))
		return true;
	if (word_flags(word) & WORD_TABLE)
		return is_member(request, request->scope);
	return is_in_sorted_list(scratch, word, v4) &&
	       read_slot(&slot, scratch->search_first + scratch->remaining / 2, &slot.backend) &&
	       same_endpoint(&slot.backend, request->backend.address, request->backend.port, false);
}

INLINE enum step select_named_backend(struct scratch *scratch, struct lb_request *request, __u64 word, __u64 cluster,
				      bool v4)
{
	request->backend = scratch->wanted_backend = scratch->named_backend;
	if (!is_certainly_in_list(scratch, request, word, cluster, v4))
		return drop_decap(COUNT_NOT_LISTED);
	scratch->backend = request->backend;
	scratch->port_index = request->port_index;
	scratch->share = request->share;
	scratch->is_local = false;
	scratch->keeps_port = true;
	return STEP_OPEN_FLOW;
}

/* Whether a segment of an unknown connection gets a RST, as from a host without the connection. */
INLINE bool may_reset(const struct packet *packet)
{
	return packet->tuple.transport == IPPROTO_TCP && packet->part == WHOLE &&
	       (packet->flags & (TCP_ACK | TCP_RST)) == TCP_ACK;
}

/*
 * As select_client_backend(), for a decapsulated packet. A draining node serves it, too: no other proxy would take it,
 * and the other nodes go on sending.
 */
INLINE enum step select_decap_backend(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	const struct packet *packet = &scratch->packet;
	struct lb_request request = {};
	__u64 word, cluster;
	struct device *device;

	if (!has_dsr_from)
		return STEP_DROP;
	device = bpf_map_lookup_elem(&devices, &scratch->device);
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
 * --- Connections that another node has opened. ---
 *
 * All nodes select alike with Maglev. So a packet of such a connection goes to the backend that this node would select,
 * on the backend's node. That node knows the connection, or resets it.
 */

/* The kernel's state of a listening socket. */
#define SOCKET_LISTENING 10

/*
 * Whether the segment belongs to a connection of a process of this node. Such a connection may use an address of the
 * node that is also a frontend's.
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
 * Selects for an unknown client where all nodes select alike. So it is the backend that the other node selected, unless
 * the list has changed since.
 */
INLINE bool select_as_peers(struct scratch *scratch, struct lb_request *request, __u64 *word)
{
	__u64 cluster;

	set_client_address(&request->client, &scratch->packet.tuple.source);
	*word = read_packet_list_word(scratch, request, &cluster);
	return uses_maglev(*word) && word_count(*word) && !is_source_denied(scratch, request, cluster) &&
	       select_by_hash(request, *word, maglev_hash(request, scratch->packet.tuple.source.port));
}

/* Saves the backend on another node that a SYN of this client would get. `false`: there is none. */
INLINE bool find_peer_backend(struct scratch *scratch, struct lb_request *request, bool v4)
{
	__u64 word;

	if (claims_node_source(&scratch->packet, v4) || !select_as_peers(scratch, request, &word))
		return false;
	scratch->affinity_flag = 0;
	scratch->backend = request->backend;
	save_selection(scratch, request, word, v4);
	return scratch->may_encap;
}

/* Sends a packet to the node of that backend, without opening a flow. */
INLINE enum step encap_stateless(struct scratch *scratch)
{
	scratch->number = NO_FLOW;
	scratch->translated = scratch->packet.tuple;
	scratch->translated.destination = scratch->backend;
	return STEP_ENCAP;
}

/*
 * Whether a packet goes to the backend that a SYN of this client would get. The backend's node knows the connection, or
 * resets it. The packet goes encapsulated or not at all, because otherwise the backend would not see the client's
 * address. No packet follows a reset, so a reset opens no flow.
 */
INLINE enum step adopt_flow(struct scratch *scratch, bool v4)
{
	bool is_reset = scratch->packet.flags & TCP_RST;
	struct lb_request request = {};

	set_request(&request, &scratch->packet.tuple, v4);
	if (!find_dialled_frontend(&request))
		return STEP_PASS;
	scratch->is_adopted = find_peer_backend(scratch, &request, v4) && !(is_reset && scratch->flags & DEVICE_IPSEC);
	if (scratch->is_adopted && is_reset)
		return encap_stateless(scratch);
	if (scratch->is_adopted)
		return are_flows_frozen() ? STEP_DROP : STEP_OPEN_FLOW;
	pass_unknown_segment(scratch, &request);
	return STEP_PASS;
}

/*
 * Whether an ICMP error goes to the backend that the client of the quoted reply would get. In the scratch map the
 * packet looks as if that client had sent it. Routers balance errors by other rules than packets, so an error may
 * arrive at a node that does not know the connection.
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
	    !find_dialled_frontend(&request) || is_reply_to_node(ctx, &request, tuple, v4) ||
	    !find_peer_backend(scratch, &request, v4))
		return STEP_PASS;
	return encap_stateless(scratch);
}

#endif

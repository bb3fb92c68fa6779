/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about packets of flows: from a router that cannot forward one, or from a backend with a closed port.
 *
 * Owns: the translation of the quoted packet. Reads: the error, `flow_table`, `entries4/6`. Writes: the error, the
 * scratch map, FLOW_UNREACHABLE_SEEN of a flow.
 *
 * An error quotes a packet as it was where it failed. The programs translate the quote to the packet that the sender
 * knows, so that path MTU discovery works and a client learns that its backend refuses. A client that gets another
 * backend by its next SYN does not learn that its old one is out of reach: its system would give up.
 */
#ifndef HOLDFAST_ICMP_ERROR_H
#define HOLDFAST_ICMP_ERROR_H

#include "conntrack.h"
#include "dsr_decap.h"
#include "dsr_encap.h"
#include "fast_path.h"
#include "flow_state.h"
#include "nat.h"
#include "packet.h"

INLINE bool is_icmp_error(__u8 type, bool v4)
{
	if (v4)
		return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER;
	return type && type < ICMP6_MESSAGES;
}

INLINE bool is_port_unreachable(const struct icmp_header *icmp, bool v4)
{
	return v4 ? icmp->type == ICMP_UNREACHABLE && icmp->code == ICMP_PORT_UNREACHABLE :
		    icmp->type == ICMP6_UNREACHABLE && icmp->code == ICMP6_PORT_UNREACHABLE;
}

/* Whether the error says that the destination is out of reach. That a packet is too big is no such error. */
INLINE bool is_unreachable(const struct icmp_header *icmp, bool v4)
{
	return v4 ? icmp->type == ICMP_UNREACHABLE && icmp->code != ICMP_FRAG_NEEDED : icmp->type == ICMP6_UNREACHABLE;
}

/* The packet that an error quotes. Eight bytes behind its IP header are present: the ports, and the UDP checksum. */
struct quoted {
	struct packet packet;
	/* The offset of the error's checksum. */
	__u32 sum;
	/* Whether the error says that the port is closed. */
	bool is_refusal;
	/* Whether the error says that the destination is out of reach. */
	bool is_unreachable;
};

INLINE bool parse_quoted(struct __sk_buff *skb, const struct packet *packet, struct quoted *quoted, bool v4)
{
	__u32 min_length = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct icmp_header *icmp;
	__u16 *ports;

	if (!make_readable(skb, packet->transport + sizeof(*icmp)))
		return false;
	icmp = get_header(skb, packet->transport, sizeof(*icmp));
	if (!icmp || !is_icmp_error(icmp->type, v4))
		return false;
	quoted->is_refusal = is_port_unreachable(icmp, v4);
	quoted->is_unreachable = is_unreachable(icmp, v4);
	quoted->sum = packet->transport + offsetof(struct icmp_header, checksum);
	quoted->packet.ip = packet->transport + sizeof(*icmp);
	if (!make_readable(skb, quoted->packet.ip + min_length))
		return false;
	if (v4 ? !parse4(skb, &quoted->packet) : !parse6(skb, &quoted->packet))
		return false;
	if (!is_transport(quoted->packet.tuple.transport) || quoted->packet.part == LATER_FRAGMENT ||
	    !make_readable(skb, quoted->packet.transport + 8))
		return false;
	ports = get_header(skb, quoted->packet.transport, 8);
	if (!ports)
		return false;
	quoted->packet.tuple.source.port = ports[0];
	quoted->packet.tuple.destination.port = ports[1];
	return true;
}

/*
 * Notes that a backend reports its port closed. It decides nothing, because any host can send such an error in the
 * backend's name. It helps an operator to find a fault.
 */
INLINE void note_port_unreachable(struct flow *flow, const struct packet *packet, const struct quoted *quoted)
{
	if (quoted->is_refusal && flow->transport == IPPROTO_UDP && !(flow->backend_flags & FLOW_UNREACHABLE_SEEN) &&
	    same_address(packet->tuple.source.address, flow->backend) &&
	    quoted->packet.tuple.destination.port == flow->backend_port)
		flow->backend_flags |= FLOW_UNREACHABLE_SEEN;
}

INLINE bool write_quoted(struct __sk_buff *skb, const struct quoted *quoted, const struct tuple *to, bool v4)
{
	const struct packet *packet = &quoted->packet;
	struct csum_change change = diff_tuples(&packet->tuple, to, v4);

	if (v4) {
		/* The quoted IP header has a checksum of its own, so the error's checksum stays. */
		if (!write_addresses4(skb, packet, to, change.addresses))
			return false;
	} else {
		__u32 both[8];

		copy_address(both, to->source.address);
		copy_address(both + 4, to->destination.address);
		if (bpf_skb_store_bytes(skb, packet->ip + offsetof(struct ipv6hdr, saddr), both, sizeof(both), 0) ||
		    bpf_l4_csum_replace(skb, quoted->sum, 0, csum_fold32(change.addresses), 0))
			return false;
	}
	return write_ports(skb, packet->transport, to) &&
	       !bpf_l4_csum_replace(skb, quoted->sum, 0, csum_fold32(change.ports), 0);
}

/* Writes the source and the destination of the error itself. */
INLINE bool write_outer(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u32 at_sum,
			bool v4)
{
	struct csum_change change = diff_tuples(&packet->tuple, to, v4);

	if (v4)
		return write_addresses4(skb, packet, to, change.addresses);
	return write_addresses6(skb, packet, to, change.addresses) &&
	       !bpf_l4_csum_replace(skb, at_sum, 0, csum_fold32(change.addresses), BPF_F_PSEUDO_HDR);
}

/*
 * Saves an ICMP error that belongs to no flow of this node, as if the client whose reply it quotes had sent it.
 * STEP_ADOPT_FLOW: another node may know the connection.
 */
INLINE enum step save_unknown_error(const struct __sk_buff *skb, const struct packet *packet, const struct tuple *sent)
{
	struct scratch *scratch = get_scratch();

	if (!has_dsr_from || !scratch)
		return STEP_PASS;
	scratch->packet = *packet;
	scratch->packet.tuple = *sent;
	scratch->device = skb->ifindex;
	return STEP_ADOPT_FLOW;
}

/* Sends an error to the backend's node. */
INLINE enum step encap_error(const struct packet *packet, __u32 number, __u32 serial, enum direction direction)
{
	struct scratch *scratch = get_scratch();

	if (!has_dsr_from || !scratch)
		return STEP_DROP;
	scratch->packet = *packet;
	return save_fast_path(number, serial, direction, false) == STEP_FAST_PATH ? STEP_ENCAP : STEP_DROP;
}

/*
 * Translates an error that arrives about a packet that left. It goes to that packet's sender, a backend or a client,
 * and quotes the packet as the stack has seen it.
 */
INLINE enum step icmp_error_ingress(struct __sk_buff *skb, bool is_decapsulated, bool v4)
{
	const enum step untouched = is_decapsulated ? STEP_DROP : STEP_PASS;
	struct quoted quoted = {};
	struct packet packet = {};
	struct scratch *scratch = v4 ? NULL : get_scratch();
	struct tuple tuple, on_stack, to;
	/* Calls share 512 bytes of stack, and those of IPv6 need more of it. */
	struct tuple *translated = v4 ? &on_stack : &scratch->translated;
	enum direction direction;
	struct flow *flow;
	__u32 number, serial;

	if (!v4 && !scratch)
		return untouched;
	if (!parse(skb, &packet, v4) || packet.part != WHOLE || !parse_quoted(skb, &packet, &quoted, v4))
		return untouched;
	reverse_tuple(&tuple, &quoted.packet.tuple);
	number = UNLIKELY(is_decapsulated) ? get_decap_flow(&tuple, v4) : find_ingress_flow(&tuple, v4);
	flow = get_flow(number);
	serial = flow ? READ_ONCE(flow->serial) : 0;
	direction = flow ? translate_ingress(flow, &tuple, translated, v4) : NO_DIRECTION;
	if (direction == NO_DIRECTION)
		return is_decapsulated ? untouched : save_unknown_error(skb, &packet, &tuple);
	if (UNLIKELY(is_encapsulated(flow)))
		return is_encap_disabled(skb, flow) ? STEP_DROP : encap_error(&packet, number, serial, direction);
	note_port_unreachable(flow, &packet, &quoted);
	reverse_tuple(&to, translated);
	if (!write_quoted(skb, &quoted, &to, v4))
		return STEP_DROP;
	/* The error arrived at the packet's source address on the wire. Now it goes to the packet's sender. */
	to = packet.tuple;
	copy_address(to.destination.address, translated->destination.address);
	count_packet(COUNT_ERRORS);
	if (!write_outer(skb, &packet, &to, quoted.sum, v4))
		return STEP_DROP;
	mark_translated(skb);
	return STEP_PASS;
}

/* Saves the flow whose frontend decides whether the client hears of an error. */
INLINE bool save_awaiting_flow(__u32 number)
{
	struct scratch *scratch = get_scratch();

	if (scratch)
		scratch->number = number;
	return scratch;
}

/*
 * Translates an error that leaves about a packet that arrived. It quotes the packet as its sender knows it.
 * STEP_CHECK_FRONTEND: the client hears of the error unless its next SYN goes to another backend. `is_checked`: it does
 * not.
 */
INLINE enum step icmp_error_egress(struct __sk_buff *skb, bool is_checked, bool v4)
{
	struct quoted quoted = {};
	struct packet packet = {};
	struct tuple tuple, translated, to;
	enum direction direction;
	struct flow *flow;
	__u32 *entry, number;

	if (!parse(skb, &packet, v4) || packet.part != WHOLE || !parse_quoted(skb, &packet, &quoted, v4))
		return STEP_PASS;
	reverse_tuple(&tuple, &quoted.packet.tuple);
	entry = find_entry(&tuple, ENTRY_TRANSLATED, v4);
	number = entry ? *entry : 0;
	flow = entry ? get_flow(number) : NULL;
	direction = flow ? translate_egress(flow, &tuple, &translated, v4) : NO_DIRECTION;
	if (direction == NO_DIRECTION)
		return STEP_PASS;
	if (!is_checked && quoted.is_unreachable && awaits_reply_to_syn(flow, direction) && save_awaiting_flow(number))
		return STEP_CHECK_FRONTEND;
	note_port_unreachable(flow, &packet, &quoted);
	reverse_tuple(&to, &translated);
	if (!write_quoted(skb, &quoted, &to, v4))
		return STEP_DROP;
	to = packet.tuple;
	/*
	 * The error gets the source address of all packets to that sender: the frontend's, or this node's. If a router
	 * sent the error and sees it again, it would drop an error from its own address.
	 */
	copy_address(to.source.address, translated.source.address);
	copy_address(to.destination.address, translated.destination.address);
	count_packet(COUNT_ERRORS);
	if (!write_outer(skb, &packet, &to, quoted.sum, v4))
		return STEP_DROP;
	return direction == TO_CLIENT ? finish(route_reply(skb, flow, number, v4)) : STEP_PASS;
}

#endif

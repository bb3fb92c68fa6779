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

/* Reads the quoted packet at its offset `ip`. */
INLINE bool parse_quoted_packet(struct __sk_buff *skb, struct packet *packet, bool v4)
{
	__u32 min_length = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u16 *ports;

	if (!make_readable(skb, packet->ip + min_length) || (v4 ? !parse4(skb, packet) : !parse6(skb, packet)))
		return false;
	if (!is_transport(packet->tuple.transport) || packet->part == LATER_FRAGMENT ||
	    !make_readable(skb, packet->transport + 8))
		return false;
	ports = get_header(skb, packet->transport, 8);
	if (!ports)
		return false;
	packet->tuple.source.port = ports[0];
	packet->tuple.destination.port = ports[1];
	return true;
}

INLINE bool parse_quoted(struct __sk_buff *skb, struct icmp_error *error, bool v4)
{
	const struct packet *packet = &error->packet;
	struct icmp_header *icmp;

	if (!make_readable(skb, packet->transport + sizeof(*icmp)))
		return false;
	icmp = get_header(skb, packet->transport, sizeof(*icmp));
	if (!icmp || !is_icmp_error(icmp->type, v4))
		return false;
	error->is_refusal = is_port_unreachable(icmp, v4);
	error->is_unreachable = is_unreachable(icmp, v4);
	error->sum = packet->transport + offsetof(struct icmp_header, checksum);
	error->quoted.ip = packet->transport + sizeof(*icmp);
	return parse_quoted_packet(skb, &error->quoted, v4);
}

/*
 * Reads an error and the packet that it quotes into the scratch map. A global function, as parse_packet(). `false`: it
 * is no error about a packet of a transport.
 */
INLINE bool parse_error(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct icmp_error *error;

	if (!scratch)
		return false;
	error = &scratch->error;
	error->packet.part = error->quoted.part = WHOLE;
	error->packet.id = error->packet.flags = 0;
	return parse(skb, &error->packet, v4) && error->packet.part == WHOLE && parse_quoted(skb, error, v4);
}

GLOBAL int parse_error4(struct __sk_buff *skb)
{
	return parse_error(skb, true);
}

GLOBAL int parse_error6(struct __sk_buff *skb)
{
	return parse_error(skb, false);
}

/*
 * Notes that a backend reports its port closed. It decides nothing, because any host can send such an error in the
 * backend's name. It helps an operator to find a fault.
 */
INLINE void note_port_unreachable(struct flow *flow, const struct icmp_error *error)
{
	if (error->is_refusal && flow->transport == IPPROTO_UDP && !(flow->backend_flags & FLOW_UNREACHABLE_SEEN) &&
	    same_address(error->packet.tuple.source.address, flow->backend) &&
	    error->quoted.tuple.destination.port == flow->backend_port)
		flow->backend_flags |= FLOW_UNREACHABLE_SEEN;
}

INLINE bool write_quoted(struct __sk_buff *skb, const struct icmp_error *error, const struct tuple *to, bool v4)
{
	const struct packet *packet = &error->quoted;
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
		    bpf_l4_csum_replace(skb, error->sum, 0, csum_fold32(change.addresses), 0))
			return false;
	}
	return write_ports(skb, packet->transport, to) &&
	       !bpf_l4_csum_replace(skb, error->sum, 0, csum_fold32(change.ports), 0);
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
INLINE enum step save_unknown_error(const struct __sk_buff *skb, struct scratch *scratch, const struct tuple *sent)
{
	if (!has_dsr_from)
		return STEP_PASS;
	scratch->packet = scratch->error.packet;
	scratch->packet.tuple = *sent;
	scratch->device = skb->ifindex;
	return STEP_ADOPT_FLOW;
}

/* Sends an error to the backend's node. */
INLINE enum step encap_error(struct scratch *scratch, __u32 number, __u32 serial, enum direction direction)
{
	if (!has_dsr_from)
		return STEP_DROP;
	scratch->packet = scratch->error.packet;
	return save_fast_path(number, serial, direction, false) == STEP_FAST_PATH ? STEP_ENCAP : STEP_DROP;
}

/*
 * Translates an error that arrives about a packet that left. It goes to that packet's sender, a backend or a client,
 * and quotes the packet as the stack has seen it.
 */
INLINE enum step icmp_error_ingress(struct __sk_buff *skb, bool is_decapsulated, bool v4)
{
	const enum step untouched = is_decapsulated ? STEP_DROP : STEP_PASS;
	struct scratch *scratch = get_scratch();
	struct tuple tuple, on_stack, to;
	/* Calls share 512 bytes of stack, and those of IPv6 need more of it. */
	struct tuple *translated = v4 ? &on_stack : &scratch->translated;
	const struct icmp_error *error;
	enum direction direction;
	struct flow *flow;
	__u32 number, serial;

	if (!scratch || !(v4 ? parse_error4(skb) : parse_error6(skb)))
		return untouched;
	error = &scratch->error;
	reverse_tuple(&tuple, &error->quoted.tuple);
	number = UNLIKELY(is_decapsulated) ? get_decap_flow(&tuple, v4) : find_ingress_flow(&tuple, v4);
	flow = get_flow(number);
	serial = flow ? READ_ONCE(flow->serial) : 0;
	direction = flow ? translate_ingress(flow, &tuple, translated, v4) : NO_DIRECTION;
	if (direction == NO_DIRECTION)
		return is_decapsulated ? untouched : save_unknown_error(skb, scratch, &tuple);
	if (UNLIKELY(is_encapsulated(flow)))
		return is_encap_disabled(skb, flow) ? STEP_DROP : encap_error(scratch, number, serial, direction);
	note_port_unreachable(flow, error);
	reverse_tuple(&to, translated);
	if (!write_quoted(skb, error, &to, v4))
		return STEP_DROP;
	/* The error arrived at the packet's source address on the wire. Now it goes to the packet's sender. */
	to = error->packet.tuple;
	copy_address(to.destination.address, translated->destination.address);
	count_packet(COUNT_ERRORS);
	if (!write_outer(skb, &error->packet, &to, error->sum, v4))
		return STEP_DROP;
	mark_translated(skb);
	return STEP_PASS;
}

/*
 * Translates an error that leaves about a packet that arrived. It quotes the packet as its sender knows it.
 * STEP_CHECK_FRONTEND: the client hears of the error unless its next SYN goes to another backend. `is_checked`: it does
 * not.
 */
INLINE enum step icmp_error_egress(struct __sk_buff *skb, bool is_checked, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct tuple tuple, translated, to;
	const struct icmp_error *error;
	enum direction direction;
	struct flow *flow;
	__u32 *entry, number;

	if (!scratch || !(v4 ? parse_error4(skb) : parse_error6(skb)))
		return STEP_PASS;
	error = &scratch->error;
	reverse_tuple(&tuple, &error->quoted.tuple);
	entry = find_entry(&tuple, ENTRY_TRANSLATED, v4);
	number = entry ? *entry : 0;
	flow = entry ? get_flow(number) : NULL;
	direction = flow ? translate_egress(flow, &tuple, &translated, v4) : NO_DIRECTION;
	if (direction == NO_DIRECTION)
		return STEP_PASS;
	if (!is_checked && error->is_unreachable && awaits_reply_to_syn(flow, direction)) {
		scratch->number = number;
		return STEP_CHECK_FRONTEND;
	}
	note_port_unreachable(flow, error);
	reverse_tuple(&to, &translated);
	if (!write_quoted(skb, error, &to, v4))
		return STEP_DROP;
	to = error->packet.tuple;
	/*
	 * The error gets the source address of all packets to that sender: the frontend's, or this node's. If a router
	 * sent the error and sees it again, it would drop an error from its own address.
	 */
	copy_address(to.source.address, translated.source.address);
	copy_address(to.destination.address, translated.destination.address);
	count_packet(COUNT_ERRORS);
	if (!write_outer(skb, &error->packet, &to, error->sum, v4))
		return STEP_DROP;
	return direction == TO_CLIENT ? finish(route_reply(skb, flow, number, v4)) : STEP_PASS;
}

#endif

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet programs, at the devices by which other hosts and pods reach this node.
 *
 * Owns: the order of the steps, and the egress programs. Reads: everything that the headers read. Writes: packets,
 * flows and verdicts.
 *
 * The ingress program translates a client's packet to its backend. The egress program restores the address that the
 * client dialled in the reply. In between, the stack and all other programs see client and backend.
 */
#include <linux/if_packet.h>
#include "conntrack.h"
#include "dsr_decap.h"
#include "dsr_encap.h"
#include "encap_error.h"
#include "fast_path.h"
#include "flow_state.h"
#include "frag.h"
#include "icmp_error.h"
#include "ingress.h"
#include "nat.h"
#include "open_flow.h"
#include "packet.h"
#include "prefilter.h"
#include "select_backend.h"
#include "unknown_segment.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Puts these enums into BTF for the skeleton generator. No program reads it. */
const volatile struct exported_types {
	enum device_flag device_flag;
	enum entry_kind entry_kind;
	enum flow_state flow_state;
	enum flow_flag flow_flag;
	enum flow_count flow_count;
	enum drains drains;
	enum flow_part flow_part;
	enum unacked unacked;
	enum lifetime lifetime;
	enum packet_count packet_count;
} exported_types = {};

/*
 * Whether the packet has a VLAN tag. A VLAN of this node has a device of its own, which handles the packet. Number 0 is
 * a priority and no VLAN.
 */
INLINE bool is_in_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & 0xfff;
}

/*
 * Whether the packet is for another host, which a device in promiscuous mode shows: the stack drops it. At a bridge
 * port, a pod's packet to the bridge looks like that, too, because the port has another MAC address.
 */
INLINE bool is_for_another_host(const struct __sk_buff *skb)
{
	__u32 number = skb->ifindex;
	struct device *device;

	if (LIKELY(skb->pkt_type != PACKET_OTHERHOST))
		return false;
	device = bpf_map_lookup_elem(&devices, &number);
	return !device || !(device->flags & DEVICE_POD);
}

INLINE enum step step_select_backend(struct __sk_buff *skb, enum ownership ownership, bool v4)
{
	struct scratch *scratch = get_scratch();

	if (!scratch)
		return STEP_DROP;
	scratch->may_encap = scratch->is_adopted = false;
	scratch->decap_flag = has_dsr_from && ownership == DECAPSULATED ? FLOW_DECAP : 0;
	return has_dsr_from && UNLIKELY(scratch->decap_flag) ? select_decap_backend(skb, scratch, v4) :
					       select_client_backend(skb, scratch, v4);
}

INLINE enum step step_adopt_flow(bool v4)
{
	struct scratch *scratch = get_scratch();

	return scratch ? adopt_flow(scratch, v4) : STEP_PASS;
}

INLINE enum step step_adopt_error(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();

	return scratch ? adopt_error(skb, scratch, v4) : STEP_PASS;
}

INLINE enum step step_open_flow(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();

	return scratch ? open_flow(skb, scratch, v4) : STEP_PASS;
}

INLINE int step_alloc_ports(bool v4)
{
	struct scratch *scratch = get_scratch();

	return scratch ? alloc_ports(scratch, v4) : -ENOENT;
}

INLINE enum step step_commit_flow(int added, bool v4)
{
	struct scratch *scratch = get_scratch();

	return scratch ? commit_flow(scratch, added, v4) : STEP_PASS;
}

INLINE enum step step_forward_first(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();

	return scratch ? forward_first(skb, scratch, v4) : STEP_PASS;
}

/*
 * Whether a SYN or its reply opens a connection of the same two hosts without the frontend, past a closed flow. A SYN
 * through the frontend has ended that flow at ingress. A backend that has sent FIN sends no SYN on the old connection.
 * So a forged packet ends no living flow. The flow is noted before it is judged, so that exactly the judged flow ends,
 * even if another one takes the record meanwhile.
 */
INLINE bool reopens_directly(const struct flow *flow, const struct packet *packet, __u32 number,
			     enum direction direction)
{
	struct scratch *scratch = get_scratch();
	__u32 serial = READ_ONCE(flow->serial);

	if (!scratch)
		return false;
	scratch->victim = number;
	scratch->victim_serial = serial;
	flow = (const struct flow *)load_after((const __u64 *)flow, serial);
	return packet->flags & TCP_SYN && is_closed(flow) && flow->backend_flags & FLOW_FIN_SEEN &&
	       !is_snat_reply(flow, direction);
}

/* The offset of the number in the TCP header. */
#define TCP_SEQUENCE_AT 4

/*
 * Whether a RST refuses a SYN: then its number is 0 (RFC 9293, 3.10.7.1). The RST of a connection has that number once
 * in four billion times, so what ends a connection reaches the client, even if a stranger has sent a SYN on it.
 */
INLINE bool refuses_syn(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 sequence;

	return packet->flags & TCP_ACK &&
	       !bpf_skb_load_bytes(skb, packet->transport + TCP_SEQUENCE_AT, &sequence, sizeof(sequence)) && !sequence;
}

/*
 * Whether a backend that is no more in the frontend's list accepts or refuses a new connection. Then the old connection
 * is over, and the client's repeated SYN goes to a backend of the list. The flow shows that the client has sent a new
 * SYN, so a backend's repeated SYN does not count. An SCTP backend replies to any host: see track_sctp_backend().
 */
INLINE bool replies_for_other_backend(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow,
				      __u32 number, enum direction direction, bool v4)
{
	return awaits_reply_to_syn(flow, direction) && (packet->flags & TCP_SYN || refuses_syn(skb, packet)) &&
	       (v4 ? is_frontend_moved4(number) : is_frontend_moved6(number));
}

/*
 * Whether this packet proves that the client receives what its backend sends. A backend accepts any SYN, also a forged
 * one, and replies to a forged segment. It sends data or FIN after the client has acknowledged a number that only a
 * real client knows. Over SCTP everything but the reply to an INIT follows the cookie. Over UDP a reply is all the
 * proof that there is.
 */
INLINE bool proves_client(struct __sk_buff *skb, const struct packet *packet)
{
	if (packet->tuple.transport == IPPROTO_UDP)
		return true;
	if (packet->part != WHOLE || (packet->flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return false;
	return packet->tuple.transport == IPPROTO_SCTP || has_data(skb, packet->ip, packet->transport);
}

INLINE enum step follow_egress(struct __sk_buff *skb, const struct packet *packet, __u32 number, struct flow *flow,
			       bool v4)
{
	struct tuple to;
	enum direction direction = translate_egress(flow, &packet->tuple, &to, v4);

	if (direction == NO_DIRECTION)
		return STEP_PASS;
	if (must_wait_for_table(packet))
		return STEP_DROP;
	if (UNLIKELY(flow->state == FLOW_OPENING) && may_be_foreign(flow, packet, direction))
		return STEP_PASS;
	if (UNLIKELY(packet->flags & (TCP_SYN | TCP_RST))) {
		if (reopens_directly(flow, packet, number, direction))
			return PASS_AND_END_FLOW;
		if (replies_for_other_backend(skb, packet, flow, number, direction, v4))
			return DROP_AND_END_FLOW;
	}
	if (direction != TO_CLIENT) {
		mark_snat_used(flow);
		return finish(nat_or_drop(skb, packet, &to, v4));
	}
	note_reply(flow, number, packet, v4);
	if (UNLIKELY(is_decap_syn_ack(flow, packet)))
		clamp_mss(skb, packet->transport, encap_header_size(v4));
	if (UNLIKELY(needs_client_save(flow)) && proves_client(skb, packet))
		save_client(number);
	if (nat_or_drop(skb, packet, &to, v4) != TC_ACT_UNSPEC)
		return STEP_DROP;
	return finish(route_reply(skb, flow, number, v4));
}

INLINE enum step egress_lookup(struct __sk_buff *skb, bool v4)
{
	int result = v4 ? parse_packet4(skb, ENTRY_TRANSLATED) : parse_packet6(skb, ENTRY_TRANSLATED);
	struct scratch *scratch = get_scratch();
	const struct packet *packet;
	struct flow *flow;
	__u32 *entry, number;

	if (result == PARSE_ICMP)
		return STEP_ICMP_ERROR;
	if (result != PARSE_OK || !scratch)
		return STEP_PASS;
	packet = &scratch->packet;
	entry = find_entry(&packet->tuple, ENTRY_TRANSLATED, v4);
	number = entry ? *entry : 0;
	flow = entry ? get_flow(number) : NULL;
	if (LIKELY(!flow)) {
		note_node_datagram(packet, v4);
		return STEP_PASS;
	}
	if (UNLIKELY(packet->part == FIRST_FRAGMENT))
		save_fragment(packet, ENTRY_TRANSLATED);
	return follow_egress(skb, packet, number, flow, v4);
}

/*
 * --- The reply of a local pod whose flow has a fast path. ---
 *
 * Any other packet goes on as it is. The egress program sees each packet that may end a flow or open one, as it does
 * for replies through the stack.
 */

/* Makes a pod's reply follow its flow. */
INLINE enum step follow_pod_egress(struct __sk_buff *skb, const struct packet *packet, __u32 number, struct flow *flow,
				   bool v4)
{
	__u32 serial = READ_ONCE(flow->serial);
	struct tuple to;

	if (translate_egress(flow, &packet->tuple, &to, v4) != TO_CLIENT || !is_from_fast_path_device(flow, skb))
		return STEP_PASS;
	if (must_wait_for_table(packet))
		return STEP_DROP;
	if (UNLIKELY(flow->state == FLOW_OPENING) && may_be_foreign(flow, packet, TO_CLIENT))
		return STEP_PASS;
	return save_fast_path(number, serial, TO_CLIENT, may_skip_egress(flow, packet, TO_CLIENT));
}

INLINE enum step pod_egress_lookup(struct __sk_buff *skb, bool v4)
{
	int result = v4 ? parse_packet4(skb, ENTRY_TRANSLATED) : parse_packet6(skb, ENTRY_TRANSLATED);
	struct scratch *scratch = get_scratch();
	const struct packet *packet;
	struct flow *flow;
	__u32 *entry, number;

	if (result != PARSE_OK || !scratch)
		return STEP_PASS;
	packet = &scratch->packet;
	entry = packet->part == WHOLE ? find_entry(&packet->tuple, ENTRY_TRANSLATED, v4) : NULL;
	number = entry ? *entry : 0;
	flow = entry ? get_flow(number) : NULL;
	return flow ? follow_pod_egress(skb, packet, number, flow, v4) : STEP_PASS;
}

/* The steps as global functions, for each family. */
#define STEPS(family, v4)                                                             \
	GLOBAL int ingress_lookup##family(struct __sk_buff *skb, __u32 ownership)     \
	{                                                                             \
		return ingress_lookup(skb, ownership, v4);                            \
	}                                                                             \
	GLOBAL int select_backend##family(struct __sk_buff *skb, __u32 ownership)     \
	{                                                                             \
		return step_select_backend(skb, ownership, v4);                       \
	}                                                                             \
	GLOBAL int has_local_socket##family(struct __sk_buff *skb)                    \
	{                                                                             \
		return has_local_socket(skb, v4);                                     \
	}                                                                             \
	GLOBAL int adopt_flow##family(void)                                           \
	{                                                                             \
		return step_adopt_flow(v4);                                           \
	}                                                                             \
	GLOBAL int adopt_error##family(struct __sk_buff *skb)                         \
	{                                                                             \
		return step_adopt_error(skb, v4);                                     \
	}                                                                             \
	GLOBAL int open_flow##family(struct __sk_buff *skb)                           \
	{                                                                             \
		return step_open_flow(skb, v4);                                       \
	}                                                                             \
	GLOBAL int alloc_ports##family(void)                                          \
	{                                                                             \
		return step_alloc_ports(v4);                                          \
	}                                                                             \
	GLOBAL int commit_flow##family(int added)                                     \
	{                                                                             \
		return step_commit_flow(added, v4);                                   \
	}                                                                             \
	GLOBAL int forward_first##family(struct __sk_buff *skb)                       \
	{                                                                             \
		return step_forward_first(skb, v4);                                   \
	}                                                                             \
	GLOBAL int fast_path_first##family(struct __sk_buff *skb)                     \
	{                                                                             \
		return fast_path_first(skb, v4);                                      \
	}                                                                             \
	GLOBAL int fast_path##family(struct __sk_buff *skb)                           \
	{                                                                             \
		return fast_path(skb, v4);                                            \
	}                                                                             \
	GLOBAL int reject##family(struct __sk_buff *skb)                              \
	{                                                                             \
		return reject(skb, v4);                                               \
	}                                                                             \
	GLOBAL int egress_lookup##family(struct __sk_buff *skb)                       \
	{                                                                             \
		return egress_lookup(skb, v4);                                        \
	}                                                                             \
	GLOBAL int pod_egress_lookup##family(struct __sk_buff *skb)                   \
	{                                                                             \
		return pod_egress_lookup(skb, v4);                                    \
	}                                                                             \
	GLOBAL int icmp_error_ingress##family(struct __sk_buff *skb, __u32 ownership) \
	{                                                                             \
		return icmp_error_ingress(skb, ownership == DECAPSULATED, v4);        \
	}                                                                             \
	GLOBAL int encap##family(struct __sk_buff *skb)                               \
	{                                                                             \
		return encap(skb, v4);                                                \
	}                                                                             \
	GLOBAL int decap##family(struct __sk_buff *skb)                               \
	{                                                                             \
		return decap(skb, v4);                                                \
	}                                                                             \
	GLOBAL int icmp_error_egress##family(struct __sk_buff *skb, __u32 is_checked) \
	{                                                                             \
		return icmp_error_egress(skb, is_checked, v4);                        \
	}                                                                             \
	GLOBAL int find_unknown_segment##family(struct __sk_buff *skb)                \
	{                                                                             \
		return find_unknown_segment(skb, v4);                                 \
	}                                                                             \
	GLOBAL int reset_unknown_segment##family(struct __sk_buff *skb)               \
	{                                                                             \
		return reset_unknown_segment(skb, v4);                                \
	}

STEPS(4, true)
STEPS(6, false)

/* A step of its own: on older kernels, ending a flow and finding one take more than 512 bytes of stack together. */
INLINE void end_victim(bool v4)
{
	const struct scratch *scratch = get_scratch();

	if (scratch)
		end_flow(scratch->victim, scratch->victim_serial, v4);
}

/*
 * Sends a client's first packet to the backend, past the stack or through it. A decapsulated packet goes through the
 * stack, which shows the client to conntrack.
 */
INLINE enum step forward_new_flow(struct __sk_buff *skb, enum ownership ownership, bool v4)
{
	int verdict = TC_ACT_UNSPEC;

	if (LIKELY(ownership != DECAPSULATED))
		verdict = v4 ? fast_path_first4(skb) : fast_path_first6(skb);
	if (verdict != TC_ACT_UNSPEC)
		return finish(verdict);
	return v4 ? forward_first4(skb) : forward_first6(skb);
}

/* Handles a segment without a flow: it belongs to a process here, or maybe to a connection of another node. */
INLINE enum step adopt_unless_local(struct __sk_buff *skb, bool v4)
{
	if (!(v4 ? has_local_socket4(skb) : has_local_socket6(skb)))
		return v4 ? adopt_flow4() : adopt_flow6();
	count_packet(COUNT_MIDSTREAM);
	return STEP_PASS;
}

/* The same for an ICMP error about a reply without a flow. */
INLINE enum step adopt_error_unless_local(struct __sk_buff *skb, bool v4)
{
	if (v4 ? has_local_socket4(skb) : has_local_socket6(skb))
		return STEP_PASS;
	return v4 ? adopt_error4(skb) : adopt_error6(skb);
}

/* Takes a client's first packet through its steps. */
INLINE int handle_new_client(struct __sk_buff *skb, enum ownership ownership, bool v4)
{
	enum step next = v4 ? select_backend4(skb, ownership) : select_backend6(skb, ownership);

	if (UNLIKELY(next == STEP_ADOPT_FLOW) && has_dsr_from)
		next = adopt_unless_local(skb, v4);
	if (!v4 && next == STEP_OPEN_FLOW && has_dsr_from)
		check_encap_mtu6(skb);
	if (next == STEP_OPEN_FLOW)
		next = v4 ? open_flow4(skb) : open_flow6(skb);
	if (next == STEP_COMMIT_FLOW)
		next = v4 ? commit_flow4(alloc_ports4()) : commit_flow6(alloc_ports6());
	if (next == STEP_FORWARD_FIRST)
		next = forward_new_flow(skb, ownership, v4);
	if (next == STEP_INGRESS_LOOKUP) {
		ownership = ownership == UNPARSED ? MAYBE_OURS : ownership;
		next = v4 ? ingress_lookup4(skb, ownership) : ingress_lookup6(skb, ownership);
	}
	if (UNLIKELY(ownership == DECAPSULATED) && (next == STEP_ENCAP || next == STEP_SELECT_BACKEND))
		return get_verdict(drop_decap(COUNT_NOT_LOCAL));
	if (next == STEP_FAST_PATH)
		next = finish(v4 ? fast_path4(skb) : fast_path6(skb));
	if (UNLIKELY(next == STEP_ENCAP) && has_dsr_from)
		next = v4 ? encap4(skb) : encap6(skb);
	if (next == STEP_REJECT)
		next = finish(v4 ? reject4(skb) : reject6(skb));
	if (UNLIKELY(next == STEP_RESET_UNKNOWN_SEGMENT) && has_dsr_from)
		next = finish(v4 ? reset_unknown_segment4(skb) : reset_unknown_segment6(skb));
	if (UNLIKELY(next == DROP_AND_END_FLOW))
		end_victim(v4);
	return to_verdict(next);
}

/* Sends a further packet of a flow encapsulated, or ends the flow. */
INLINE int encap_or_end(struct __sk_buff *skb, bool v4)
{
	enum step next = v4 ? encap4(skb) : encap6(skb);

	if (LIKELY(next != DROP_AND_END_FLOW))
		return get_verdict(next);
	end_victim(v4);
	return TC_ACT_SHOT;
}

/* Takes a packet that may be ours through its steps. */
INLINE int handle_ingress(struct __sk_buff *skb, enum ownership ownership, bool v4)
{
	enum step next = v4 ? ingress_lookup4(skb, ownership) : ingress_lookup6(skb, ownership);

	if (LIKELY(is_finished(next)))
		return get_verdict(next);
	if (next == STEP_NOT_OURS)
		return ownership == DECAPSULATED ? get_verdict(drop_decap(COUNT_DECAP_UNKNOWN)) : TC_ACT_UNSPEC;
	if (next == STEP_FAST_PATH)
		return v4 ? fast_path4(skb) : fast_path6(skb);
	if (next == STEP_ICMP_ERROR && has_dsr_from && ownership != DECAPSULATED)
		next = handle_encap_error(skb, v4);
	if (next == STEP_ICMP_ERROR)
		next = v4 ? icmp_error_ingress4(skb, ownership) : icmp_error_ingress6(skb, ownership);
	if (UNLIKELY(next == STEP_ADOPT_FLOW) && has_dsr_from)
		next = adopt_error_unless_local(skb, v4);
	if (UNLIKELY(next == STEP_ENCAP))
		return has_dsr_from && ownership != DECAPSULATED ? encap_or_end(skb, v4) : TC_ACT_SHOT;
	return is_finished(next) ? get_verdict(next) : handle_new_client(skb, ownership, v4);
}

INLINE int ingress(struct __sk_buff *skb, bool v4)
{
	enum ownership ownership = v4 ? prefilter_ingress4(skb) : prefilter_ingress6(skb);
	enum decap_result result;

	if (LIKELY(ownership == NOT_OURS))
		return TC_ACT_UNSPEC;
	if (UNLIKELY(ownership == UNPARSED) && has_dsr_from) {
		result = v4 ? decap4(skb) : decap6(skb);
		if (result == DECAP_DROP)
			return TC_ACT_SHOT;
		if (result == DECAP_DONE)
			ownership = DECAPSULATED;
	}
	return handle_ingress(skb, ownership, v4);
}

/* Whether the frontend of the flow that icmp_error_egress() has saved leads to other backends. */
INLINE bool is_saved_frontend_moved(bool v4)
{
	const struct scratch *scratch = get_scratch();

	return scratch && (v4 ? is_frontend_moved4(scratch->number) : is_frontend_moved6(scratch->number));
}

/*
 * Translates an ICMP error for a client, or drops it. The steps are separate, because IPv6 would need more than 512
 * bytes of stack for both together.
 */
INLINE int handle_error_egress(struct __sk_buff *skb, bool v4)
{
	enum step next = v4 ? icmp_error_egress4(skb, false) : icmp_error_egress6(skb, false);

	if (LIKELY(next != STEP_CHECK_FRONTEND))
		return get_verdict(next);
	if (is_saved_frontend_moved(v4))
		return TC_ACT_SHOT;
	return to_verdict(v4 ? icmp_error_egress4(skb, true) : icmp_error_egress6(skb, true));
}

INLINE int egress(struct __sk_buff *skb, bool v4)
{
	enum segment_action action;
	enum step next;

	if (skb->tc_index == MARK_TRANSLATED) {
		skb->tc_index = 0;
		return TC_ACT_UNSPEC;
	}
	if (UNLIKELY(has_unknown_segment())) {
		action = v4 ? find_unknown_segment4(skb) : find_unknown_segment6(skb);
		if (action == SEGMENT_RESET)
			return v4 ? reset_unknown_segment4(skb) : reset_unknown_segment6(skb);
		if (action == SEGMENT_DROP)
			return count_unanswerable(TC_ACT_SHOT);
	}
	if (LIKELY(v4 ? is_foreign_egress4(skb) : is_foreign_egress6(skb)))
		return TC_ACT_UNSPEC;
	next = v4 ? egress_lookup4(skb) : egress_lookup6(skb);
	if (LIKELY(is_finished(next)))
		return get_verdict(next);
	if (next == STEP_ICMP_ERROR)
		return handle_error_egress(skb, v4);
	end_victim(v4);
	return next == PASS_AND_END_FLOW ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

INLINE int pod_egress(struct __sk_buff *skb, bool v4)
{
	enum step next;

	if (LIKELY(v4 ? is_foreign_pod_egress4(skb) : is_foreign_pod_egress6(skb)))
		return TC_ACT_UNSPEC;
	next = v4 ? pod_egress_lookup4(skb) : pod_egress_lookup6(skb);
	if (next == STEP_FAST_PATH)
		return v4 ? fast_path4(skb) : fast_path6(skb);
	return get_verdict(next);
}

/* Hands a packet in once more that was translated behind a bridge port. */
INLINE int reinject_at_bridge(struct __sk_buff *skb, int verdict)
{
	return UNLIKELY(skb->tc_index == MARK_TRANSLATED) && verdict == TC_ACT_UNSPEC ?
		       bpf_redirect(skb->ifindex, BPF_F_INGRESS) :
		       verdict;
}

SEC("tc")
int packet_in(struct __sk_buff *skb)
{
	int verdict = TC_ACT_UNSPEC;

	if (is_in_vlan(skb) || is_for_another_host(skb))
		return TC_ACT_UNSPEC;
	if (UNLIKELY(skb->tc_index == MARK_TRANSLATED)) {
		skb->tc_index = 0;
		return TC_ACT_UNSPEC;
	}
	if (has_dsr_from && UNLIKELY(skb->tc_index & MARK_SPLIT) && !take_rest(skb))
		return TC_ACT_SHOT;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		verdict = ingress(skb, true);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		verdict = ingress(skb, false);
	return reinject_at_bridge(skb, verdict);
}

SEC("tc")
int packet_out(struct __sk_buff *skb)
{
	if (is_in_vlan(skb))
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return egress(skb, true);
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? egress(skb, false) : TC_ACT_UNSPEC;
}

/* At the device of a local pod, for its replies. */
SEC("tc")
int packet_back(struct __sk_buff *skb)
{
	if (is_in_vlan(skb) || skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return pod_egress(skb, true);
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? pod_egress(skb, false) : TC_ACT_UNSPEC;
}

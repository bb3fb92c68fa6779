// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet programs, at the devices by which others reach this node: on its way in a client's packet is sent to a
 * backend, on its way out the answer gets the address that the client dialled. In between the stack and all other
 * programs see client and backend.
 */
#include <linux/if_packet.h>
#include "conntrack.h"
#include "dsr_decap.h"
#include "dsr_encap.h"
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

/* Forces these enums into BTF, so that the skeleton generator sees them. No program reads it. */
const volatile struct told {
	enum device_flag device_flag;
	enum leg leg;
	enum flow_state flow_state;
	enum heard heard;
	enum flow_count flow_count;
	enum drains drains;
	enum flow_part flow_part;
	enum waits waits;
	enum lifetime lifetime;
	enum packet_count packet_count;
} told_to_daemon = {};

/*
 * Whether the packet is of a VLAN. A VLAN that this node is in has a device of its own, and the packet is looked at
 * there. The number 0 is a priority and no VLAN.
 */
INLINE bool is_of_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & 0xfff;
}

/*
 * A device that shows all that passes by shows what others get too: the stack drops that. At the port of a bridge what
 * a pod sends to the bridge looks so as well, because the port has another hardware address.
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

INLINE int choose_backend(struct __sk_buff *skb, enum whose whose, bool v4)
{
	struct arrival *arrival = the_arrival();

	if (!arrival)
		return SHOT;
	arrival->may_wrap = arrival->joins = false;
	arrival->came_wrapped = knows_nodes && whose == TAKEN_OUT ? CAME_WRAPPED : 0;
	return UNLIKELY(arrival->came_wrapped) ? arrive_by_node(skb, arrival, v4) : arrive(skb, arrival, v4);
}

INLINE int join_others(bool v4)
{
	struct arrival *arrival = the_arrival();

	return arrival ? join(arrival, v4) : NEXT;
}

INLINE int join_others_error(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();

	return arrival ? join_error(skb, arrival, v4) : NEXT;
}

INLINE int open(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();

	return arrival ? begin(skb, arrival, v4) : NEXT;
}

INLINE int find_ports(bool v4)
{
	struct arrival *arrival = the_arrival();

	return arrival ? give_ports(arrival, v4) : -ENOENT;
}

INLINE int end_open(int added, bool v4)
{
	struct arrival *arrival = the_arrival();

	return arrival ? settle(arrival, added, v4) : NEXT;
}

INLINE int send_on_first(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();

	return arrival ? send_first(skb, arrival, v4) : NEXT;
}

/*
 * Whether a SYN, or its answer, begins a connection of the same two past a flow that is over. A client that begins anew
 * through the frontend has ended the flow with that, and a backend that has said FIN says SYN no more: what it repeats
 * of an opening, it says before. So a stranger ends no flow here that lives. The flow is noted before it is looked at:
 * so the flow that is judged is the one that is ended, also where the record has become another flow's meanwhile.
 */
INLINE bool begins_past(const struct flow *flow, __u32 number, enum direction direction)
{
	struct arrival *arrival = the_arrival();
	__u32 serial = READ_ONCE(flow->serial);

	if (!arrival)
		return false;
	arrival->rival = number;
	arrival->rival_serial = serial;
	flow = (const struct flow *)after((const __u64 *)flow, serial);
	return is_over(flow) && flow->of_backend & HEARD_FIN && !is_by_own_port(flow, direction);
}

/*
 * Whether a backend that its frontend no longer leads to agrees to a new connection: then the former one is over, and
 * the client, which asks again, is led to where the frontend leads now. The flow tells that the client has asked anew,
 * so what a backend repeats of an opening does not count here. By SCTP a backend answers any host that asks: see
 * hear_associated().
 */
INLINE bool agrees_for_another(const struct flow *flow, __u32 number, enum direction direction, bool v4)
{
	return direction == TO_CLIENT && flow->transport == IPPROTO_TCP && flow->state == FLOW_OPEN &&
	       flow->waits == WAITS_FOR_SYN &&
	       (v4 ? leads_elsewhere4(number) : leads_elsewhere6(number));
}

/*
 * Whether this packet of a backend proves that its client hears the backend. A backend agrees to any SYN, also to a
 * forged one, and answers a forged segment that does not fit; the data that it sends, or the end of them, comes after
 * the client has acknowledged a number that only a client which hears can know. By SCTP all but the answer to an INIT
 * comes after the cookie. By UDP an answer is all that there is.
 */
INLINE bool is_proof_of_hearing(struct __sk_buff *skb, const struct packet *packet)
{
	if (packet->tuple.transport == IPPROTO_UDP)
		return true;
	if (packet->part != WHOLE || (packet->flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return false;
	return packet->tuple.transport == IPPROTO_SCTP || has_data(skb, packet->ip, packet->transport);
}

INLINE int follow_out(struct __sk_buff *skb, const struct packet *packet, __u32 number, struct flow *flow, bool v4)
{
	struct tuple to;
	enum direction direction = turn_out(flow, &packet->tuple, &to, v4);

	if (direction == NOWHERE)
		return NEXT;
	if (must_wait(packet))
		return SHOT;
	if (UNLIKELY(flow->state == FLOW_OPENING) && is_of_others(flow, packet, direction))
		return NEXT;
	if (UNLIKELY(packet->flags & TCP_SYN)) {
		if (begins_past(flow, number, direction))
			return IS_PAST;
		if (agrees_for_another(flow, number, direction, v4))
			return IS_FOREIGN;
	}
	if (direction != TO_CLIENT) {
		note_sent(flow);
		return write(skb, packet, &to, v4);
	}
	note_answer(flow, number, packet, v4);
	if (UNLIKELY(agrees_by_node(flow, packet)))
		shorten_segments(skb, packet->transport, size_of_wrapper(v4));
	if (UNLIKELY(is_to_come_back(flow)) && is_proof_of_hearing(skb, packet))
		remember_client(number);
	if (write(skb, packet, &to, v4) != NEXT)
		return SHOT;
	return way_of_answer(skb, flow, number, v4);
}

INLINE int leave(struct __sk_buff *skb, bool v4)
{
	struct packet packet = {};
	struct flow *flow;
	__u32 *entry, number;

	if (!parse(skb, &packet, v4))
		return NEXT;
	if (UNLIKELY(is_icmp(&packet, v4)))
		return IS_ERROR;
	if (!know_ports(skb, &packet, LEG_THROUGH, v4))
		return NEXT;
	entry = find_entry(&packet.tuple, LEG_THROUGH, v4);
	number = entry ? *entry : 0;
	flow = entry ? flow_at(number) : NULL;
	if (LIKELY(!flow)) {
		note_own_talk(&packet, v4);
		return NEXT;
	}
	if (UNLIKELY(packet.part == FIRST_FRAGMENT))
		remember_fragment(&packet, LEG_THROUGH);
	return follow_out(skb, &packet, number, flow, v4);
}

/*
 * What a pod of this node answers to a client of a flow that takes the shortcut.
 *
 * A packet that is of no such flow goes on as it is. The program at the device by which the answer leaves looks at all
 * that may end a flow or begin another one, as it does with answers that come through the stack.
 */

/* Lets a pod's answer follow its flow. */
INLINE int follow_back(struct __sk_buff *skb, const struct packet *packet, __u32 number, struct flow *flow, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial);
	struct tuple to;

	if (turn_out(flow, &packet->tuple, &to, v4) != TO_CLIENT || !comes_back(flow, skb))
		return NEXT;
	if (must_wait(packet))
		return SHOT;
	if (UNLIKELY(flow->state == FLOW_OPENING) && is_of_others(flow, packet, TO_CLIENT))
		return NEXT;
	return note_passage(packet, number, serial, TO_CLIENT, is_known_there(flow, packet, TO_CLIENT));
}

INLINE int back(struct __sk_buff *skb, bool v4)
{
	struct packet packet = {};
	struct flow *flow;
	__u32 *entry, number;

	if (!parse(skb, &packet, v4) || packet.part != WHOLE || !know_ports(skb, &packet, LEG_THROUGH, v4))
		return NEXT;
	entry = find_entry(&packet.tuple, LEG_THROUGH, v4);
	number = entry ? *entry : 0;
	flow = entry ? flow_at(number) : NULL;
	return flow ? follow_back(skb, &packet, number, flow, v4) : NEXT;
}

/* The steps, for each family. */
#define STEPS(family, v4)                                          \
	ALONE int come##family(struct __sk_buff *skb, __u32 whose) \
	{                                                          \
		return come(skb, whose, v4);                       \
	}                                                          \
	ALONE int choose##family(struct __sk_buff *skb, __u32 whose) \
	{                                                          \
		return choose_backend(skb, whose, v4);             \
	}                                                          \
	ALONE int is_of_process##family(struct __sk_buff *skb)     \
	{                                                          \
		return is_of_process(skb, v4);                     \
	}                                                          \
	ALONE int join##family(void)                               \
	{                                                          \
		return join_others(v4);                            \
	}                                                          \
	ALONE int join_error##family(struct __sk_buff *skb)        \
	{                                                          \
		return join_others_error(skb, v4);                 \
	}                                                          \
	ALONE int open##family(struct __sk_buff *skb)              \
	{                                                          \
		return open(skb, v4);                              \
	}                                                          \
	ALONE int find_ports##family(void)                         \
	{                                                          \
		return find_ports(v4);                             \
	}                                                          \
	ALONE int settle##family(int added)                        \
	{                                                          \
		return end_open(added, v4);                        \
	}                                                          \
	ALONE int send_first##family(struct __sk_buff *skb)        \
	{                                                          \
		return send_on_first(skb, v4);                     \
	}                                                          \
	ALONE int pass_first##family(struct __sk_buff *skb)        \
	{                                                          \
		return pass_first(skb, v4);                        \
	}                                                          \
	ALONE int pass##family(struct __sk_buff *skb)              \
	{                                                          \
		return pass(skb, v4);                              \
	}                                                          \
	ALONE int answer##family(struct __sk_buff *skb)            \
	{                                                          \
		return answer(skb, v4);                            \
	}                                                          \
	ALONE int leave##family(struct __sk_buff *skb)             \
	{                                                          \
		return leave(skb, v4);                             \
	}                                                          \
	ALONE int back##family(struct __sk_buff *skb)              \
	{                                                          \
		return back(skb, v4);                              \
	}                                                          \
	ALONE int error_in##family(struct __sk_buff *skb, __u32 whose) \
	{                                                          \
		return error_in(skb, whose == TAKEN_OUT, v4);      \
	}                                                          \
	ALONE int wrap##family(struct __sk_buff *skb)              \
	{                                                          \
		return wrap(skb, v4);                              \
	}                                                          \
	ALONE int unwrap##family(struct __sk_buff *skb)            \
	{                                                          \
		return unwrap(skb, v4);                            \
	}                                                          \
	ALONE int error_out##family(struct __sk_buff *skb)         \
	{                                                          \
		return error_out(skb, v4);                         \
	}                                                          \
	ALONE int find_stray##family(struct __sk_buff *skb)        \
	{                                                          \
		return find_stray(skb, v4);                        \
	}                                                          \
	ALONE int deny##family(struct __sk_buff *skb)              \
	{                                                          \
		return deny(skb, v4);                              \
	}

STEPS(4, true)
STEPS(6, false)

/* A step of its own: to end a flow and to find it take more than 512 bytes together, as older kernels count them. */
INLINE void end_rival(bool v4)
{
	const struct arrival *arrival = the_arrival();

	if (arrival)
		end(arrival->rival, arrival->rival_serial, v4);
}

/*
 * Sends a client's first packet to the backend, past the stack or through it. What came by another node goes through
 * the stack, which tells tracking of the client.
 */
INLINE int send(struct __sk_buff *skb, enum whose whose, bool v4)
{
	int verdict = NEXT;

	if (LIKELY(whose != TAKEN_OUT))
		verdict = v4 ? pass_first4(skb) : pass_first6(skb);
	if (verdict != NEXT)
		return verdict;
	return v4 ? send_first4(skb) : send_first6(skb);
}

/* What becomes of a segment of no flow that may be of a connection by another node, or of one of a process here. */
INLINE int join_unless_here(struct __sk_buff *skb, bool v4)
{
	if (!(v4 ? is_of_process4(skb) : is_of_process6(skb)))
		return v4 ? join4() : join6();
	count_packet(COUNT_MIDWAY);
	return NEXT;
}

/* The same of an error about an answer of no flow. */
INLINE int join_error_unless_here(struct __sk_buff *skb, bool v4)
{
	if (v4 ? is_of_process4(skb) : is_of_process6(skb))
		return NEXT;
	return v4 ? join_error4(skb) : join_error6(skb);
}

/* Takes a client's first packet through its steps. */
INLINE int let_arrive(struct __sk_buff *skb, enum whose whose, bool v4)
{
	int next = v4 ? choose4(skb, whose) : choose6(skb, whose);

	if (UNLIKELY(next == MAY_JOIN) && knows_nodes)
		next = join_unless_here(skb, v4);
	if (!v4 && next == CHOSEN && knows_nodes)
		look_for_room6(skb);
	if (next == CHOSEN)
		next = v4 ? open4(skb) : open6(skb);
	if (next == BEGUN)
		next = v4 ? settle4(find_ports4()) : settle6(find_ports6());
	if (next == GOES_ON)
		next = send(skb, whose, v4);
	if (next == FOLLOWS) {
		whose = whose == UNKNOWN ? MAYBE_OURS : whose;
		next = v4 ? come4(skb, whose) : come6(skb, whose);
	}
	if (UNLIKELY(whose == TAKEN_OUT) && (next == WRAPS || next == ARRIVES))
		return go_astray(COUNT_NOT_HERE);
	if (next == MAY_PASS)
		next = v4 ? pass4(skb) : pass6(skb);
	if (UNLIKELY(next == WRAPS) && knows_nodes)
		next = v4 ? wrap4(skb) : wrap6(skb);
	if (next == REFUSED)
		next = v4 ? answer4(skb) : answer6(skb);
	if (UNLIKELY(next == IS_UNKNOWN_HERE))
		next = v4 ? deny4(skb) : deny6(skb);
	if (UNLIKELY(next == IS_FOREIGN))
		end_rival(v4);
	return next >= ARRIVES ? SHOT : next;
}

/* Sends a further packet of a flow to another node as it came, or ends the flow. */
INLINE int send_to_node(struct __sk_buff *skb, bool v4)
{
	int next = v4 ? wrap4(skb) : wrap6(skb);

	if (LIKELY(next != IS_FOREIGN))
		return next;
	end_rival(v4);
	return SHOT;
}

/* Takes a packet through its steps that may be a client's. */
INLINE int look_closer(struct __sk_buff *skb, enum whose whose, bool v4)
{
	int next;

	next = v4 ? come4(skb, whose) : come6(skb, whose);
	if (LIKELY(next < ARRIVES))
		return next;
	if (next == IS_LEFT_ALONE)
		return whose == TAKEN_OUT ? go_astray(COUNT_ASTRAY) : NEXT;
	if (next == MAY_PASS)
		return v4 ? pass4(skb) : pass6(skb);
	if (next == IS_ERROR)
		next = v4 ? error_in4(skb, whose) : error_in6(skb, whose);
	if (UNLIKELY(next == MAY_JOIN) && knows_nodes)
		next = join_error_unless_here(skb, v4);
	if (UNLIKELY(next == WRAPS))
		return knows_nodes && whose != TAKEN_OUT ? send_to_node(skb, v4) : SHOT;
	return next < ARRIVES ? next : let_arrive(skb, whose, v4);
}

INLINE int in(struct __sk_buff *skb, bool v4)
{
	enum whose whose = v4 ? comes_to4(skb) : comes_to6(skb);
	int out;

	if (LIKELY(whose == NOBODYS))
		return NEXT;
	if (UNLIKELY(whose == UNKNOWN) && knows_nodes) {
		out = v4 ? unwrap4(skb) : unwrap6(skb);
		if (out == SHOT)
			return SHOT;
		if (out == IS_TAKEN_OUT)
			whose = TAKEN_OUT;
	}
	return look_closer(skb, whose, v4);
}

INLINE int out(struct __sk_buff *skb, bool v4)
{
	int next;

	if (skb->tc_index == IS_WRITTEN) {
		skb->tc_index = 0;
		return NEXT;
	}
	if (UNLIKELY(any_stray())) {
		next = v4 ? find_stray4(skb) : find_stray6(skb);
		if (next == DENIABLE)
			return v4 ? deny4(skb) : deny6(skb);
		if (next == DROPPED)
			return SHOT;
	}
	if (LIKELY(v4 ? leaves_from_nobody4(skb) : leaves_from_nobody6(skb)))
		return NEXT;
	next = v4 ? leave4(skb) : leave6(skb);
	if (LIKELY(next < ARRIVES))
		return next;
	if (next == IS_ERROR)
		return v4 ? error_out4(skb) : error_out6(skb);
	end_rival(v4);
	return next == IS_PAST ? NEXT : SHOT;
}

INLINE int back_in(struct __sk_buff *skb, bool v4)
{
	int next;

	if (LIKELY(v4 ? comes_from_nobody4(skb) : comes_from_nobody6(skb)))
		return NEXT;
	next = v4 ? back4(skb) : back6(skb);
	if (next == MAY_PASS)
		return v4 ? pass4(skb) : pass6(skb);
	return next;
}

/* Hands a packet in once more that was rewritten behind the port of a bridge. */
INLINE int hand_in(struct __sk_buff *skb, int verdict)
{
	return UNLIKELY(skb->tc_index == IS_WRITTEN) && verdict == NEXT ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) :
									  verdict;
}

SEC("tc")
int packet_in(struct __sk_buff *skb)
{
	int verdict = NEXT;

	if (is_of_vlan(skb) || is_for_another_host(skb))
		return NEXT;
	if (UNLIKELY(skb->tc_index == IS_WRITTEN)) {
		skb->tc_index = 0;
		return NEXT;
	}
	if (skb->protocol == bpf_htons(ETH_P_IP))
		verdict = in(skb, true);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		verdict = in(skb, false);
	return hand_in(skb, verdict);
}

SEC("tc")
int packet_out(struct __sk_buff *skb)
{
	if (is_of_vlan(skb))
		return NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return out(skb, true);
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? out(skb, false) : NEXT;
}

/* At a device that pods of this node are behind, for what they answer. */
SEC("tc")
int packet_back(struct __sk_buff *skb)
{
	if (is_of_vlan(skb) || skb->pkt_type != PACKET_HOST)
		return NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return back_in(skb, true);
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? back_in(skb, false) : NEXT;
}

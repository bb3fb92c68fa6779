/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Selects the backend for a client's first packet.
 *
 * Owns: the frontend of a packet, the source ranges, the admission of a client, and its refusal. Reads: frontends,
 * lists, `devices`, `source_ranges4/6`, `packet_settings`, sockets. Writes: the scratch map, `own_talks`, counts,
 * refusals.
 *
 * The order is kube-proxy's: first the source ranges, then whether there is a backend.
 */
#ifndef HOLDFAST_SELECT_BACKEND_H
#define HOLDFAST_SELECT_BACKEND_H

#include "affinity.h"
#include "dsr.h"
#include "events.h"
#include "fib.h"
#include "lb.h"
#include "nat.h"
#include "packet.h"
#include "reject.h"
#include "unknown_segment.h"

/* The kernel's state of a connected UDP socket. */
#define SOCKET_CONNECTED 1

/* --- The frontend. --- */

/*
 * A packet to a loopback address finds no frontend. Only local processes dial one, and the programs do not see their
 * packets. The kernel drops a packet from outside to a loopback address, and would not drop it after a translation.
 */
INLINE __u64 find_target(const struct lb_request *request)
{
	__u64 target;

	if (is_loopback(request))
		return TARGET_NONE;
	target = find_exact_target(request);
	if (target != TARGET_NONE)
		return target;
	if (!has_node_port(request->frontend.port) || !is_node_address(request))
		return TARGET_NONE;
	return find_node_port_target(request);
}

INLINE bool find_frontend(struct lb_request *request)
{
	return set_target(request, find_target(request));
}

/*
 * Finds what the packet in the scratch map dials. A global function, so the verifier follows a caller once, and not
 * once for each way in which a frontend is found.
 */
INLINE __u64 find_dialled_target(bool v4)
{
	const struct scratch *scratch = get_scratch();
	struct lb_request request = {};

	if (!scratch)
		return TARGET_NONE;
	set_request(&request, &scratch->packet.tuple, v4);
	return find_target(&request);
}

GLOBAL __u64 find_dialled_target4(void)
{
	return find_dialled_target(true);
}

GLOBAL __u64 find_dialled_target6(void)
{
	return find_dialled_target(false);
}

/* Finds the frontend that a flow's client dials. A global function, as find_dialled_target(). */
INLINE __u64 find_flow_target(__u32 number, bool v4)
{
	const struct flow *flow = get_flow(number);
	struct lb_request request = {};
	struct tuple tuple;

	if (!flow)
		return TARGET_NONE;
	original_tuple(&tuple, flow);
	set_request(&request, &tuple, v4);
	return find_target(&request);
}

GLOBAL __u64 find_flow_target4(__u32 number)
{
	return find_flow_target(number, true);
}

GLOBAL __u64 find_flow_target6(__u32 number)
{
	return find_flow_target(number, false);
}

/* As find_frontend(), for a flow. */
INLINE bool find_flow_frontend(struct lb_request *request, __u32 number, bool v4)
{
	request->v4 = v4;
	return set_target(request, v4 ? find_flow_target4(number) : find_flow_target6(number));
}

/* As find_frontend(), for a request of the packet in the scratch map, which keeps the target. */
INLINE bool find_dialled_frontend(struct lb_request *request)
{
	struct scratch *scratch = get_scratch();
	__u64 target = request->v4 ? find_dialled_target4() : find_dialled_target6();

	if (scratch)
		scratch->target = target;
	return set_target(request, target);
}

INLINE void set_socket_tuple(struct bpf_sock_tuple *socket, const struct tuple *tuple, bool v4)
{
	if (v4) {
		socket->ipv4.saddr = tuple->source.address[3];
		socket->ipv4.daddr = tuple->destination.address[3];
		socket->ipv4.sport = tuple->source.port;
		socket->ipv4.dport = tuple->destination.port;
	} else {
		copy_address(socket->ipv6.saddr, tuple->source.address);
		copy_address(socket->ipv6.daddr, tuple->destination.address);
		socket->ipv6.sport = tuple->source.port;
		socket->ipv6.dport = tuple->destination.port;
	}
}

/*
 * Whether a UDP socket of this network namespace is connected to the packet's sender. `ctx`: a packet, or an XDP frame.
 */
INLINE bool is_for_connected_socket(void *ctx, const struct tuple *tuple, bool v4)
{
	struct bpf_sock_tuple key = {};
	struct bpf_sock *socket;
	bool connected;

	set_socket_tuple(&key, tuple, v4);
	socket = bpf_sk_lookup_udp(ctx, &key, v4 ? sizeof(key.ipv4) : sizeof(key.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	connected = socket->state == SOCKET_CONNECTED;
	bpf_sk_release(socket);
	return connected;
}

INLINE void set_talk_key(struct talk_key *key, const struct endpoint *source, const struct endpoint *destination)
{
	copy_address(key->source, source->address);
	copy_address(key->destination, destination->address);
	key->source_port = source->port;
	key->destination_port = destination->port;
}

/* Whether the source of the packet in the scratch map is a frontend. A global function, as `ingress_lookup`. */
INLINE bool is_source_frontend(bool v4)
{
	const struct scratch *scratch = get_scratch();
	struct lb_request request = { .v4 = v4, .transport = IPPROTO_UDP };

	if (!scratch)
		return false;
	request.frontend = scratch->packet.tuple.source;
	return find_frontend(&request);
}

GLOBAL int is_source_frontend4(void)
{
	return is_source_frontend(true);
}

GLOBAL int is_source_frontend6(void)
{
	return is_source_frontend(false);
}

/* Whether this node sends a datagram from the endpoint of a frontend. */
INLINE bool is_node_datagram(const struct packet *packet, bool v4)
{
	const struct endpoint *source = &packet->tuple.source;
	struct scratch *scratch = get_scratch();

	if (!scratch || packet->tuple.transport != IPPROTO_UDP || !has_node_port(source->port) ||
	    !(v4 ? is_node_address4(source->address[3]) : is_node_address6(source->address)))
		return false;
	return v4 ? is_source_frontend4() : is_source_frontend6();
}

/*
 * Remembers a datagram that this node sends from a node port's number, or from a load balancer's port at an address of
 * the node, as long as conntrack would. The sender expects the reply there: a process, or a pod that the kernel
 * masquerades. Over TCP a reply is no SYN, and over SCTP no INIT. A datagram does not show what it is.
 */
INLINE void note_node_datagram(const struct packet *packet, bool v4)
{
	const struct endpoint *source = &packet->tuple.source;
	struct tuple reply;
	struct talk_key key;
	__u32 now, *sent_at;

	if (!is_node_datagram(packet, v4))
		return;
	/* A reply to a client of the frontend. The program of another device has translated it already. */
	reverse_tuple(&reply, &packet->tuple);
	if (find_entry(&reply, ENTRY_WIRE, v4))
		return;
	set_talk_key(&key, &packet->tuple.destination, source);
	now = seconds();
	sent_at = bpf_map_lookup_elem(&own_talks, &key);
	if (!sent_at)
		bpf_map_update_elem(&own_talks, &key, &now, BPF_ANY);
	else if (*sent_at != now)
		*sent_at = now;
}

INLINE bool answers_node_datagram(const struct tuple *tuple)
{
	struct talk_key key;
	__u32 *sent_at;

	set_talk_key(&key, &tuple->source, &tuple->destination);
	sent_at = bpf_map_lookup_elem(&own_talks, &key);
	return sent_at && (__s32)(seconds() - *sent_at) <= LIFE_UDP;
}

INLINE bool is_reply_to_node(void *ctx, const struct lb_request *request, const struct tuple *tuple, bool v4)
{
	return tuple->transport == IPPROTO_UDP && is_node_address(request) &&
	       (answers_node_datagram(tuple) || is_for_connected_socket(ctx, tuple, v4));
}

/* --- Source ranges and refusals. --- */

INLINE bool is_in_source_ranges(const struct lb_request *request, const __u32 *source, bool v4)
{
	if (v4) {
		struct source4_key key = { .prefix = 64, .port_index = request->port_index, .address = source[3] };

		return bpf_map_lookup_elem(&source_ranges4, &key) != NULL;
	} else {
		struct source6_key key = { .prefix = 160, .port_index = request->port_index };

		copy_address(key.address, source);
		return bpf_map_lookup_elem(&source_ranges6, &key) != NULL;
	}
}

/*
 * The word of the list for the packet's sender. The cluster word has the flags that choose the list. It goes to
 * `cluster`.
 */
INLINE __u64 read_packet_list_word(const struct scratch *scratch, struct lb_request *request, __u64 *cluster)
{
	struct port *port = lookup_port(request);
	__u32 policy_flag;

	request->scope = SCOPE_CLUSTER;
	*cluster = 0;
	if (UNLIKELY(!port))
		return 0;
	*cluster = READ_ONCE(port->cluster);
	policy_flag = is_internal(request) ? WORD_INTERNAL_LOCAL : WORD_EXTERNAL_LOCAL;
	if (!(word_flags(*cluster) & policy_flag) || (!is_internal(request) && scratch->from_pod))
		return *cluster;
	request->scope = SCOPE_LOCAL;
	return READ_ONCE(*load_after(&port->local, *cluster));
}

INLINE void report_packet_refusal(const struct scratch *scratch, const struct lb_request *request, enum verdict verdict,
				  enum reason reason)
{
	struct refusal *refusal = reserve_refusal(request, verdict, STAGE_PACKET, 0);

	if (!refusal)
		return;
	refusal->cgroup = refusal->netns = 0;
	refusal->process = refusal->thread = 0;
	__builtin_memset(refusal->comm, 0, sizeof(refusal->comm));
	copy_address(refusal->source, scratch->packet.tuple.source.address);
	refusal->source_port = scratch->packet.tuple.source.port;
	refusal->reason = reason;
	refusal->device = scratch->device;
	bpf_ringbuf_submit(refusal, 0);
}

INLINE enum step drop_client(const struct scratch *scratch, const struct lb_request *request, enum reason reason,
			     enum packet_count counted)
{
	count_verdict(request, VERDICT_DROPPED);
	count_packet(counted);
	report_packet_refusal(scratch, request, VERDICT_DROPPED, reason);
	return STEP_DROP;
}

INLINE enum step refuse_client(const struct scratch *scratch, const struct lb_request *request, __u64 word)
{
	enum verdict verdict = empty_list_verdict(word);

	count_verdict(request, verdict);
	report_packet_refusal(scratch, request, verdict, REASON_NO_BACKEND);
	return verdict == VERDICT_DROPPED ? STEP_DROP : STEP_REJECT;
}

/* Whether no backend serves the client, after as many attempts. It selects none. */
INLINE bool has_no_backend(const struct scratch *scratch, struct lb_request *request, __u64 *word)
{
	__u64 cluster;

	for (int attempt = 0; attempt < 2; attempt++) {
		*word = read_packet_list_word(scratch, request, &cluster);
		if (word_count(*word) || !find_dialled_frontend(request))
			return false;
	}
	return true;
}

/* Whether the source is an address of this node. No outside host has one, and the stack drops such a packet. */
INLINE bool claims_node_source(const struct packet *packet, bool v4)
{
	const __u32 *address = packet->tuple.source.address;

	return v4 ? is_node_address4(address[3]) : is_node_address6(address);
}

/* Whether the client is outside of the load balancer's source ranges. */
INLINE bool is_source_denied(const struct scratch *scratch, const struct lb_request *request, __u64 cluster)
{
	return word_flags(cluster) & WORD_SOURCES && request->kind == LOAD_BALANCER &&
	       !is_in_source_ranges(request, scratch->packet.tuple.source.address, request->v4);
}

/*
 * Leaves a packet to the stack whose connection may be another proxy's. If a SYN would be dropped, a segment gets no
 * RST either.
 */
INLINE void pass_unknown_segment(const struct scratch *scratch, struct lb_request *request)
{
	__u64 cluster, word = read_packet_list_word(scratch, request, &cluster);
	bool is_dropped = !word_count(word) && empty_list_verdict(word) == VERDICT_DROPPED;

	count_packet(COUNT_MIDSTREAM);
	save_unknown_segment(is_dropped || is_source_denied(scratch, request, cluster));
}

/* Whether the packet may open a flow. */
INLINE bool opens_flow(const struct packet *packet)
{
	return !is_connection_oriented(packet->tuple.transport) ||
	       (packet->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

/*
 * Whether the programs are draining: existing flows go on, and the stack gets new clients, so another proxy can take
 * them.
 */
INLINE bool is_draining(void)
{
	__u32 zero = 0;
	const struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);

	return settings && READ_ONCE(settings->drains) == DRAINS;
}

/* What a packet without a flow is, by its destination and its source. */
enum admission {
	/* No client: this device serves none, or the source is this node's. */
	ADMIT_NO_CLIENT,
	/* The programs are draining: another proxy may take the client. */
	ADMIT_DRAINING,
	/* The destination is no frontend. */
	ADMIT_NO_FRONTEND,
	/* The packet opens no flow. */
	ADMIT_MIDSTREAM,
	/* A reply to a socket of this node. */
	ADMIT_REPLY,
	/* A client outside of the source ranges. */
	ADMIT_DENIED,
	/* A datagram whose source is a frontend. */
	ADMIT_LOOP,
	/* A client of the frontend. */
	ADMIT_OK,
};

/* Whether an author chooses the address of such a frontend. Such an address may be a client's. */
INLINE bool is_author_address(__u8 kind)
{
	return kind == EXTERNAL_IP || kind == CLUSTER_SET_IP;
}

/* Finds the frontend at the source of the datagram in the scratch map. A global function, as find_dialled_target(). */
INLINE __u64 find_source_target(bool v4)
{
	const struct scratch *scratch = get_scratch();
	struct lb_request request = { .transport = IPPROTO_UDP, .v4 = v4 };

	if (!scratch)
		return TARGET_NONE;
	request.frontend = scratch->packet.tuple.source;
	return find_exact_target(&request);
}

GLOBAL __u64 find_source_target4(void)
{
	return find_source_target(true);
}

GLOBAL __u64 find_source_target6(void)
{
	return find_source_target(false);
}

/*
 * Whether a datagram's source is a frontend. The reply would be a query to that frontend, whose reply would be a query
 * to this one, without end (a land attack). A host with a frontend's address serves there, and sends no queries from
 * it. An address that an author chose counts only within its namespace. Otherwise an author could cut off the clients
 * of other namespaces.
 */
INLINE bool has_frontend_source(const struct tuple *tuple, const struct lb_request *dialled, bool v4)
{
	struct lb_request source = {};

	if (tuple->transport != IPPROTO_UDP)
		return false;
	return set_target(&source, v4 ? find_source_target4() : find_source_target6()) &&
	       (!is_author_address(source.kind) || source.share == dialled->share);
}

/* Judges a packet without a flow. XDP uses the same rules, so `ctx` is a frame or a packet. */
INLINE enum admission admit_client(void *ctx, struct scratch *scratch, struct lb_request *request, bool v4)
{
	const struct packet *packet = &scratch->packet;
	struct device *device = bpf_map_lookup_elem(&devices, &scratch->device);
	__u64 cluster;

	scratch->flags = device ? device->flags : 0;
	note_bridge(scratch->flags);
	scratch->from_pod = scratch->flags & DEVICE_POD;
	set_request(request, &packet->tuple, v4);
	if (scratch->flags & DEVICE_BACKENDS)
		return ADMIT_NO_CLIENT;
	if (UNLIKELY(is_draining()))
		return find_dialled_frontend(request) ? ADMIT_DRAINING : ADMIT_NO_CLIENT;
	if (!find_dialled_frontend(request))
		return ADMIT_NO_FRONTEND;
	if (!opens_flow(packet))
		return ADMIT_MIDSTREAM;
	if (is_reply_to_node(ctx, request, &packet->tuple, v4))
		return ADMIT_REPLY;
	if (claims_node_source(packet, v4))
		return ADMIT_NO_CLIENT;
	if (UNLIKELY(has_frontend_source(&packet->tuple, request, v4)))
		return ADMIT_LOOP;
	read_packet_list_word(scratch, request, &cluster);
	return is_source_denied(scratch, request, cluster) ? ADMIT_DENIED : ADMIT_OK;
}

/*
 * Whether the backend must see the client's own port. A service with policy Local asks for its clients' addresses, so
 * it gets their ports, too. A pod shares neither its address nor its ports. Only a superuser sends from below
 * TRANSLATED_PORTS_FIRST, and some servers require that. If the backend is the dialled endpoint, nothing else of the
 * packet changes, and a later datagram of the backend arrives as if there were no proxy. Without branches, as
 * is_reversed().
 */
INLINE __u32 must_keep_port(const struct scratch *scratch, const struct lb_request *request, bool v4)
{
	__u32 is_reserved = ((__u32)bpf_ntohs(scratch->packet.tuple.source.port) - TRANSLATED_PORTS_FIRST) >> 31;

	return scratch->from_pod | (request->scope == SCOPE_LOCAL) | is_reserved |
	       same_endpoint(&scratch->packet.tuple.destination, scratch->backend.address, scratch->backend.port, v4);
}

/* Saves the selection for the next steps. */
INLINE void save_selection(struct scratch *scratch, const struct lb_request *request, __u64 word, bool v4)
{
	scratch->reply_flag = scratch->flags & DEVICE_REPLY_BY_FRONTEND ? FLOW_REPLY_BY_FRONTEND : 0;
	scratch->port_index = request->port_index;
	scratch->share = request->share;
	scratch->is_local = request->scope == SCOPE_LOCAL;
	scratch->keeps_port = must_keep_port(scratch, request, v4);
	scratch->may_encap = can_encap(scratch, request, word, v4);
}

/* --- Ports that no service has. --- */

/*
 * Whether the kernel would forward the packet. Like kube-proxy, the programs refuse only forwarded packets: the owner
 * of a local address refuses for itself.
 */
INLINE bool is_forwarded(struct __sk_buff *skb, bool v4)
{
	const struct scratch *scratch = get_scratch();
	const struct tuple *tuple;

	if (!scratch)
		return false;
	tuple = &scratch->packet.tuple;
	return lookup_egress(skb, tuple->source.address, tuple->destination.address, tuple->source.port,
			     tuple->destination.port, tuple->transport, v4);
}

GLOBAL int is_forwarded4(struct __sk_buff *skb)
{
	return is_forwarded(skb, true);
}

GLOBAL int is_forwarded6(struct __sk_buff *skb)
{
	return is_forwarded(skb, false);
}

/*
 * Whether a process of this node listens for the packet in the scratch map, maybe at any address. A pod dials services
 * by this node alone, so it is refused also where the node has no route. The kernel does not tell such an address from
 * a local one, where it refuses by itself unless a process listens.
 */
INLINE bool has_listener(struct __sk_buff *skb, bool v4)
{
	const struct scratch *scratch = get_scratch();
	struct bpf_sock_tuple key = {};
	struct bpf_sock *socket = NULL;
	__u32 size = v4 ? sizeof(key.ipv4) : sizeof(key.ipv6);

	if (!scratch || scratch->packet.tuple.transport == IPPROTO_SCTP)
		return true;
	set_socket_tuple(&key, &scratch->packet.tuple, v4);
	if (scratch->packet.tuple.transport == IPPROTO_TCP)
		socket = bpf_skc_lookup_tcp(skb, &key, size, BPF_F_CURRENT_NETNS, 0);
	else
		socket = bpf_sk_lookup_udp(skb, &key, size, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	bpf_sk_release(socket);
	return true;
}

GLOBAL int has_listener4(struct __sk_buff *skb)
{
	return has_listener(skb, true);
}

GLOBAL int has_listener6(struct __sk_buff *skb)
{
	return has_listener(skb, false);
}

/*
 * Handles a packet to no frontend. If its destination is a cluster IP, the service has no such port, and the client is
 * rejected.
 */
INLINE enum step reject_unknown_port(struct __sk_buff *skb, const struct scratch *scratch,
				     const struct lb_request *request)
{
	const struct packet *packet = &scratch->packet;

	if (!is_cluster_ip(request) || !opens_flow(packet) || claims_node_source(packet, request->v4) ||
	    (!(request->v4 ? is_forwarded4(skb) : is_forwarded6(skb)) &&
	     (!scratch->from_pod || (request->v4 ? has_listener4(skb) : has_listener6(skb)))))
		return STEP_PASS;
	report_packet_refusal(scratch, request, VERDICT_REFUSED, REASON_NO_SUCH_PORT);
	return STEP_REJECT;
}

/* Handles a packet without a flow that gets no backend. */
INLINE enum step handle_unadmitted(struct __sk_buff *skb, struct scratch *scratch, struct lb_request *request,
				   enum admission admission)
{
	switch (admission) {
	case ADMIT_NO_FRONTEND:
		return reject_unknown_port(skb, scratch, request);
	case ADMIT_MIDSTREAM:
		if (may_adopt_flow(scratch))
			return STEP_ADOPT_FLOW;
		pass_unknown_segment(scratch, request);
		return STEP_PASS;
	case ADMIT_DRAINING:
		save_unknown_segment(true);
		return STEP_PASS;
	case ADMIT_REPLY:
		count_packet(COUNT_NODE_REPLIES);
		return STEP_PASS;
	case ADMIT_DENIED:
		save_xdp_drop_hint(skb, scratch->flags);
		return drop_client(scratch, request, REASON_SOURCE, COUNT_SOURCE);
	case ADMIT_LOOP:
		save_xdp_drop_hint(skb, scratch->flags);
		count_packet(COUNT_LOOP);
		return STEP_DROP;
	default:
		return STEP_PASS;
	}
}

/* As admit_client(), for the steps of a packet. */
INLINE enum admission step_admit_client(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct lb_request request = {};

	return scratch ? admit_client(skb, scratch, &request, v4) : ADMIT_NO_CLIENT;
}

GLOBAL int admit_client4(struct __sk_buff *skb)
{
	return step_admit_client(skb, true);
}

GLOBAL int admit_client6(struct __sk_buff *skb)
{
	return step_admit_client(skb, false);
}

/*
 * Tries to select a backend for an admitted client. STEP_SELECT_BACKEND: there was none, and this is not the last
 * attempt.
 */
INLINE enum step try_select(struct __sk_buff *skb, bool is_last, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct lb_request request = {};
	__u64 word, cluster;

	if (!scratch)
		return STEP_DROP;
	set_request(&request, &scratch->packet.tuple, v4);
	set_target(&request, scratch->target);
	if (is_last)
		find_dialled_frontend(&request);
	word = read_packet_list_word(scratch, &request, &cluster);
	request.scope = hide_value(scratch, request.scope);
	if (word_count(word) && select_for_packet(&request, word, scratch)) {
		save_selection(scratch, &request, word, v4);
		return STEP_OPEN_FLOW;
	}
	if (!is_last)
		return STEP_SELECT_BACKEND;
	save_xdp_drop_hint(skb, scratch->flags);
	return refuse_client(scratch, &request, word);
}

GLOBAL int try_select4(struct __sk_buff *skb, __u32 is_last)
{
	return try_select(skb, is_last, true);
}

GLOBAL int try_select6(struct __sk_buff *skb, __u32 is_last)
{
	return try_select(skb, is_last, false);
}

/* Selects the client's backend, if it gets one. It looks twice, as the socket programs do: see translate(). */
INLINE enum step select_client_backend(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	enum admission admission = v4 ? admit_client4(skb) : admit_client6(skb);
	struct lb_request request = {};
	enum step next;

	if (admission == ADMIT_OK) {
		if (are_flows_frozen())
			return STEP_DROP;
		next = v4 ? try_select4(skb, false) : try_select6(skb, false);
		if (UNLIKELY(next == STEP_SELECT_BACKEND))
			next = v4 ? try_select4(skb, true) : try_select6(skb, true);
		return next;
	}
	set_request(&request, &scratch->packet.tuple, v4);
	set_target(&request, scratch->target);
	return handle_unadmitted(skb, scratch, &request, admission);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The first packet of a client: the frontend that it dialled, whether the client may dial that, which backend it gets,
 * and the flow that every packet after it follows. The order is kube-proxy's: sources first, then whether any backend
 * is there.
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

/* The state that the kernel gives a UDP socket that is connected. */
#define CONNECTED 1

/* --- What the client dialled. --- */

INLINE void dial_of(struct dial *dial, const struct tuple *tuple, bool v4)
{
	dial->to = tuple->destination;
	dial->transport = tuple->transport;
	dial->v4 = v4;
}

/*
 * A packet to a loopback address finds no frontend: only this host's own processes dial one, and their packets do not
 * come here. The kernel drops a packet that comes from elsewhere to a loopback address, and would not drop it once it
 * were translated.
 */
INLINE bool find_frontend(struct dial *dial)
{
	if (means_loopback(dial))
		return false;
	if (find_exact(dial))
		return true;
	return any_node_port(dial->to.port) && is_node(dial) && find_node_port(dial);
}

INLINE void socket_tuple(struct bpf_sock_tuple *socket, const struct tuple *tuple, bool v4)
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
 * Whether the packet is for a UDP socket of this network namespace that is connected to the packet's sender. `ctx`: the
 * packet, or the frame that no packet was made of yet.
 */
INLINE bool is_for_connected_socket(void *ctx, const struct tuple *tuple, bool v4)
{
	struct bpf_sock_tuple asked = {};
	struct bpf_sock *socket;
	bool connected;

	socket_tuple(&asked, tuple, v4);
	socket = bpf_sk_lookup_udp(ctx, &asked, v4 ? sizeof(asked.ipv4) : sizeof(asked.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	connected = socket->state == CONNECTED;
	bpf_sk_release(socket);
	return connected;
}

INLINE void talk_key_of(struct talk_key *key, const struct place *source, const struct place *destination)
{
	copy_address(key->source, source->address);
	copy_address(key->destination, destination->address);
	key->source_port = source->port;
	key->destination_port = destination->port;
}

/* Whether a frontend is at the place that a packet in the map of arrivals comes from. A step of its own, as `come`. */
INLINE bool leaves_frontend(bool v4)
{
	const struct arrival *arrival = the_arrival();
	struct dial dial = { .v4 = v4, .transport = IPPROTO_UDP };

	if (!arrival)
		return false;
	dial.to = arrival->packet.tuple.source;
	return find_frontend(&dial);
}

ALONE int leaves_frontend4(void)
{
	return leaves_frontend(true);
}

ALONE int leaves_frontend6(void)
{
	return leaves_frontend(false);
}

/* Whether this node says something from a place that is also a frontend. */
INLINE bool is_own_talk(const struct packet *packet, bool v4)
{
	const struct place *own = &packet->tuple.source;
	struct arrival *arrival = the_arrival();

	if (!arrival || packet->tuple.transport != IPPROTO_UDP || !any_node_port(own->port) ||
	    !(v4 ? is_node4(own->address[3]) : is_node6(own->address)))
		return false;
	arrival->packet.tuple = packet->tuple;
	return v4 ? leaves_frontend4() : leaves_frontend6();
}

/*
 * Keeps in mind what this node says from a node port's number, or from a load balancer's that is at an address of this
 * node, for as long as conntrack would: the sender waits for its answers there, be it a process of this node or a pod
 * that the kernel has given this node's address. Over TCP an answer is no SYN, and over SCTP no INIT; a datagram does
 * not say what it is.
 */
INLINE void note_own_talk(const struct packet *packet, bool v4)
{
	const struct place *own = &packet->tuple.source;
	struct tuple answered;
	struct talk_key key;
	__u32 now, *said;

	if (!is_own_talk(packet, v4))
		return;
	/*
	 * An answer to a client of the frontend, which the program at another device has already translated and sent
	 * here.
	 */
	turned(&answered, &packet->tuple);
	if (find_entry(&answered, LEG_IN, v4))
		return;
	talk_key_of(&key, &packet->tuple.destination, own);
	now = seconds();
	said = bpf_map_lookup_elem(&own_talks, &key);
	if (!said)
		bpf_map_update_elem(&own_talks, &key, &now, BPF_ANY);
	else if (*said != now)
		*said = now;
}

INLINE bool is_of_own_talk(const struct tuple *tuple)
{
	struct talk_key key;
	__u32 *said;

	talk_key_of(&key, &tuple->source, &tuple->destination);
	said = bpf_map_lookup_elem(&own_talks, &key);
	return said && (__s32)(seconds() - *said) <= LIFE_UDP;
}

INLINE bool is_answer_to_own(void *ctx, const struct dial *dial, const struct tuple *tuple, bool v4)
{
	return tuple->transport == IPPROTO_UDP && is_node(dial) &&
	       (is_of_own_talk(tuple) || is_for_connected_socket(ctx, tuple, v4));
}

/* --- Whether the client may dial that. --- */

INLINE bool is_allowed_source(const struct dial *dial, const __u32 *source, bool v4)
{
	if (v4) {
		struct source4_key key = { .prefix = 64, .port_index = dial->port_index, .address = source[3] };

		return bpf_map_lookup_elem(&source_ranges4, &key) != NULL;
	} else {
		struct source6_key key = { .prefix = 160, .port_index = dial->port_index };

		copy_address(key.address, source);
		return bpf_map_lookup_elem(&source_ranges6, &key) != NULL;
	}
}

/*
 * The word of the list that is meant for the packet's sender. The flags that decide which list that is stand in the
 * cluster word, which goes to `cluster`.
 */
INLINE __u64 read_word_for(const struct arrival *arrival, struct dial *dial, __u64 *cluster)
{
	struct port *port = port_of(dial);
	__u32 asked;

	dial->scope = SCOPE_CLUSTER;
	*cluster = 0;
	if (UNLIKELY(!port))
		return 0;
	*cluster = READ_ONCE(port->cluster);
	asked = is_internal(dial) ? WORD_INTERNAL_LOCAL : WORD_EXTERNAL_LOCAL;
	if (!(word_flags(*cluster) & asked) || (!is_internal(dial) && arrival->from_pod))
		return *cluster;
	dial->scope = SCOPE_LOCAL;
	return READ_ONCE(*after(&port->local, *cluster));
}

INLINE void note_refusal(const struct arrival *arrival, const struct dial *dial, enum verdict verdict,
			 enum reason reason)
{
	struct refusal *refusal = begin_refusal(dial, verdict, STAGE_PACKET, 0);

	if (!refusal)
		return;
	refusal->cgroup = refusal->netns = 0;
	refusal->process = refusal->thread = 0;
	__builtin_memset(refusal->comm, 0, sizeof(refusal->comm));
	copy_address(refusal->source, arrival->packet.tuple.source.address);
	refusal->source_port = arrival->packet.tuple.source.port;
	refusal->reason = reason;
	refusal->device = arrival->device;
	bpf_ringbuf_submit(refusal, 0);
}

INLINE int drop(const struct arrival *arrival, const struct dial *dial, enum reason reason, enum packet_count counted)
{
	count(dial, VERDICT_DROPPED);
	count_packet(counted);
	note_refusal(arrival, dial, VERDICT_DROPPED, reason);
	return SHOT;
}

INLINE int refuse(const struct arrival *arrival, const struct dial *dial, __u64 word)
{
	enum verdict verdict = verdict_of(word);

	count(dial, verdict);
	note_refusal(arrival, dial, verdict, REASON_NO_BACKEND);
	return verdict == VERDICT_DROPPED ? SHOT : REFUSED;
}

/* Chooses a backend, in two attempts as the programs at sockets do: see translate(). */
INLINE bool choose_twice(struct arrival *arrival, struct dial *dial, __u64 *word)
{
	__u64 cluster;

	for (int attempt = 0; attempt < 2; attempt++) {
		*word = read_word_for(arrival, dial, &cluster);
		if (word_count(*word) && choose_for_packet(dial, *word, &arrival->packet.tuple.source, &arrival->sticks))
			return true;
		if (!find_frontend(dial))
			return false;
	}
	return false;
}

/* Whether nothing serves the client, in as many attempts. Nothing is chosen. */
INLINE bool finds_nothing(const struct arrival *arrival, struct dial *dial, __u64 *word)
{
	__u64 cluster;

	for (int attempt = 0; attempt < 2; attempt++) {
		*word = read_word_for(arrival, dial, &cluster);
		if (word_count(*word) || !find_frontend(dial))
			return false;
	}
	return true;
}

/* No host outside has an address of this node, and the stack drops a packet that says so. */
INLINE bool says_to_be_node(const struct packet *packet, bool v4)
{
	const __u32 *address = packet->tuple.source.address;

	return v4 ? is_node4(address[3]) : is_node6(address);
}

/* Whether the client is outside of the ranges that the load balancer's addresses are for. */
INLINE bool is_barred(const struct arrival *arrival, const struct dial *dial, __u64 cluster)
{
	return word_flags(cluster) & WORD_SOURCES && dial->kind == LOAD_BALANCER &&
	       !is_allowed_source(dial, arrival->packet.tuple.source.address, dial->v4);
}

/* What is of a connection that may be another proxy's. Where a SYN would be dropped, it gets no answer either. */
INLINE void leave_to_stack(const struct arrival *arrival, struct dial *dial)
{
	__u64 cluster, word = read_word_for(arrival, dial, &cluster);
	bool is_dropped = !word_count(word) && verdict_of(word) == VERDICT_DROPPED;

	count_packet(COUNT_MIDWAY);
	note_stray(&arrival->packet, is_dropped || is_barred(arrival, dial, cluster));
}

/* Whether the packet begins something, as far as a packet can say that. */
INLINE bool begins(const struct packet *packet)
{
	return !makes_connections(packet->tuple.transport) ||
	       (packet->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

/*
 * Whether the programs are about to be removed: flows that clients have go on, and a client that comes now is left to
 * whatever comes next, such as another proxy.
 */
INLINE bool is_draining(void)
{
	__u32 zero = 0;
	const struct packet_settings *settings = bpf_map_lookup_elem(&packet_settings, &zero);

	return settings && READ_ONCE(settings->drains) == DRAINS;
}

/* What a packet of no flow is, by what it was sent to and who says to have sent it. */
enum admission {
	/* No client: new ones are not served here, or the packet says to be this node's own. */
	IS_NO_CLIENT,
	/* It is for no frontend. */
	IS_FOR_NONE,
	/* It begins nothing. */
	IS_MIDWAY,
	/* It answers a socket of this node. */
	IS_ANSWER,
	/* A client outside of the ranges that the frontend is for. */
	IS_BARRED,
	/* A datagram that says to come from a frontend. */
	IS_LOOP,
	/* A client that the frontend is for. */
	IS_ADMITTED,
};

/* Whether the author of a frontend of that kind chooses its address. Such an address may be a client's. */
INLINE bool is_chosen_address(__u8 kind)
{
	return kind == EXTERNAL_IP || kind == CLUSTER_SET_IP;
}

/*
 * Whether a datagram says to come from a frontend. The answer would be a question to that frontend, and its answer a
 * question to this one, without end (land). A host that has the address of a frontend serves there and asks nothing
 * from there. A frontend at an address that its author chose counts for the frontends of the same namespace alone, or
 * any author could cut off the clients of others.
 */
INLINE bool comes_from_frontend(const struct tuple *tuple, const struct dial *dialled, bool v4)
{
	struct dial source = { .transport = IPPROTO_UDP, .v4 = v4 };

	if (tuple->transport != IPPROTO_UDP)
		return false;
	source.to = tuple->source;
	return find_exact(&source) && (!is_chosen_address(source.kind) || source.share == dialled->share);
}

/*
 * Judges a packet of no flow. The program at the driver asks the same as the one behind it, so `ctx` is a frame or a
 * packet.
 */
INLINE enum admission admit(void *ctx, struct arrival *arrival, struct dial *dial, bool v4)
{
	const struct packet *packet = &arrival->packet;
	struct device *device = bpf_map_lookup_elem(&devices, &arrival->device);
	__u64 cluster;

	arrival->flags = device ? device->flags : 0;
	note_bridge(arrival->flags);
	arrival->from_pod = arrival->flags & DEVICE_POD;
	dial_of(dial, &packet->tuple, v4);
	if (arrival->flags & DEVICE_BACKENDS || is_draining())
		return IS_NO_CLIENT;
	if (!find_frontend(dial))
		return IS_FOR_NONE;
	if (!begins(packet))
		return IS_MIDWAY;
	if (is_answer_to_own(ctx, dial, &packet->tuple, v4))
		return IS_ANSWER;
	if (says_to_be_node(packet, v4))
		return IS_NO_CLIENT;
	if (UNLIKELY(comes_from_frontend(&packet->tuple, dial, v4)))
		return IS_LOOP;
	read_word_for(arrival, dial, &cluster);
	return is_barred(arrival, dial, cluster) ? IS_BARRED : IS_ADMITTED;
}

/*
 * Whether the backend sees the port that the client sends from. A service that asks for its clients' addresses (policy
 * Local) is to see their ports too, and a pod shares neither its address nor its ports. Below THROUGH_FIRST only a
 * superuser sends, and some servers ask for that. Where the backend is the very place that was dialled, nothing else of
 * the packet changes, and a datagram that the backend sends later arrives as if no proxy were there. Without branches,
 * as is_turned().
 */
INLINE __u32 keeps_port(const struct arrival *arrival, const struct dial *dial, bool v4)
{
	__u32 is_reserved = ((__u32)bpf_ntohs(arrival->packet.tuple.source.port) - THROUGH_FIRST) >> 31;

	return arrival->from_pod | (dial->scope == SCOPE_LOCAL) | is_reserved |
	       same_place(&arrival->packet.tuple.destination, dial->backend.address, dial->backend.port, v4);
}

/* Notes what was chosen for a client, for the steps that follow. */
INLINE void note_choice(struct arrival *arrival, const struct dial *dial, __u64 word, bool v4)
{
	arrival->by_address = arrival->flags & DEVICE_BY_ADDRESS ? IS_BY_ADDRESS : 0;
	arrival->backend = dial->backend;
	arrival->port_index = dial->port_index;
	arrival->share = dial->share;
	arrival->is_local = dial->scope == SCOPE_LOCAL;
	arrival->keeps_port = keeps_port(arrival, dial, v4);
	arrival->may_wrap = may_be_wrapped(arrival, dial, word, v4);
}

/* --- Ports that no service has. --- */

/* The owner of an address on this node refuses for itself: like kube-proxy, this refuses only what is sent on. */
INLINE bool is_sent_on(struct __sk_buff *skb, bool v4)
{
	const struct arrival *arrival = the_arrival();
	const struct tuple *tuple;

	if (!arrival)
		return false;
	tuple = &arrival->packet.tuple;
	return way_out(skb, tuple->source.address, tuple->destination.address, tuple->source.port,
		       tuple->destination.port, tuple->transport, v4);
}

ALONE int is_sent_on4(struct __sk_buff *skb)
{
	return is_sent_on(skb, true);
}

ALONE int is_sent_on6(struct __sk_buff *skb)
{
	return is_sent_on(skb, false);
}

/*
 * Decides what becomes of a packet that is sent to no frontend. If the client dialled the cluster IP of a service, that
 * service has no such port, and the client is refused.
 */
INLINE int miss(struct __sk_buff *skb, const struct arrival *arrival, const struct dial *dial)
{
	const struct packet *packet = &arrival->packet;

	if (!is_cluster_ip(dial) || !begins(packet) || says_to_be_node(packet, dial->v4) ||
	    !(dial->v4 ? is_sent_on4(skb) : is_sent_on6(skb)))
		return NEXT;
	note_refusal(arrival, dial, VERDICT_REFUSED, REASON_NO_SUCH_PORT);
	return REFUSED;
}

/* What is done with a packet of no flow that gets no backend in any case. */
INLINE int turn_away(struct __sk_buff *skb, struct arrival *arrival, struct dial *dial, enum admission admission)
{
	switch (admission) {
	case IS_FOR_NONE:
		return miss(skb, arrival, dial);
	case IS_MIDWAY:
		if (may_join(arrival))
			return MAY_JOIN;
		leave_to_stack(arrival, dial);
		return NEXT;
	case IS_ANSWER:
		count_packet(COUNT_OWN_SOCKET);
		return NEXT;
	case IS_BARRED:
		note_turned_away(skb, arrival->flags);
		return drop(arrival, dial, REASON_SOURCE, COUNT_SOURCE);
	case IS_LOOP:
		note_turned_away(skb, arrival->flags);
		count_packet(COUNT_LOOP);
		return SHOT;
	default:
		return NEXT;
	}
}

/* Whether the client gets a backend, and which. */
INLINE int arrive(struct __sk_buff *skb, struct arrival *arrival, bool v4)
{
	struct dial dial = {};
	enum admission admission = admit(skb, arrival, &dial, v4);
	__u64 word;

	if (admission != IS_ADMITTED)
		return turn_away(skb, arrival, &dial, admission);
	if (stand_still())
		return SHOT;
	if (!choose_twice(arrival, &dial, &word)) {
		note_turned_away(skb, arrival->flags);
		return refuse(arrival, &dial, word);
	}
	note_choice(arrival, &dial, word, v4);
	return CHOSEN;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fragments: the first one has ports, and the later ones look them up.
 *
 * Owns: `fragments`. Reads: packets. Writes: `fragments`, the scratch map, `packet_counts`.
 *
 * A program at a device cannot hold packets back, so the stack gets a later fragment that arrives before the first one.
 * If the stack forwards it unchanged, it ends: see unknown_segment.h.
 */
#ifndef HOLDFAST_FRAG_H
#define HOLDFAST_FRAG_H

#include "lb.h"
#include "packet.h"
#include "unknown_segment.h"

INLINE void set_fragment_key(struct fragment_key *key, const struct packet *packet, enum entry_kind kind)
{
	copy_address(key->source, packet->tuple.source.address);
	copy_address(key->destination, packet->tuple.destination.address);
	key->id = packet->id;
	key->transport = packet->tuple.transport;
	key->kind = kind;
	key->turn = bpf_ktime_get_ns() / NS_PER_SECOND / FRAGMENT_TURN;
}

INLINE void save_fragment(const struct packet *packet, enum entry_kind kind)
{
	struct fragment_key key;
	struct fragment_value value = {
		.source_port = packet->tuple.source.port,
		.destination_port = packet->tuple.destination.port,
	};

	set_fragment_key(&key, packet, kind);
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

/*
 * Forgets the former datagram, because another one with the same id begins. Its first fragment may be another host's.
 */
INLINE void delete_fragment(const struct packet *packet, enum entry_kind kind)
{
	struct fragment_key key;

	set_fragment_key(&key, packet, kind);
	bpf_map_delete_elem(&fragments, &key);
	key.turn--;
	bpf_map_delete_elem(&fragments, &key);
}

INLINE const struct fragment_value *find_fragment(struct fragment_key *key, __u8 transport)
{
	const struct fragment_value *value;

	key->transport = transport;
	value = bpf_map_lookup_elem(&fragments, key);
	if (value)
		return value;
	key->turn--;
	value = bpf_map_lookup_elem(&fragments, key);
	key->turn++;
	return value;
}

/*
 * Finds the first fragment of a datagram. A later IPv6 fragment may name an extension header instead of its transport.
 * Between two hosts the ids of datagrams differ, whatever the transport is.
 */
INLINE const struct fragment_value *find_first_fragment(struct fragment_key *key)
{
	const struct fragment_value *value;

	if (LIKELY(is_transport(key->transport)))
		return find_fragment(key, key->transport);
	value = find_fragment(key, IPPROTO_UDP);
	if (!value)
		value = find_fragment(key, IPPROTO_TCP);
	return value ? value : find_fragment(key, IPPROTO_SCTP);
}

/*
 * Counts a fragment to a frontend whose first fragment is unknown, and saves it. At the node's own addresses it counts
 * none, because tunnels use them, too.
 */
INLINE void note_early_fragment(const struct packet *packet, bool v4)
{
	struct lb_request request = { .v4 = v4 };

	copy_address(request.frontend.address, packet->tuple.destination.address);
	if (!may_be_frontend(&request))
		return;
	count_packet(COUNT_FRAGMENTS);
	save_unknown_segment(true);
}

/* Sets the transport and ports of the later fragment in the scratch map. A global function, as `ingress_lookup`. */
INLINE bool restore_fragment_ports(enum entry_kind kind, bool v4)
{
	struct scratch *scratch = get_scratch();
	const struct fragment_value *value;
	struct fragment_key key;

	if (!scratch)
		return false;
	set_fragment_key(&key, &scratch->packet, kind);
	value = find_first_fragment(&key);
	if (!value) {
		if (kind == ENTRY_WIRE)
			note_early_fragment(&scratch->packet, v4);
		return false;
	}
	scratch->packet.tuple.transport = key.transport;
	scratch->packet.tuple.source.port = value->source_port;
	scratch->packet.tuple.destination.port = value->destination_port;
	return true;
}

GLOBAL int restore_fragment_ports4(__u32 kind)
{
	return restore_fragment_ports(kind, true);
}

GLOBAL int restore_fragment_ports6(__u32 kind)
{
	return restore_fragment_ports(kind, false);
}

/* Whether a packet may have ports: its own, or those of its first fragment. */
INLINE bool may_have_ports(const struct packet *packet, bool v4)
{
	return LIKELY(is_transport(packet->tuple.transport)) ||
	       (!v4 && packet->part == LATER_FRAGMENT && is_extension(packet->tuple.transport));
}

/*
 * Sets the ports of the packet in the scratch map, if it has any. All fragments of a datagram have the ports of the
 * first one.
 */
INLINE bool resolve_ports(struct __sk_buff *skb, struct packet *packet, enum entry_kind kind, bool v4)
{
	if (!may_have_ports(packet, v4))
		return false;
	if (UNLIKELY(packet->part == LATER_FRAGMENT))
		return v4 ? restore_fragment_ports4(kind) : restore_fragment_ports6(kind);
	if (UNLIKELY(packet->part == FIRST_FRAGMENT))
		delete_fragment(packet, kind);
	return parse_transport(skb, packet);
}

/* What a packet is: none of ours, an ICMP message, or one with ports. */
enum parse_result { PARSE_FOREIGN, PARSE_ICMP, PARSE_OK };

/*
 * Reads a packet into the scratch map. A global function: the verifier follows what comes behind it once, and not for
 * each kind of packet.
 */
INLINE enum parse_result parse_packet(struct __sk_buff *skb, enum entry_kind kind, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct packet *packet;

	if (!scratch)
		return PARSE_FOREIGN;
	packet = &scratch->packet;
	packet->part = WHOLE;
	packet->id = packet->flags = 0;
	if (!parse(skb, packet, v4))
		return PARSE_FOREIGN;
	if (UNLIKELY(is_icmp(packet, v4)))
		return PARSE_ICMP;
	return resolve_ports(skb, packet, kind, v4) ? PARSE_OK : PARSE_FOREIGN;
}

GLOBAL int parse_packet4(struct __sk_buff *skb, __u32 kind)
{
	return parse_packet(skb, kind, true);
}

GLOBAL int parse_packet6(struct __sk_buff *skb, __u32 kind)
{
	return parse_packet(skb, kind, false);
}

#endif

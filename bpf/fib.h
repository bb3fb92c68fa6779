/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which way the kernel would send a packet on, by its own routes and rules. */
#ifndef HOLDFAST_FIB_H
#define HOLDFAST_FIB_H

#include <linux/if_packet.h>
#include "common.h"
#include "conntrack.h"
#include "packet.h"

#define FAMILY4 2
#define FAMILY6 10

/* The kernel does not say by which device: a packet gets another header on that way. No device has this number. */
#define EGRESS_UNKNOWN (~0U)

/* The device by which a packet leaves, by what the kernel says; 0: it stays on this node, or has no route. */
INLINE __u32 egress_from_fib(long found, const struct bpf_fib_lookup *route)
{
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
	    found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return route->ifindex;
	return found == BPF_FIB_LKUP_RET_UNSUPP_LWT ? EGRESS_UNKNOWN : 0;
}

/* The number of the loopback, in each network namespace. */
#define LOOPBACK_IFINDEX 1

/*
 * Asks the kernel for a way. A device that takes router advertisements is set not to forward IPv6, and programs hear no
 * way of what came by it; the stack forwards that all the same where all devices together are set to. So it is asked
 * for the way of what comes by the loopback, which is set as all are.
 */
INLINE long lookup_fib(struct __sk_buff *skb, struct bpf_fib_lookup *route)
{
	long found = bpf_fib_lookup(skb, route, sizeof(*route), 0);

	if (LIKELY(found != BPF_FIB_LKUP_RET_FWD_DISABLED) || route->family != FAMILY6)
		return found;
	route->ifindex = LOOPBACK_IFINDEX;
	return bpf_fib_lookup(skb, route, sizeof(*route), 0);
}

/* What the kernel says of the way of a packet that came by this device. */
INLINE long query_fib(struct __sk_buff *skb, struct bpf_fib_lookup *route, const __u32 *from, const __u32 *to,
		      __u16 from_port, __u16 to_port, __u8 transport, bool v4)
{
	route->family = v4 ? FAMILY4 : FAMILY6;
	route->l4_protocol = transport;
	route->sport = from_port;
	route->dport = to_port;
	route->ifindex = skb->ifindex;
	if (v4) {
		route->ipv4_src = from[3];
		route->ipv4_dst = to[3];
	} else {
		copy_address(route->ipv6_src, from);
		copy_address(route->ipv6_dst, to);
	}
	return lookup_fib(skb, route);
}

/* The device by which a packet would leave, had it come by this one: see egress_from_fib(). */
INLINE __u32 lookup_egress(struct __sk_buff *skb, const __u32 *from, const __u32 *to, __u16 from_port, __u16 to_port,
			   __u8 transport, bool v4)
{
	struct bpf_fib_lookup route = {};

	return egress_from_fib(query_fib(skb, &route, from, to, from_port, to_port, transport, v4), &route);
}

/* --- The way of answers. --- */

/* What is known of a device, as enum device_flag. */
INLINE __u32 get_device_flags(__u32 number)
{
	struct device *device = bpf_map_lookup_elem(&devices, &number);

	return device ? device->flags : 0;
}

/* Whether policies of IPsec are to see what the stack sends on, as far as that is known of the packet's device. */
INLINE bool uses_ipsec(const struct __sk_buff *skb)
{
	return get_device_flags(skb->ifindex) & DEVICE_IPSEC;
}

/*
 * What a packet bears from the one program to the other that is as it leaves the node. The second program would look it
 * up by what is written now, and by that it may be an answer of another flow: of one to a backend that is a frontend.
 * A pod that writes this into its packets has them leave as they are.
 */
#define MARK_TRANSLATED 0x6c66

/*
 * Whether a bridge is among the devices by which packets come, or go to backends: then each packet that comes is looked
 * at for that. It is noted where a flow begins, and in each second in which its client speaks; and by the daemon when
 * it loads programs, for flows of which only the answers come by a bridge.
 */
__u32 has_bridge_port;

INLINE void note_bridge(__u32 flags)
{
	if (UNLIKELY(flags & DEVICE_BRIDGE))
		*(volatile __u32 *)&has_bridge_port = 1;
}

GLOBAL int note_ingress_bridge(struct __sk_buff *skb)
{
	note_bridge(get_device_flags(skb->ifindex));
	return 0;
}

/*
 * Notes that a packet that comes has been rewritten, where it came by the port of a bridge. Filters may have seen it at
 * the port, tracking of connections among them, as it was sent: they are to see it anew. The program is not, which
 * could take it for one to a backend that is a frontend too.
 */
GLOBAL int mark_translated_at_bridge(struct __sk_buff *skb)
{
	if (get_device_flags(skb->ifindex) & DEVICE_BRIDGE)
		skb->tc_index = MARK_TRANSLATED;
	return 0;
}

INLINE void mark_translated(struct __sk_buff *skb)
{
	if (UNLIKELY(READ_ONCE(has_bridge_port)))
		mark_translated_at_bridge(skb);
}

/* The devices where packet_out looks at what leaves. */
#define DEVICE_HAS_EGRESS (DEVICE_OUTER | DEVICE_POD | DEVICE_BACKENDS)

/*
 * Sends an answer out by the device that rules of routing have for the address that was dialled. The kernel has routed
 * the answer as a packet of its backend, because it bears that address only from here on. Where the rules tell the two
 * addresses apart, a network that takes the address from one device alone would drop an answer that comes by another.
 * An answer that is too long for that way, where no host would divide it, and one without a header of a link, which the
 * kernel cannot send by another device, leave as they are.
 */
INLINE int redirect_by_frontend(struct __sk_buff *skb, __u32 number, bool v4)
{
	struct flow *flow = get_flow(number);
	const __u8 *ip = get_header(skb, link_header, IP_LENGTH_END);
	struct bpf_fib_lookup route = {};
	__u32 device;
	long found;

	if (!flow || !ip || !link_header)
		return TC_ACT_UNSPEC;
	/* What is to be cut into segments fits. */
	route.tot_len = skb->gso_size ? 0 : ip_packet_length(ip);
	found = query_fib(skb, &route, flow->frontend, flow->client, flow->frontend_port, flow->client_port,
			  flow->transport, v4);
	device = found == BPF_FIB_LKUP_RET_FRAG_NEEDED ? 0 : egress_from_fib(found, &route);
	if (!device || device == EGRESS_UNKNOWN || device == skb->ifindex)
		return TC_ACT_UNSPEC;
	if (get_device_flags(device) & DEVICE_HAS_EGRESS)
		skb->tc_index = MARK_TRANSLATED;
	return bpf_redirect_neigh(device, NULL, 0, 0);
}

GLOBAL int redirect_by_frontend4(struct __sk_buff *skb, __u32 number)
{
	return redirect_by_frontend(skb, number, true);
}

GLOBAL int redirect_by_frontend6(struct __sk_buff *skb, __u32 number)
{
	return redirect_by_frontend(skb, number, false);
}

/* What becomes of an answer that has been written. */
INLINE int route_reply(struct __sk_buff *skb, const struct flow *flow, __u32 number, bool v4)
{
	if (LIKELY(!(flow->client_flags & FLOW_REPLY_BY_FRONTEND)))
		return TC_ACT_UNSPEC;
	return v4 ? redirect_by_frontend4(skb, number) : redirect_by_frontend6(skb, number);
}

/*
 * What the kernel has told of ways in this second, kept by each CPU for whatever asks the very same.
 *
 * A question is all that the kernel looks at, byte for byte, so an answer is given to nothing else that asks. Where the
 * kernel looks at no ports, the question has none, and all connections between two hosts ask the same.
 */

/* How many answers a CPU keeps: a power of two. Where two questions have one place, the later one has it. */
#define FIB_CACHE_ENTRIES 1024
#define FIB_CACHE_BITS 10

/*
 * The question is the first part of what the kernel is given, but for the length of the packet: the rest of that it
 * only writes.
 */
#define FIB_KEY_WORDS 6
_Static_assert(FIB_KEY_WORDS * 8 == __builtin_offsetof(struct bpf_fib_lookup, ipv6_dst) + 16, "it ends with where to");

union fib_query {
	struct bpf_fib_lookup params;
	__u64 words[sizeof(struct bpf_fib_lookup) / 8];
};

struct fib_cache_entry {
	__u64 key[FIB_KEY_WORDS];
	/* As the kernel wrote it. */
	union fib_query result;
	/* What the kernel returned: the whole way, or only the device, of which the neighbour is not known. */
	__u32 status;
	/* In which second; 0: there is no answer. */
	__u32 second;
	__u32 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIB_CACHE_ENTRIES);
	__type(key, __u32);
	__type(value, struct fib_cache_entry);
} fib_cache SEC(".maps");

/*
 * A length that no way is too short for: the kernel tells how long packets may be on a way only where it is asked for
 * one.
 */
#define ANY_LENGTH 1

/* Part of an IPv6 packet's class and label: the class. */
#define TRAFFIC_CLASS6 bpf_htonl(0x0ff00000)

/* What a packet says that its way may depend on, beside where it goes: the type of service, or the class and label. */
INLINE __u32 traffic_class(const struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	if (v4) {
		const struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));

		return ip ? ip->tos : 0;
	} else {
		const struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));

		return ip ? *(const __u32 *)ip & bpf_htonl(0x0fffffff) : 0;
	}
}

/*
 * Puts the question how a packet goes on that comes by a device. `flags`: what is known of that device; it says whether
 * ports and labels may be left out.
 */
INLINE void set_fib_query(union fib_query *query, const struct tuple *tuple, __u32 class, __u32 came, __u32 flags,
			  bool v4)
{
	struct bpf_fib_lookup *params = &query->params;
	bool is_plain = flags & (v4 ? DEVICE_SIMPLE_FIB4 : DEVICE_SIMPLE_FIB6);

	params->family = v4 ? FAMILY4 : FAMILY6;
	params->l4_protocol = tuple->transport;
	params->sport = is_plain ? 0 : tuple->source.port;
	params->dport = is_plain ? 0 : tuple->destination.port;
	params->ifindex = came;
	if (v4) {
		params->tos = class;
		params->ipv4_src = tuple->source.address[3];
		params->ipv4_dst = tuple->destination.address[3];
	} else {
		params->flowinfo = is_plain ? class & TRAFFIC_CLASS6 : class;
		copy_address(params->ipv6_src, tuple->source.address);
		copy_address(params->ipv6_dst, tuple->destination.address);
	}
}

INLINE struct fib_cache_entry *get_fib_cache_entry(const union fib_query *query)
{
	__u64 mixed = 0;
	__u32 at;

	for (int word = 0; word < FIB_KEY_WORDS; word++)
		mixed = (mixed ^ query->words[word]) * 0x9e3779b97f4a7c15;
	at = mixed >> (64 - FIB_CACHE_BITS);
	return bpf_map_lookup_elem(&fib_cache, &at);
}

/* Without branches, as address_diff() is, and for the same reason. */
INLINE bool is_same_fib_key(const struct fib_cache_entry *entry, const union fib_query *query)
{
	__u64 differs = 0;

	for (int word = 0; word < FIB_KEY_WORDS; word++)
		differs |= entry->key[word] ^ query->words[word];
	return !differs;
}

/*
 * Whether an answer is one for a packet of that length; 0: only the device is asked for. Kernels that tell no length
 * give the one back for which they were asked.
 */
INLINE bool is_valid_for_length(const struct fib_cache_entry *entry, __u32 length)
{
	return !length || (entry->status == BPF_FIB_LKUP_RET_SUCCESS && length <= entry->result.params.mtu_result);
}

/*
 * Has the question answered in its own place, for a packet of that length as above, and returns what the kernel does.
 * That there is no way is not kept: one that comes is to be found at once.
 */
INLINE long lookup_fib_cached(struct __sk_buff *skb, union fib_query *query, __u32 length)
{
	struct fib_cache_entry *entry = get_fib_cache_entry(query);
	__u32 now = seconds();
	bool is_same;
	long found;

	if (!entry)
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	is_same = entry->second == now && is_same_fib_key(entry, query);
	if (is_same && is_valid_for_length(entry, length)) {
		*query = entry->result;
		return entry->status;
	}
	if (!is_same) {
		entry->second = 0;
		for (int word = 0; word < FIB_KEY_WORDS; word++)
			entry->key[word] = query->words[word];
	}
	query->params.tot_len = length ? length : ANY_LENGTH;
	found = lookup_fib(skb, &query->params);
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) {
		entry->result = *query;
		entry->status = found;
		entry->second = now;
	}
	return found;
}

/* As lookup_egress(), for what may have been asked in this second. */
INLINE __u32 lookup_egress_cached(struct __sk_buff *skb, const struct tuple *tuple, __u32 class, __u32 came,
				  __u32 flags, bool v4)
{
	union fib_query query = {};
	long found;

	set_fib_query(&query, tuple, class, came, flags, v4);
	found = lookup_fib_cached(skb, &query, 0);
	return egress_from_fib(found, &query.params);
}

/*
 * The ways of packets that pass by the stack: asked for as the stack would ask, once in a second for each flow and
 * direction.
 *
 * To ask takes as long as all else that is done with such a packet. What the kernel said is kept for this second at
 * most, by each CPU for itself, and holds for packets that ask the same. Whether a device may be used is no part of it.
 */

/* How many ways a CPU keeps: two of each flow, as long as no other flow with the same place has packets too. */
#define FLOW_PATHS 4096

/* A way that the kernel has told. */
struct flow_path {
	/* Of which flow: its number, and its serial; 0: none. */
	__u32 number;
	__u32 serial;
	/* In which second. */
	__u32 second;
	/* By which device, and to which host; its address may be of IPv6 where the packet is of IPv4. */
	__u32 device;
	__u32 next[4];
	__u32 next_family;
	/* For which type of service, or which label and class. */
	__u32 class;
	/* How long packets may be. */
	__u32 mtu;
	/* By which device such packets come. */
	__u32 ingress_device;
	/* The hardware addresses of the host, and of the device. */
	__u8 dst_mac[ETH_ALEN];
	__u8 src_mac[ETH_ALEN];
	/* For which hardware address such packets come. */
	__u8 ingress_mac[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FLOW_PATHS);
	__type(key, __u32);
	__type(value, struct flow_path);
} flow_paths SEC(".maps");

/* The place of a flow's way in that direction. */
INLINE struct flow_path *get_flow_path(__u32 number, __u32 direction)
{
	__u32 at = (number << 1 | (direction == TO_CLIENT)) & (FLOW_PATHS - 1);

	return bpf_map_lookup_elem(&flow_paths, &at);
}

/* No way takes a packet of so many bytes. */
#define TOO_LONG (~0U)

/*
 * How long a packet is in the network, without what comes before its IP header; `length` is what that header says. What
 * this node has put together is divided again, each part with headers of its own. A frame has more bytes only where it
 * was filled up to the least that Ethernet has. TOO_LONG: it is of another length, which the stack sees to.
 */
INLINE __u32 wire_length(const struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
	__u32 headers = packet->transport - packet->ip;
	const __u8 *tcp;

	if (!skb->gso_size)
		return skb->len == packet->ip + length || (skb->len > packet->ip + length && skb->len <= ETH_ZLEN) ?
			       length :
			       TOO_LONG;
	if (packet->tuple.transport != IPPROTO_TCP)
		return skb->gso_size + headers + sizeof(struct udphdr);
	tcp = get_header(skb, packet->transport, sizeof(struct tcphdr));
	return tcp ? skb->gso_size + headers + (tcp[12] >> 4) * 4 : TOO_LONG;
}

/* What a packet's header of IP says of its way. */
struct ip_info {
	__u32 length;
	/* The type of service, or the label and the class. */
	__u32 class;
};

/* `false`: the stack would do more than send this packet on. */
INLINE bool read_ip_info4(const struct __sk_buff *skb, const struct packet *packet, struct ip_info *info)
{
	const struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));

	if (!ip || ip->ihl != 5 || ip->ttl <= 1)
		return false;
	info->class = ip->tos;
	info->length = wire_length(skb, packet, bpf_ntohs(ip->tot_len));
	return true;
}

/* As above. */
INLINE bool read_ip_info6(const struct __sk_buff *skb, const struct packet *packet, struct ip_info *info)
{
	const struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));

	if (!ip || !is_transport(ip->nexthdr) || ip->hop_limit <= 1)
		return false;
	info->class = *(const __u32 *)ip & bpf_htonl(0x0fffffff);
	info->length = wire_length(skb, packet, bpf_ntohs(ip->payload_len) + sizeof(*ip));
	return true;
}

/*
 * Asks for the next host on the packet's way, as the stack would find it between the two programs. A packet that is too
 * long for its way, or that has none, is the stack's, which tells the sender; so is one of which the neighbour has not
 * answered.
 */
INLINE bool lookup_flow_path(struct __sk_buff *skb, struct flow_path *path, const struct tuple *translated,
			     const struct ip_info *info, __u32 flags, bool v4)
{
	union fib_query query = {};
	const struct bpf_fib_lookup *fib = &query.params;

	set_fib_query(&query, translated, info->class, skb->ifindex, flags, v4);
	if (lookup_fib_cached(skb, &query, info->length) != BPF_FIB_LKUP_RET_SUCCESS)
		return false;
	path->device = fib->ifindex;
	path->mtu = fib->mtu_result;
	path->class = info->class;
	copy_address(path->next, fib->ipv6_dst);
	path->next_family = fib->family;
	__builtin_memcpy(path->dst_mac, fib->dmac, ETH_ALEN);
	__builtin_memcpy(path->src_mac, fib->smac, ETH_ALEN);
	return true;
}

/*
 * Whether what answers the packet leaves by the device by which the packet came, if it comes by the one by which the
 * packet goes. Where it does not, the sender may have an address that the network has elsewhere, and the stack knows
 * whether that may be.
 */
INLINE bool is_reply_path(struct __sk_buff *skb, const struct tuple *translated, __u32 device, bool v4)
{
	struct tuple answer;

	reverse_tuple(&answer, translated);
	return lookup_egress_cached(skb, &answer, 0, device, get_device_flags(device), v4) == skb->ifindex;
}

/* Notes how the packets come that the way is for: the program at the driver knows them by that (xdp.bpf.c). */
INLINE void save_ingress(struct __sk_buff *skb, struct flow_path *path)
{
	const struct ethhdr *link = link_header == ETH_HLEN ? get_header(skb, 0, sizeof(*link)) : NULL;

	path->ingress_device = skb->ifindex;
	if (link)
		__builtin_memcpy(path->ingress_mac, link->h_dest, ETH_ALEN);
}

/*
 * Whether the way is for a packet like this one: of this flow, in this second, by this device. What is longer than the
 * way takes is for the kernel to see.
 */
INLINE bool is_path_for(const struct flow_path *path, __u32 number, __u32 serial, __u32 now, __u32 came,
			const struct ip_info *info)
{
	return path->number == number && path->serial == serial && path->second == now &&
	       path->ingress_device == came && path->class == info->class && info->length <= path->mtu;
}

/*
 * Knows the way of the packet that arrives by a device of which `flags` are known. `false`: it goes through the stack.
 */
INLINE bool resolve_flow_path(struct __sk_buff *skb, const struct scratch *scratch, struct flow_path *path,
			      const struct tuple *translated, __u32 flags, bool v4)
{
	const struct packet *packet = &scratch->packet;
	__u32 number = scratch->number, serial = scratch->serial;
	struct ip_info info;
	__u32 now = seconds();

	if (packet->part != WHOLE || skb->pkt_type != PACKET_HOST || skb->vlan_present || skb->mark)
		return false;
	if (!(v4 ? read_ip_info4(skb, packet, &info) : read_ip_info6(skb, packet, &info)) || info.length > 0xffff)
		return false;
	if (LIKELY(is_path_for(path, number, serial, now, skb->ifindex, &info)))
		return true;
	path->serial = 0;
	if (!lookup_flow_path(skb, path, translated, &info, flags, v4) ||
	    !is_reply_path(skb, translated, path->device, v4))
		return false;
	save_ingress(skb, path);
	path->second = now;
	path->number = number;
	path->serial = serial;
	return true;
}

#endif

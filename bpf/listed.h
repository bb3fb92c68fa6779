/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether a backend is in a list. A table is in no order, and its backends are members. Every other list is sorted: how
 * far the search has come stands in a map, and each step is on its own, because older verifiers would follow every step
 * from every state of those before it.
 */
#ifndef HOLDFAST_LISTED_H
#define HOLDFAST_LISTED_H

#include "arrived.h"
#include "choose.h"
#include "packet.h"

/* After so many halvings nothing is left of any list. */
#define LIST_HALVES (WORD_FLAGS_AT - WORD_COUNT_AT + 1)

/* What one step of a search says. */
enum listed { IS_LISTED, IS_NOT_LISTED, IS_OPEN };

/*
 * All ones if the one comes before the other as lists are sorted: by address, then by port. Without branches, each of
 * which the verifier would follow in each step of a search.
 */
INLINE __u32 comes_before(const struct place *one, const struct place *other, __u32 *is_same)
{
	__u64 before = 0, same = 1, a, b;

	for (int at = 0; at < 4; at++) {
		a = bpf_ntohl(one->address[at]);
		b = bpf_ntohl(other->address[at]);
		before |= same & (a - b) >> 63;
		same &= ((a ^ b) - 1) >> 63;
	}
	a = bpf_ntohs(one->port);
	b = bpf_ntohs(other->port);
	before |= same & (a - b) >> 63;
	*is_same = same & ((a ^ b) - 1) >> 63;
	return -(__u32)before;
}

/*
 * Compares the middle of what is left of the list, and keeps the half in which the backend may be. The daemon may be
 * writing the list meanwhile: where a slot is empty, the backend counts as listed.
 */
INLINE enum listed halve(bool v4)
{
	struct arrival *arrival = the_arrival();
	struct dial dial = { .v4 = v4 };
	struct place place = {};
	__u32 half, before, is_same;

	if (!arrival)
		return IS_LISTED;
	if (!arrival->left)
		return IS_NOT_LISTED;
	half = arrival->left / 2;
	if (!read_slot(&dial, arrival->first + half, &place))
		return IS_LISTED;
	before = comes_before(&place, &arrival->sought, &is_same);
	if (is_same)
		return IS_LISTED;
	arrival->first += (half + 1) & before;
	arrival->left = (half & ~before) | ((arrival->left - half - 1) & before);
	return IS_OPEN;
}

ALONE int halve4(void)
{
	return halve(true);
}

ALONE int halve6(void)
{
	return halve(false);
}

INLINE bool is_sorted_in(struct arrival *arrival, __u64 word, bool v4)
{
	int listed;

	arrival->first = word_base(word);
	arrival->left = word_count(word);
	for (int step = 0; step < LIST_HALVES; step++) {
		listed = v4 ? halve4() : halve6();
		if (listed != IS_OPEN)
			return listed == IS_LISTED;
	}
	return false;
}

/* Whether the backend of a dial, which is the one that is sought, is in the list of that scope. */
INLINE bool is_listed(struct arrival *arrival, const struct dial *dial, __u32 scope, __u64 word, bool v4)
{
	if (word_flags(word) & WORD_TABLE)
		return is_member(dial, scope);
	return is_sorted_in(arrival, word, v4);
}

#endif

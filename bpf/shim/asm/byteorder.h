/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The BPF target has no <asm/…> of its own; this one fits any 64-bit little-endian machine. */
#include <linux/byteorder/little_endian.h>

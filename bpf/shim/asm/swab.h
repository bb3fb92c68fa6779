/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The BPF target has no <asm/…> of its own; byte swaps come from <bpf/bpf_endian.h>. */

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The BPF target has no <asm/…> of its own; these numbers are the same on every machine that we build for. */
#include <asm-generic/errno.h>

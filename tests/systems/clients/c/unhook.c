/*
 * Detaches the program of a pinned link from its hook, as any root process may: `unhook PIN`. The pin stays.
 */
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int bpf(enum bpf_cmd command, union bpf_attr *what)
{
	return syscall(SYS_bpf, command, what, sizeof(*what));
}

int main(int argc, char **argv)
{
	union bpf_attr opened, detached;
	int link;

	if (argc != 2) {
		fputs("usage: unhook PIN\n", stderr);
		return 64;
	}
	memset(&opened, 0, sizeof(opened));
	memset(&detached, 0, sizeof(detached));
	opened.pathname = (uintptr_t)argv[1];
	link = bpf(BPF_OBJ_GET, &opened);
	detached.link_detach.link_fd = link;
	if (link < 0 || bpf(BPF_LINK_DETACH, &detached)) {
		perror(argv[1]);
		return 1;
	}
	return 0;
}

/*
 * Runs a program for which the kernel loads no BPF program: `refusing EPERM|EACCES PROGRAM ARGS…`.
 * A locked-down kernel returns EPERM, a verifier that rejects the program EACCES.
 */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refuse_loading(int with)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bpf, 0, 3),
		/* The low half of the first argument on a little-endian machine. */
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, BPF_PROG_LOAD, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | with),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(code) / sizeof(*code), .filter = code };

	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int argc, char **argv)
{
	if (argc < 3 || (strcmp(argv[1], "EPERM") && strcmp(argv[1], "EACCES"))) {
		fputs("usage: refusing EPERM|EACCES PROGRAM ARGS...\n", stderr);
		return 64;
	}
	if (refuse_loading(strcmp(argv[1], "EPERM") ? EACCES : EPERM)) {
		perror("seccomp");
		return 1;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 1;
}

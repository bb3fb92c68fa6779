/*
 * Attaches a foreign program to a cgroup while it runs: `meddle CGROUP deny ADDRESS PORT` denies every connection
 * to that address (EPERM), `meddle CGROUP lead ADDRESS PORT ADDRESS PORT` redirects it to another one. The kernel
 * detaches the program when this process ends, which ends with the thread that started it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ADDRESS offsetof(struct bpf_sock_addr, user_ip4)
#define PORT offsetof(struct bpf_sock_addr, user_port)
#define INSN(operation, to, from, offset, value)                                                                       \
	{ .code = (operation), .dst_reg = (to), .src_reg = (from), .off = (offset), .imm = (int32_t)(value) }
#define LOAD(to, from, offset) INSN(BPF_LDX | BPF_W | BPF_MEM, to, from, offset, 0)
#define STORE(to, from, offset) INSN(BPF_STX | BPF_W | BPF_MEM, to, from, offset, 0)
#define PUT(to, value) INSN(BPF_ALU | BPF_MOV | BPF_K, to, 0, 0, value)
#define UNLESS(is, value, skip) INSN(BPF_JMP32 | BPF_JNE | BPF_K, is, 0, skip, value)
#define RETURN INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)

struct place {
	uint32_t address;
	uint32_t port;
};

static long bpf(enum bpf_cmd command, union bpf_attr *what)
{
	return syscall(SYS_bpf, command, what, sizeof(*what));
}

static struct place place(char **words)
{
	struct place place = { .port = htons(atoi(words[1])) };

	if (inet_pton(AF_INET, words[0], &place.address) != 1) {
		fprintf(stderr, "%s is no address\n", words[0]);
		exit(64);
	}
	return place;
}

static int loaded(struct place from, struct place to, int verdict)
{
	struct bpf_insn code[] = {
		PUT(BPF_REG_0, 1),
		LOAD(BPF_REG_2, BPF_REG_1, ADDRESS),
		UNLESS(BPF_REG_2, from.address, 7),
		LOAD(BPF_REG_2, BPF_REG_1, PORT),
		UNLESS(BPF_REG_2, from.port, 5),
		PUT(BPF_REG_0, verdict),
		PUT(BPF_REG_2, to.address),
		STORE(BPF_REG_1, BPF_REG_2, ADDRESS),
		PUT(BPF_REG_2, to.port),
		STORE(BPF_REG_1, BPF_REG_2, PORT),
		RETURN,
	};
	union bpf_attr what;

	memset(&what, 0, sizeof(what));
	what.prog_type = BPF_PROG_TYPE_CGROUP_SOCK_ADDR;
	what.expected_attach_type = BPF_CGROUP_INET4_CONNECT;
	what.insns = (uintptr_t)code;
	what.insn_cnt = sizeof(code) / sizeof(*code);
	what.license = (uintptr_t) "GPL";
	strcpy(what.prog_name, "meddle");
	return bpf(BPF_PROG_LOAD, &what);
}

static int attached(int program, const char *cgroup)
{
	union bpf_attr what;

	memset(&what, 0, sizeof(what));
	what.link_create.prog_fd = program;
	what.link_create.target_fd = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	what.link_create.attach_type = BPF_CGROUP_INET4_CONNECT;
	return bpf(BPF_LINK_CREATE, &what);
}

int main(int argc, char **argv)
{
	struct place from, to;
	int leads, program;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	leads = argc == 7 && !strcmp(argv[2], "lead");
	if (!leads && (argc != 5 || strcmp(argv[2], "deny"))) {
		fputs("usage: meddle CGROUP deny ADDRESS PORT | meddle CGROUP lead ADDRESS PORT ADDRESS PORT\n", stderr);
		return 64;
	}
	from = place(argv + 3);
	to = leads ? place(argv + 5) : from;
	program = loaded(from, to, leads);
	if (program < 0 || attached(program, argv[1]) < 0) {
		perror(argv[1]);
		return 1;
	}
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}

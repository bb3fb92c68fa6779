// A C client: each system call that a service load balancer sees, one at a time.
//
//	client tcp ADDRESS PORT            connect, send, receive
//	client tcp-nonblocking ADDRESS PORT   connect without waiting, then poll
//	client udp-connected ADDRESS PORT  connect, send and receive; then sendto on the connected socket
//	client udp-lasting ADDRESS PORT    connect, then for each line of standard input send and receive; connect
//	                                   again when the socket was ended
//	client udp-sendto (ADDRESS PORT)…   one unconnected socket, sendto and recvfrom for each destination
//	client udp-sendmsg (ADDRESS PORT)…  the same with sendmsg and recvmsg
//	client udp-sendmmsg (ADDRESS PORT)… all destinations in one sendmmsg, then a reply for each
//
// An address with a colon gets an AF_INET6 socket, so ::ffff:192.0.2.1 is IPv4 on such a socket. Each step prints one
// JSON line; "errno" is its name, or null. The exit code is 0 unless the client itself fails.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
	WAIT_SECONDS = 5,
	DESTINATIONS_MAX = 8,
	REPLY_BYTES = 256,
};

struct endpoint {
	struct sockaddr_storage address;
	socklen_t length;
};

static void usage(void)
{
	fprintf(stderr, "usage: client MODE ADDRESS PORT…\n");
	exit(64);
}

static struct endpoint parse(const char *address, const char *port)
{
	struct endpoint to = {0};
	struct sockaddr_in *v4 = (struct sockaddr_in *)&to.address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&to.address;

	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((unsigned short)atoi(port));
		to.length = sizeof(*v4);
	} else if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((unsigned short)atoi(port));
		to.length = sizeof(*v6);
	} else {
		usage();
	}
	return to;
}

static void print_address(const char *field, const struct endpoint *of)
{
	char text[INET6_ADDRSTRLEN];
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&of->address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&of->address;

	if (of->length == 0)
		printf(",\"%s\":null", field);
	else if (of->address.ss_family == AF_INET)
		printf(",\"%s\":\"%s:%u\"", field, inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text)),
		       ntohs(v4->sin_port));
	else
		printf(",\"%s\":\"[%s]:%u\"", field, inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text)),
		       ntohs(v6->sin6_port));
}

// Prints the result of a call. Without a socket it has no addresses; without a reply, no sender.
static void say(const char *call, const struct endpoint *to, int error, int fd, const char *reply,
		const struct endpoint *from)
{
	struct endpoint none = {0}, peer = {.length = sizeof(peer.address)}, local = peer;

	if (fd < 0 || getpeername(fd, (struct sockaddr *)&peer.address, &peer.length) != 0)
		peer.length = 0;
	if (fd < 0 || getsockname(fd, (struct sockaddr *)&local.address, &local.length) != 0)
		local.length = 0;
	printf("{\"call\":\"%s\"", call);
	if (error)
		printf(",\"errno\":\"%s\"", strerrorname_np(error));
	else
		printf(",\"errno\":null");
	print_address("to", to);
	print_address("peer", &peer);
	print_address("local", &local);
	print_address("from", from ? from : &none);
	if (reply)
		printf(",\"reply\":\"%.*s\"}\n", (int)strcspn(reply, "\"\\\n"), reply);
	else
		printf(",\"reply\":null}\n");
}

static int open_socket(const struct endpoint *to, int type)
{
	struct timeval wait = {.tv_sec = WAIT_SECONDS};
	int fd = socket(to->address.ss_family, type, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) != 0) {
		perror("socket");
		exit(71);
	}
	return fd;
}

static int failure(long result)
{
	return result < 0 ? errno : 0;
}

static void receive(int fd, const char *call, const struct endpoint *to)
{
	char reply[REPLY_BYTES] = {0};
	struct endpoint from = {.length = sizeof(from.address)};
	long count = recvfrom(fd, reply, sizeof(reply) - 1, 0, (struct sockaddr *)&from.address, &from.length);
	int error = failure(count);

	if (error)
		from.length = 0;
	say(call, to, error, fd, error ? NULL : reply, &from);
}

// Sends on a connected socket and prints the reply.
static void converse(int fd, const struct endpoint *to)
{
	int error = failure(send(fd, "?", 1, MSG_NOSIGNAL));

	if (error)
		say("send", to, error, fd, NULL, NULL);
	else
		receive(fd, "recvfrom", to);
}

static void tcp(const struct endpoint *to)
{
	int fd = open_socket(to, SOCK_STREAM);
	int error = failure(connect(fd, (const struct sockaddr *)&to->address, to->length));

	say("connect", to, error, fd, NULL, NULL);
	if (!error)
		converse(fd, to);
	close(fd);
}

static void tcp_nonblocking(const struct endpoint *to)
{
	int fd = open_socket(to, SOCK_STREAM | SOCK_NONBLOCK);
	int error = failure(connect(fd, (const struct sockaddr *)&to->address, to->length));
	struct pollfd waiting = {.fd = fd, .events = POLLOUT};
	socklen_t length = sizeof(error);

	say("connect", to, error, fd, NULL, NULL);
	if (error == EINPROGRESS) {
		poll(&waiting, 1, WAIT_SECONDS * 1000);
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
		say("SO_ERROR", to, error, fd, NULL, NULL);
	}
	if (!error && send(fd, "?", 1, MSG_NOSIGNAL) == 1) {
		waiting.events = POLLIN;
		poll(&waiting, 1, WAIT_SECONDS * 1000);
		receive(fd, "recvfrom", to);
	}
	close(fd);
}

static void udp_connected(const struct endpoint *to)
{
	int fd = open_socket(to, SOCK_DGRAM);
	int error = failure(connect(fd, (const struct sockaddr *)&to->address, to->length));

	say("connect", to, error, fd, NULL, NULL);
	if (!error) {
		converse(fd, to);
		error = failure(sendto(fd, "?", 1, 0, (const struct sockaddr *)&to->address, to->length));
		if (error)
			say("sendto", to, error, fd, NULL, NULL);
		else
			receive(fd, "sendto-connected", to);
	}
	close(fd);
}

static int connected(const struct endpoint *to)
{
	int fd = open_socket(to, SOCK_DGRAM);
	int error = failure(connect(fd, (const struct sockaddr *)&to->address, to->length));

	say("connect", to, error, fd, NULL, NULL);
	return fd;
}

// Like a resolver that keeps its socket: an ended socket returns one error, and is replaced.
static void udp_lasting(const struct endpoint *to)
{
	char line[REPLY_BYTES];
	int fd = connected(to);

	while (fgets(line, sizeof(line), stdin)) {
		int error = failure(send(fd, "?", 1, MSG_NOSIGNAL));

		if (error) {
			say("send", to, error, fd, NULL, NULL);
			close(fd);
			fd = connected(to);
			send(fd, "?", 1, MSG_NOSIGNAL);
		}
		receive(fd, "recvfrom", to);
		fflush(stdout);
	}
	close(fd);
}

static void udp_sendto(struct endpoint *to, int count)
{
	int fd = open_socket(to, SOCK_DGRAM);

	for (int i = 0; i < count; i++) {
		int error = failure(sendto(fd, "?", 1, 0, (struct sockaddr *)&to[i].address, to[i].length));

		if (error)
			say("sendto", &to[i], error, fd, NULL, NULL);
		else
			receive(fd, "recvfrom", &to[i]);
	}
	close(fd);
}

static struct msghdr message(struct endpoint *peer, struct iovec *content)
{
	struct msghdr header = {
		.msg_name = &peer->address,
		.msg_namelen = peer->length,
		.msg_iov = content,
		.msg_iovlen = 1,
	};
	return header;
}

static void receive_message(int fd, const struct endpoint *to)
{
	char reply[REPLY_BYTES] = {0};
	struct endpoint from = {.length = sizeof(from.address)};
	struct iovec content = {.iov_base = reply, .iov_len = sizeof(reply) - 1};
	struct msghdr header = message(&from, &content);
	int error = failure(recvmsg(fd, &header, 0));

	from.length = error ? 0 : header.msg_namelen;
	say("recvmsg", to, error, fd, error ? NULL : reply, &from);
}

static void udp_sendmsg(struct endpoint *to, int count)
{
	int fd = open_socket(to, SOCK_DGRAM);
	struct iovec content = {.iov_base = "?", .iov_len = 1};

	for (int i = 0; i < count; i++) {
		struct msghdr header = message(&to[i], &content);
		int error = failure(sendmsg(fd, &header, 0));

		if (error)
			say("sendmsg", &to[i], error, fd, NULL, NULL);
		else
			receive_message(fd, &to[i]);
	}
	close(fd);
}

// Replies come in any order: "to" is the destination of the message of that number, "from" is the sender of the reply.
static void udp_sendmmsg(struct endpoint *to, int count)
{
	int fd = open_socket(to, SOCK_DGRAM);
	struct iovec content = {.iov_base = "?", .iov_len = 1};
	struct mmsghdr headers[DESTINATIONS_MAX] = {0};
	int sent, error;

	for (int i = 0; i < count; i++)
		headers[i].msg_hdr = message(&to[i], &content);
	sent = sendmmsg(fd, headers, (unsigned int)count, 0);
	error = failure(sent);
	if (error)
		say("sendmmsg", to, error, fd, NULL, NULL);
	for (int i = 0; i < sent; i++)
		receive_message(fd, &to[i]);
	close(fd);
}

int main(int argc, char **argv)
{
	struct endpoint to[DESTINATIONS_MAX];
	int count = (argc - 2) / 2;

	if (argc < 4 || argc % 2 != 0 || count > DESTINATIONS_MAX)
		usage();
	for (int i = 0; i < count; i++)
		to[i] = parse(argv[2 + 2 * i], argv[3 + 2 * i]);
	if (strcmp(argv[1], "tcp") == 0)
		tcp(to);
	else if (strcmp(argv[1], "tcp-nonblocking") == 0)
		tcp_nonblocking(to);
	else if (strcmp(argv[1], "udp-connected") == 0)
		udp_connected(to);
	else if (strcmp(argv[1], "udp-lasting") == 0)
		udp_lasting(to);
	else if (strcmp(argv[1], "udp-sendto") == 0)
		udp_sendto(to, count);
	else if (strcmp(argv[1], "udp-sendmsg") == 0)
		udp_sendmsg(to, count);
	else if (strcmp(argv[1], "udp-sendmmsg") == 0)
		udp_sendmmsg(to, count);
	else
		usage();
	return 0;
}

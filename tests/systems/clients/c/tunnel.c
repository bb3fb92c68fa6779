/*
 * Forwards packets between two devices: `tunnel DEVICE NETWORK DEVICE`. The first device is in this network
 * namespace, the second one in that of the path NETWORK. Prints a byte when both are open, and ends with its input.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The largest packet of IP. */
#define PACKET_MAX 65536

static int open_device(const char *name)
{
	struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
	int device = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	if (device >= 0 && !ioctl(device, TUNSETIFF, &request))
		return device;
	perror(name);
	return -1;
}

static int enter(const char *network)
{
	int opened = open(network, O_RDONLY | O_CLOEXEC);

	if (opened >= 0 && !setns(opened, CLONE_NEWNET))
		return 0;
	perror(network);
	return -1;
}

static void hand_over(int from, int to)
{
	static char packet[PACKET_MAX];
	ssize_t count = read(from, packet, sizeof(packet));

	/* A device that is down accepts nothing: the packet is lost, as on any wire. */
	if (count > 0 && write(to, packet, count) < 0)
		return;
}

int main(int argc, char **argv)
{
	struct pollfd ends[3] = { { .fd = 0, .events = POLLIN } };

	if (argc != 4) {
		fputs("usage: tunnel DEVICE NETWORK DEVICE\n", stderr);
		return 64;
	}
	ends[1] = (struct pollfd){ .fd = open_device(argv[1]), .events = POLLIN };
	if (ends[1].fd < 0 || enter(argv[2]))
		return 1;
	ends[2] = (struct pollfd){ .fd = open_device(argv[3]), .events = POLLIN };
	if (ends[2].fd < 0 || write(1, "+", 1) != 1)
		return 1;
	while (poll(ends, 3, -1) > 0 && !ends[0].revents) {
		if (ends[1].revents & POLLIN)
			hand_over(ends[1].fd, ends[2].fd);
		if (ends[2].revents & POLLIN)
			hand_over(ends[2].fd, ends[1].fd);
	}
	return 0;
}

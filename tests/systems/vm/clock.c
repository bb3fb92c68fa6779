/*
 * Lies over an emulator's C library, so that all clocks of its machine go SLOWER times slower: what the emulator asks
 * the time goes so, and what it waits for comes so much later.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define SECOND 1000000000LL

static int (*ask)(clockid_t, struct timespec *);
static int (*await)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
static long long slower, begun_real, begun_monotonic;

static long long now(clockid_t clock)
{
	struct timespec time;

	ask(clock, &time);
	return time.tv_sec * SECOND + time.tv_nsec;
}

static struct timespec told(long long nanoseconds)
{
	return (struct timespec){ .tv_sec = nanoseconds / SECOND, .tv_nsec = nanoseconds % SECOND };
}

/* Other libraries ask for the time while they begin, before this one would by itself. */
__attribute__((constructor)) static void begin(void)
{
	if (slower)
		return;
	ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	await = (int (*)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))dlsym(RTLD_NEXT, "ppoll");
	begun_real = now(CLOCK_REALTIME);
	begun_monotonic = now(CLOCK_MONOTONIC);
	slower = atoll(getenv("SLOWER"));
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	long long begun;

	begin();
	/* How much of a processor was used is told as it is. */
	if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME)
		return ask(clock, time);
	begun = clock == CLOCK_MONOTONIC ? begun_monotonic : begun_real;
	*time = told(begun + (now(clock) - begun) / slower);
	return 0;
}

int gettimeofday(struct timeval *time, void *zone)
{
	struct timespec precise;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	*time = (struct timeval){ .tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000 };
	return 0;
}

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *limit, const sigset_t *signals)
{
	struct timespec later;

	begin();
	if (!limit)
		return await(files, count, limit, signals);
	later = told((limit->tv_sec * SECOND + limit->tv_nsec) * slower);
	return await(files, count, &later, signals);
}

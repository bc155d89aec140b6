/* Stands between a program and the system, by LD_PRELOAD: a file system that cannot lock, and a clock that is moved.

   SHIM_NO_LOCKS          flock() fails as it does on such file systems
   SHIM_CLOCK_FILE=PATH   seconds in that file are added to the time of day, whenever it is read */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/time.h>
#include <time.h>

static long moved(void)
{
    const char *path = getenv("SHIM_CLOCK_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1)
            seconds = 0;
        fclose(file);
    }
    return seconds;
}

int flock(int descriptor, int operation)
{
    int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
    if (getenv("SHIM_NO_LOCKS")) {
        errno = ENOLCK;
        return -1;
    }
    return real(descriptor, operation);
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && which == CLOCK_REALTIME)
        now->tv_sec += moved();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int (*real)(struct timeval *, void *) = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(now, zone);
    if (!failed)
        now->tv_sec += moved();
    return failed;
}

time_t time(time_t *now)
{
    time_t (*real)(time_t *) = (time_t (*)(time_t *))dlsym(RTLD_NEXT, "time");
    time_t seconds = real(NULL) + moved();
    if (now)
        *now = seconds;
    return seconds;
}

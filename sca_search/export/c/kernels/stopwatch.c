/* Times a model, and loops whose cycles are known, without the caller's own costs. */
#define _POSIX_C_SOURCE 199309L
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef void predict(const void *tables, float *scratch, const float *in, float *out, size_t count);

/* Seconds since some moment. */
double stopwatch_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Seconds of this many predictions of one image. */
double stopwatch_model(predict *model, const void *tables, float *scratch, const float *in, float *out, size_t count)
{
    size_t run;
    const double began = stopwatch_now();
    for (run = 0; run < count; run++) {
        model(tables, scratch, in, out, 1);
    }
    return stopwatch_now() - began;
}

/* Eight links of two instructions, each waiting for the one before and of one cycle on every common processor. With
 * numbers that the compiler does not know, it can leave none out. */
#define LINK(x) x = (x + step) ^ mask;
#define EIGHT(x) LINK(x) LINK(x) LINK(x) LINK(x) LINK(x) LINK(x) LINK(x) LINK(x)

volatile uint64_t stopwatch_seed = 88172645463325252u;
volatile uint64_t stopwatch_kept;

/* Seconds of 16 * count cycles. */
double stopwatch_cycles(size_t count)
{
    const uint64_t step = stopwatch_seed, mask = stopwatch_seed >> 7;
    uint64_t x = step;
    const double began = stopwatch_now();
    double ended;
    size_t round;
    for (round = 0; round < count; round++) {
        EIGHT(x)
    }
    stopwatch_kept = x;
    ended = stopwatch_now();
    return ended - began;
}

/* Seconds of four such chains side by side, which slow down if another thread runs on the same core. */
double stopwatch_width(size_t count)
{
    const uint64_t step = stopwatch_seed, mask = stopwatch_seed >> 7;
    uint64_t a = step, b = step + 1, c = step + 2, d = step + 3;
    const double began = stopwatch_now();
    double ended;
    size_t round;
    for (round = 0; round < count; round++) {
        LINK(a) LINK(b) LINK(c) LINK(d)
        LINK(a) LINK(b) LINK(c) LINK(d)
        LINK(a) LINK(b) LINK(c) LINK(d)
        LINK(a) LINK(b) LINK(c) LINK(d)
        LINK(a) LINK(b) LINK(c) LINK(d)
        LINK(a) LINK(b) LINK(c) LINK(d)
        LINK(a) LINK(b) LINK(c) LINK(d)
        LINK(a) LINK(b) LINK(c) LINK(d)
    }
    stopwatch_kept = a ^ b ^ c ^ d;
    ended = stopwatch_now();
    return ended - began;
}

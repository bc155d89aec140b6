/* Times a network at several sparsities, step by step and as a whole, and prints what it found as JSON.
 *
 * The variants run interleaved, so that a slow phase of the machine affects all of them. A sample lies between two loops
 * of known work; where a loop took over a tenth longer than the fastest, or the program was interrupted, the sample is
 * noisy and left out. The result is the tenth percentile of the others, which undetected noise affects least.
 * Its spread is the difference between the earlier and the later half of the samples; rounds go on until it is small
 * everywhere, or the time limit is reached. The only argument, which is optional, is this limit in seconds. */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "calibrate.h"
#include "variants.h"

#define LOOPS 4000 /* about 20 microseconds of each */
#define NOISY 1.1
#define INTERRUPTED 1.02
#define WARM_SECONDS 0.001
#define SAMPLE_SECONDS 0.002
#define FEWEST_ROUNDS 12
#define MOST_ROUNDS 400
#define FEWEST_QUIET 5
#define SMALL_SPREAD 0.01

#define WHOLE STEPS /* after the steps: the prediction without time stamps */
#define SERIES (STEPS + 1)
enum { PLAIN, TIMED, KINDS }; /* without time stamps between the steps, and with */

/* From stopwatch.c, which is compiled separately: more optimization would change its loops. */
double stopwatch_now(void);
double stopwatch_cycles(size_t count);
double stopwatch_width(size_t count);

struct counts {
    size_t warm, sample; /* predictions before a sample, and of a sample */
};

struct sample {
    double seconds[SERIES]; /* of one prediction */
    double loops[KINDS][2]; /* the slower of each next to it */
    int interrupted[KINDS];
};

volatile int calibrate_stamps = 0;

static struct counts counts[VARIANTS];
static struct sample samples[MOST_ROUNDS][VARIANTS];
static double fastest[2], stamp_seconds;
static size_t rounds;

static float image[INPUTS], logits[OUTPUTS];
static double step_seconds[STEPS], last_stamp;

void calibrate_step(size_t place)
{
    const double now = stopwatch_now();
    step_seconds[place] += now - last_stamp;
    last_stamp = now;
}

/* CPU seconds of this program; wall-clock seconds where they are not available. */
static double working(void)
{
#ifdef CLOCK_PROCESS_CPUTIME_ID
    struct timespec time;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0) {
        return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
    }
#endif
    return stopwatch_now();
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Seconds per prediction, from this many. */
static double predict(size_t variant, size_t count)
{
    size_t done;
    const double began = stopwatch_now();
    for (done = 0; done < count; done++) {
        last_stamp = calibrate_stamps ? stopwatch_now() : 0.0;
        variants[variant](image, logits);
    }
    return (stopwatch_now() - began) / (double)count;
}

static void count_predictions(size_t variant)
{
    double once = predict(variant, 1); /* which also expands the weights */
    int tries;
    for (tries = 0; tries < 3; tries++) {
        const double again = predict(variant, 1);
        once = again < once ? again : once;
    }
    once = larger(once, 1e-8);
    counts[variant].warm = 1 + (size_t)(WARM_SECONDS / once);
    counts[variant].sample = 1 + (size_t)(SAMPLE_SECONDS / once);
}

/* Noise that is normal once it is normalized, or nearly so: the sum of twelve numbers between 0 and 1, less 6. How many
 * values a ReLU sets to zero depends on it, and zeros are left out by some kernels. */
static void draw_image(void)
{
    uint32_t state = 1;
    size_t i;
    for (i = 0; i < INPUTS; i++) {
        const double *const channel = statistics[i / (INPUTS / CHANNELS)];
        double sum = -6.0;
        int draw;
        for (draw = 0; draw < 12; draw++) {
            state = state * 1664525u + 1013904223u;
            sum += (double)(state >> 8) / 16777216.0;
        }
        image[i] = (float)(channel[0] + channel[1] * sum);
    }
}

/* What a time stamp costs, and each step is charged for. */
static void time_stamps(void)
{
    int tries, i;
    for (tries = 0; tries < 20; tries++) {
        double each;
        step_seconds[0] = 0.0;
        last_stamp = stopwatch_now();
        for (i = 0; i < 1000; i++) {
            calibrate_step(0);
        }
        each = step_seconds[0] / 1000;
        stamp_seconds = tries == 0 || each < stamp_seconds ? each : stamp_seconds;
    }
}

static void take_loops(double loops[2])
{
    loops[0] = larger(loops[0], stopwatch_cycles(LOOPS));
    loops[1] = larger(loops[1], stopwatch_width(LOOPS));
}

static void take_sample(size_t variant, struct sample *sample, int kind)
{
    const size_t count = counts[variant].sample;
    double began, worked, passed, whole;
    size_t step;
    predict(variant, counts[variant].warm);
    for (step = 0; step < STEPS; step++) {
        step_seconds[step] = 0.0;
    }
    take_loops(sample->loops[kind]);
    calibrate_stamps = kind == TIMED;
    worked = working();
    began = stopwatch_now();
    whole = predict(variant, count);
    passed = stopwatch_now() - began;
    worked = working() - worked;
    calibrate_stamps = 0;
    take_loops(sample->loops[kind]);
    sample->interrupted[kind] = passed > INTERRUPTED * worked;
    if (kind == PLAIN) {
        sample->seconds[WHOLE] = whole;
        return;
    }
    for (step = 0; step < STEPS; step++) {
        sample->seconds[step] = larger(0.0, step_seconds[step] / (double)count - stamp_seconds);
    }
}

static void take_round(void)
{
    size_t turn, kind, loop;
    for (turn = 0; turn < VARIANTS; turn++) {
        const size_t variant = (turn + rounds) % VARIANTS; /* so that the order varies */
        struct sample *const sample = &samples[rounds][variant];
        for (kind = 0; kind < KINDS; kind++) {
            take_sample(variant, sample, (int)kind);
            for (loop = 0; loop < 2; loop++) {
                const double seconds = sample->loops[kind][loop];
                fastest[loop] = fastest[loop] == 0.0 || seconds < fastest[loop] ? seconds : fastest[loop];
            }
        }
    }
    rounds++;
}

static int is_noisy(const struct sample *sample, int kind)
{
    const double *const loops = sample->loops[kind];
    return loops[0] > NOISY * fastest[0] || loops[1] > NOISY * fastest[1] || sample->interrupted[kind];
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The tenth percentile of a series in some of the rounds; of all samples where too few are quiet. */
static double low(size_t variant, size_t series, size_t begin, size_t end)
{
    static double values[MOST_ROUNDS];
    size_t round, count = 0, below;
    double place;
    const int kind = series == WHOLE ? PLAIN : TIMED;
    for (round = begin; round < end; round++) {
        if (!is_noisy(&samples[round][variant], kind)) {
            values[count++] = samples[round][variant].seconds[series];
        }
    }
    if (count < FEWEST_QUIET) {
        count = 0;
        for (round = begin; round < end; round++) {
            values[count++] = samples[round][variant].seconds[series];
        }
    }
    qsort(values, count, sizeof *values, compare);
    place = 0.1 * (double)(count - 1);
    below = (size_t)place;
    return below + 1 < count ? values[below] + (place - (double)below) * (values[below + 1] - values[below])
                             : values[below];
}

static double spread(size_t variant, size_t series)
{
    const double all = low(variant, series, 0, rounds);
    const double earlier = low(variant, series, 0, rounds / 2), later = low(variant, series, rounds / 2, rounds);
    return all > 0.0 ? (earlier > later ? earlier - later : later - earlier) / all : 0.0;
}

static double largest_spread(void)
{
    double largest = 0.0;
    size_t variant;
    for (variant = 0; variant < VARIANTS; variant++) {
        largest = larger(largest, spread(variant, WHOLE));
    }
    return largest;
}

static size_t noisy_samples(void)
{
    size_t round, variant, count = 0;
    for (round = 0; round < rounds; round++) {
        for (variant = 0; variant < VARIANTS; variant++) {
            count += (size_t)(is_noisy(&samples[round][variant], PLAIN) + is_noisy(&samples[round][variant], TIMED));
        }
    }
    return count;
}

/* A quoted string, without characters that would end it. */
static void print_text(const char *text)
{
    putchar('"');
    for (; *text != '\0' && *text != '\n'; text++) {
        const unsigned char letter = (unsigned char)*text;
        putchar(letter < 32 || letter > 126 || letter == '"' || letter == '\\' ? ' ' : letter);
    }
    putchar('"');
}

/* The first of these fields that the system reports about its processor. */
static void print_processor(void)
{
    static const char *const keys[] = {"model name", "Hardware", "uarch", "CPU part", "isa"};
    static char line[512];
    size_t key;
    for (key = 0; key < sizeof keys / sizeof *keys; key++) {
        FILE *const file = fopen("/proc/cpuinfo", "r");
        while (file != NULL && fgets(line, sizeof line, file) != NULL) {
            const char *const colon = strchr(line, ':');
            if (strncmp(line, keys[key], strlen(keys[key])) == 0 && colon != NULL && colon[1] == ' ') {
                fclose(file);
                print_text(colon + 2);
                return;
            }
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    print_text("unknown");
}

static void print_series(size_t variant, size_t series)
{
    printf("\"low_us\": %.9g, \"spread\": %.4g", 1e6 * low(variant, series, 0, rounds), spread(variant, series));
}

static void print_variant(size_t variant)
{
    size_t step;
    printf("    {\"sparsity\": %s, ", sparsities[variant]);
    print_series(variant, WHOLE);
    printf(", \"steps\": [\n");
    for (step = 0; step < STEPS; step++) {
        printf("      {%s, ", described[variant][step]);
        print_series(variant, step);
        printf("}%s\n", step + 1 < STEPS ? "," : "");
    }
    printf("    ]}%s\n", variant + 1 < VARIANTS ? "," : "");
}

static void print_all(void)
{
    size_t variant;
    printf("{\n%s  \"cpu\": ", about);
    print_processor();
    printf(",\n  \"compiler\": ");
#if defined(__clang__)
    print_text(__VERSION__);
#elif defined(__GNUC__)
    print_text("gcc " __VERSION__);
#else
    print_text("unknown");
#endif
    printf(",\n  \"samples\": %lu,\n", (unsigned long)(rounds * VARIANTS * KINDS));
    printf("  \"noisy_samples\": %lu,\n", (unsigned long)noisy_samples());
    printf("  \"variants\": [\n");
    for (variant = 0; variant < VARIANTS; variant++) {
        print_variant(variant);
    }
    printf("  ]\n}\n");
}

int main(int arguments, char **given)
{
    const double seconds = arguments > 1 ? atof(given[1]) : 15.0;
    double began;
    size_t variant;
    if (!(seconds > 0.0 && seconds < 1e6)) {
        fprintf(stderr, "the time must be a number of seconds above 0, got %s\n", given[1]);
        return 2;
    }
    fprintf(stderr, "timing %d variants of the network, for at most %g s\n", VARIANTS, seconds);
    draw_image();
    for (variant = 0; variant < VARIANTS; variant++) {
        count_predictions(variant);
    }
    time_stamps();
    began = stopwatch_now();
    do {
        take_round();
    } while (rounds < FEWEST_ROUNDS ||
             (rounds < MOST_ROUNDS && stopwatch_now() - began < seconds && largest_spread() > SMALL_SPREAD));
    print_all();
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}

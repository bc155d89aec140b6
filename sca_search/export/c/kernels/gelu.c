#include <math.h>
#include <stddef.h>

static void gelu(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = 0.5f * in[i] * erfcf(-0.70710678f * in[i]); /* 1 + erf(x) is erfc(-x), which keeps small results */
    }
}

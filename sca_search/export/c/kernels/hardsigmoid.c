#include <stddef.h>

static void hardsigmoid(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = in[i] > 3.0f ? 1.0f : in[i] > -3.0f ? (in[i] + 3.0f) / 6.0f : 0.0f;
    }
}

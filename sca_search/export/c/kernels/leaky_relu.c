#include <stddef.h>

static void leaky_relu(const float *in, float *out, size_t count, float slope)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = in[i] > 0.0f ? in[i] : in[i] * slope;
    }
}

#include <math.h>
#include <stddef.h>

static void hyperbolic_tangent(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = tanhf(in[i]);
    }
}

#include <math.h>
#include <stddef.h>

static void gelu_tanh(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        const float x = in[i];
        out[i] = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x))); /* the first number is the root of 2 / pi */
    }
}

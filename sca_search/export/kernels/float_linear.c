#include "linear.h"

static float sum_floats(const unsigned char *chunk, const float *in, size_t count)
{
    float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    size_t place;
    for (place = 0; place < count; place++) {
        parts[place % 4] += load_float(chunk) * in[place];
        chunk += 4;
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

static void float_linear(const struct linear *layer, const float *in, float *out)
{
    multiply_vector(layer, in, out, sum_floats);
}

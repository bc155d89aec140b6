#include "finish.h"
#include "float_literals.h"

/* Sums are computed per block of inputs, and in parts within a block: short sums have smaller rounding errors. */
struct float_linear {
    size_t inputs, outputs;
    size_t block;           /* inputs at a time */
    struct literal weights; /* a chunk: one output's weights for one block; an output's blocks follow each other */
    struct finish finish;
};

static lanes load_weights(const unsigned char *bytes)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    lanes value;
    memcpy(&value, bytes, sizeof value);
    return value;
#else
    float values[MODEL_LANES];
    size_t i;
    for (i = 0; i < MODEL_LANES; i++) {
        values[i] = load_float(bytes + 4 * i);
    }
    return load_lanes(values);
#endif
}

static float sum_of_lanes(lanes value)
{
    float values[MODEL_LANES], total = 0.0f;
    size_t i;
    store_lanes(values, value);
    for (i = 0; i < MODEL_LANES; i++) {
        total += values[i];
    }
    return total;
}

static float multiply_block(const unsigned char *weights, const float *in, size_t count)
{
    lanes parts[4] = {all_lanes(0.0f), all_lanes(0.0f), all_lanes(0.0f), all_lanes(0.0f)};
    float rest = 0.0f;
    size_t place = 0, part;
    for (; place + 4 * MODEL_LANES <= count; place += 4 * MODEL_LANES) {
        for (part = 0; part < 4; part++) {
            const size_t at = place + part * MODEL_LANES;
            parts[part] = add_product(parts[part], load_lanes(in + at), load_weights(weights + 4 * at));
        }
    }
    /* The rest as a remainder: of `place < count` alone, gcc fears at -O2 that it might leave the address space. */
    for (part = 0; part < count % (4 * MODEL_LANES); part++) {
        rest += load_float(weights + 4 * (place + part)) * in[place + part];
    }
    return sum_of_lanes((parts[0] + parts[1]) + (parts[2] + parts[3])) + rest;
}

static void float_linear(const struct float_linear *layer, const float *in, float *out)
{
    struct chunks weights = chunks_of(&layer->weights);
    size_t output, begin;
    for (output = 0; output < layer->outputs; output++) {
        float total = 0.0f;
        for (begin = 0; begin < layer->inputs; begin += layer->block) {
            const size_t left = layer->inputs - begin;
            total += multiply_block(next_chunk(&weights), in + begin, left < layer->block ? left : layer->block);
        }
        out[output] = finished(&layer->finish, output, total);
    }
}

#include "linear_codes.h"

/* Values and places of the inputs that are not zero; how many they are. Without a branch that could be mispredicted.
 * Places are floats because scratch memory holds floats; up to 2^24 they are exact. */
static size_t pack_inputs(const float *in, size_t count, float *values, float *places)
{
    size_t place, packed = 0;
    for (place = 0; place < count; place++) {
        values[packed] = in[place];
        places[packed] = (float)place;
        packed += in[place] != 0.0f;
    }
    return packed;
}

#define SUM_LENGTH 64 /* inputs that are summed before they join the others: short sums have smaller rounding errors */

#if MODEL_LANES == 8 && defined(__AVX2__)
#define CLEAR_CODED(i) __m256 sum_##i = _mm256_setzero_ps();
#define ADD_CODED(i) sum_##i = _mm256_add_ps(sum_##i, _mm256_permutevar_ps(choices, _mm256_srli_epi32(bits, 2 * (i))));
#define JOIN_CODED(i) _mm256_storeu_ps(totals + 8 * (i), _mm256_add_ps(_mm256_loadu_ps(totals + 8 * (i)), sum_##i));

static void add_coded(const uint16_t *codes, const float *values, const float *places, size_t count, float *totals)
{
    /* By the two bits of a trit: nothing, the value, the value with its sign turned. */
    const __m256 taken = _mm256_castsi256_ps(_mm256_setr_epi32(0, -1, -1, 0, 0, -1, -1, 0));
    const __m256 turned = _mm256_setr_ps(0.0f, 0.0f, -0.0f, 0.0f, 0.0f, 0.0f, -0.0f, 0.0f);
    size_t i;
    TIMES_8(CLEAR_CODED)
    for (i = 0; i < count; i++) {
        const __m256 value = _mm256_and_ps(_mm256_broadcast_ss(values + i), taken);
        const __m256 choices = _mm256_xor_ps(value, turned);
        const void *const from = codes + (size_t)places[i] * CODED;
        const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
        TIMES_8(ADD_CODED)
    }
    TIMES_8(JOIN_CODED)
}
#else
static void add_coded(const uint16_t *codes, const float *values, const float *places, size_t count, float *totals)
{
    float sums[GROUP];
    size_t i, number, vector;
    for (i = 0; i < GROUP; i++) {
        sums[i] = 0.0f;
    }
    for (i = 0; i < count; i++) {
        const float choices[4] = {0.0f, values[i], -values[i], 0.0f};
        for (number = 0; number < CODED; number++) {
            unsigned bits = codes[(size_t)places[i] * CODED + number];
            for (vector = 0; vector < CODED; vector++) {
                sums[vector * CODED + number] += choices[bits & 3];
                bits >>= 2;
            }
        }
    }
    for (i = 0; i < GROUP; i++) {
        totals[i] += sums[i];
    }
}
#endif

/* Work space: values and places of the inputs. */
static void ternary_linear_codes(const struct ternary_linear *layer, const uint16_t *codes, const float *in, float *out,
                                 float *work)
{
    float *const places = work + layer->inputs;
    const size_t packed = pack_inputs(in, layer->inputs, work, places);
    size_t group, begin, place;
    for (group = 0; group < layer->outputs; group += GROUP) {
        float totals[GROUP] = {0.0f};
        for (begin = 0; begin < packed; begin += SUM_LENGTH) {
            const size_t left = packed - begin;
            add_coded(codes, work + begin, places + begin, left < SUM_LENGTH ? left : SUM_LENGTH, totals);
        }
        for (place = 0; place < GROUP && group + place < layer->outputs; place++) {
            const size_t index = group + place, output = layer->outputs_read ? layer->outputs_read[index] : index;
            out[output] = finished(&layer->finish, output, totals[place]);
        }
        codes += layer->inputs * CODED;
    }
}

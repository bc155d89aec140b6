#include "integer_lanes.h"
#include "linear_codes.h"

/* The codes are those of ternary_linear_codes.c. */

#define INTEGER_SUM_LENGTH 512 /* inputs of up to 127, by two: 16 bits have room for 258 of them */

/* Values and places of the inputs that are not zero; how many they are. Without a branch that could be mispredicted. */
static size_t pack_integers(const int8_t *in, size_t count, int32_t *packed_inputs)
{
    size_t place, packed = 0;
    for (place = 0; place < count; place++) {
        store_sum(packed_inputs + 2 * packed, in[place]);
        store_sum(packed_inputs + 2 * packed + 1, (int32_t)place);
        packed += in[place] != 0;
    }
    return packed;
}

#if INTEGER_LANES == 16
/* Two inputs at a time, in the two halves of a vector, which are joined at the end. The two bits of a trit in the highest
 * place are a number below zero for -1. */
#define CLEAR_CODES(i) __m256i sum_##i = _mm256_setzero_si256();
#define ADD_CODES(i)                                                                                                  \
    sum_##i = _mm256_add_epi16(                                                                                       \
        sum_##i, _mm256_sign_epi16(value, _mm256_and_si256(_mm256_slli_epi16(bits, 14 - 2 * (i)), two)));
#define JOIN_CODES(i)                                                                                                 \
    _mm256_storeu_si256((__m256i *)(void *)(totals + 8 * (i)),                                                        \
                        _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(totals + 8 * (i))),       \
                                         _mm256_add_epi32(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sum_##i)),     \
                                                          _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sum_##i, 1)))));

static void add_integer_codes(const uint16_t *codes, const int32_t *inputs, size_t count, int32_t *totals)
{
    const __m256i two = _mm256_set1_epi16((short)0xC000);
    size_t i;
    TIMES_8(CLEAR_CODES)
    for (i = 0; i < count; i += 2) {
        const int32_t *const left = inputs + 2 * i, *const right = inputs + 2 * (i + 1 < count ? i + 1 : i);
        const int16_t second = (int16_t)(i + 1 < count ? load_sum(right) : 0);
        const void *const from = codes + (size_t)load_sum(left + 1) * CODED;
        const void *const other = codes + (size_t)load_sum(right + 1) * CODED;
        const __m256i value = _mm256_set_m128i(_mm_set1_epi16(second), _mm_set1_epi16((int16_t)load_sum(left)));
        const __m256i bits =
            _mm256_set_m128i(_mm_loadu_si128((const __m128i *)other), _mm_loadu_si128((const __m128i *)from));
        TIMES_8(ADD_CODES)
    }
    TIMES_8(JOIN_CODES)
}
#else
static void add_integer_codes(const uint16_t *codes, const int32_t *inputs, size_t count, int32_t *totals)
{
    size_t i, number, vector;
    for (i = 0; i < count; i++) {
        const int32_t value = load_sum(inputs + 2 * i), choices[4] = {0, value, -value, 0};
        const uint16_t *const from = codes + (size_t)load_sum(inputs + 2 * i + 1) * CODED;
        for (number = 0; number < CODED; number++) {
            unsigned bits = from[number];
            for (vector = 0; vector < CODED; vector++) {
                totals[vector * CODED + number] += choices[bits & 3];
                bits >>= 2;
            }
        }
    }
}
#endif

/* Work space: values and places of the inputs. */
static void integer_linear_codes(const struct ternary_linear *layer, const uint16_t *codes, const int8_t *in,
                                 int32_t *sums, int32_t *work)
{
    const size_t packed = pack_integers(in, layer->inputs, work);
    size_t group, begin, place;
    for (group = 0; group < layer->outputs; group += GROUP) {
        int32_t totals[GROUP] = {0};
        for (begin = 0; begin < packed; begin += INTEGER_SUM_LENGTH) {
            const size_t left = packed - begin;
            add_integer_codes(codes, work + 2 * begin, left < INTEGER_SUM_LENGTH ? left : INTEGER_SUM_LENGTH, totals);
        }
        for (place = 0; place < GROUP && group + place < layer->outputs; place++) {
            store_sum(sums + group + place, totals[place]);
        }
        codes += layer->inputs * CODED;
    }
}

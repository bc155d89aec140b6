#pragma once
#include "requantize.h"

/*
 * Vectors of 16-bit sums: 16 under AVX2, 8 where there are vectors of 16 bytes, else single ones. The lists are made
 * such that they never overflow. Maps are processed in rows of CELLS cells, so that a vector may hold two rows.
 */
#if MODEL_LANES == 8 && defined(__AVX2__)
#define INTEGER_LANES 16
#elif MODEL_LANES > 1 && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define INTEGER_LANES 8
#else
#define INTEGER_LANES 1
#endif

#if INTEGER_LANES == 1
typedef uint16_t sums16;
#else
typedef uint16_t sums16 __attribute__((vector_size(2 * INTEGER_LANES)));
#endif

INLINE sums16 load_sums16(const uint16_t *from)
{
    sums16 value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store_sums16(uint16_t *to, sums16 value)
{
    memcpy(to, &value, sizeof value);
}

INLINE sums16 added(sums16 left, sums16 right)
{
    return (sums16)(left + right);
}

INLINE sums16 subtracted(sums16 left, sums16 right)
{
    return (sums16)(left - right);
}

/* A row of eight sums of 32 bits. */
#if INTEGER_LANES == 16
typedef __m256i eight_sums;
#else
typedef struct {
    int32_t cell[CELLS];
} eight_sums;
#endif

INLINE eight_sums load_eight(const int32_t *from)
{
    eight_sums value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store_eight(int32_t *to, eight_sums value)
{
    memcpy(to, &value, sizeof value);
}

INLINE eight_sums widened(const uint16_t *from)
{
#if INTEGER_LANES == 16
    return _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#else
    eight_sums value;
    int16_t cells[CELLS];
    size_t cell;
    memcpy(cells, from, sizeof cells);
    for (cell = 0; cell < CELLS; cell++) {
        value.cell[cell] = cells[cell];
    }
    return value;
#endif
}

INLINE eight_sums eight_added(eight_sums left, eight_sums right)
{
#if INTEGER_LANES == 16
    return _mm256_add_epi32(left, right);
#else
    size_t cell;
    for (cell = 0; cell < CELLS; cell++) {
        left.cell[cell] += right.cell[cell];
    }
    return left;
#endif
}

/* The numbers of a requantization, loaded from memory: to the compiler, written bytes may alias them. */
typedef struct {
#if INTEGER_LANES == 16
    __m256i factor, bias, other, lowest_sum, highest_sum, lowest, highest;
    __m128i shift;
#else
    struct requantize to;
    struct integer_limits limits;
#endif
} eight_numbers;

INLINE eight_numbers numbers_of(const struct requantize *to, struct integer_limits limits)
{
    eight_numbers numbers;
#if INTEGER_LANES == 16
    numbers.factor = _mm256_set1_epi32(to->factor);
    numbers.bias = _mm256_set1_epi32(to->bias);
    numbers.other = _mm256_set1_epi32(to->other);
    numbers.lowest_sum = _mm256_set1_epi32(to->lowest_sum);
    numbers.highest_sum = _mm256_set1_epi32(to->highest_sum);
    numbers.lowest = _mm256_set1_epi16((short)limits.lowest);
    numbers.highest = _mm256_set1_epi16((short)limits.highest);
    numbers.shift = _mm_cvtsi32_si128(to->shift);
#else
    numbers.to = *to;
    numbers.limits = limits;
#endif
    return numbers;
}

#if INTEGER_LANES == 16
INLINE __m256i scaled_eight(const eight_numbers *numbers, __m256i sums, const int8_t *residual)
{
    __m256i value = _mm256_min_epi32(_mm256_max_epi32(sums, numbers->lowest_sum), numbers->highest_sum);
    value = _mm256_add_epi32(_mm256_mullo_epi32(value, numbers->factor), numbers->bias);
    if (residual) {
        const __m256i other = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)residual));
        value = _mm256_add_epi32(value, _mm256_mullo_epi32(other, numbers->other));
    }
    return _mm256_sra_epi32(value, numbers->shift);
}
#endif

/* `residual` may be none. */
INLINE void requantize_eight(const eight_numbers *numbers, eight_sums sums, const int8_t *residual, int8_t *out)
{
#if INTEGER_LANES == 16
    const __m256i value = scaled_eight(numbers, sums, residual);
    __m128i narrow;
    narrow = _mm_packs_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
    narrow = _mm_max_epi16(_mm_min_epi16(narrow, _mm256_castsi256_si128(numbers->highest)),
                           _mm256_castsi256_si128(numbers->lowest));
    _mm_storel_epi64((__m128i *)(void *)out, _mm_packs_epi16(narrow, narrow));
#else
    size_t cell;
    for (cell = 0; cell < CELLS; cell++) {
        out[cell] = requantized(&numbers->to, numbers->limits, sums.cell[cell], residual ? residual[cell] : 0);
    }
#endif
}

#if INTEGER_LANES == 16
/* Two rows, the second of which begins `width` cells after the first. */
INLINE void requantize_two(const eight_numbers *numbers, __m256i upper, __m256i lower, const int8_t *residual,
                           int8_t *out, size_t width)
{
    const __m256i first = scaled_eight(numbers, upper, residual);
    const __m256i second = scaled_eight(numbers, lower, residual ? residual + width : NULL);
    __m256i value = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xD8);
    value = _mm256_max_epi16(_mm256_min_epi16(value, numbers->highest), numbers->lowest);
    value = _mm256_packs_epi16(value, value);
    _mm_storel_epi64((__m128i *)(void *)out, _mm256_castsi256_si128(value));
    _mm_storel_epi64((__m128i *)(void *)(out + width), _mm256_extracti128_si256(value, 1));
}
#endif

#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Vectors of floats, if the machine has them: 8 under AVX, 4 under SSE2, NEON and WebAssembly, else single
 * floats. MODEL_LANES asks for fewer. For any length, maps are processed in rows of CELLS cells, so that tables
 * of offsets are the same on every machine.
 */
#define CELLS 8

/* Small functions; a model may leave some of them unused. */
#ifdef __GNUC__
#define INLINE static inline __attribute__((unused))
#else
#define INLINE static inline
#endif

#ifndef MODEL_LANES
#if defined(__GNUC__) && defined(__AVX__)
#define MODEL_LANES 8
#elif defined(__GNUC__) && (defined(__SSE2__) || defined(__ARM_NEON) || defined(__wasm_simd128__))
#define MODEL_LANES 4
#else
#define MODEL_LANES 1
#endif
#endif

#if MODEL_LANES == 8 && defined(__AVX2__)
#include <immintrin.h>
#elif MODEL_LANES == 4 && defined(__SSE2__)
#include <emmintrin.h>
#endif

#if MODEL_LANES == 1
typedef float lanes;
#else
typedef float lanes __attribute__((vector_size(4 * MODEL_LANES)));
typedef int32_t lane_bits __attribute__((vector_size(4 * MODEL_LANES)));
#endif

/* Vectors in a row of cells. */
#define ROW_PARTS (CELLS / MODEL_LANES)

INLINE lanes load_lanes(const float *from)
{
    lanes value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store_lanes(float *to, lanes value)
{
    memcpy(to, &value, sizeof value);
}

INLINE lanes all_lanes(float value)
{
#if MODEL_LANES == 8
    const lanes all = {value, value, value, value, value, value, value, value};
#elif MODEL_LANES == 4
    const lanes all = {value, value, value, value};
#else
    const lanes all = value;
#endif
    return all;
}

/* The cells of the border after a row of a map. */
INLINE void clear_behind(float *end)
{
    size_t cell;
    for (cell = 0; cell < CELLS; cell += MODEL_LANES) {
        store_lanes(end + cell, all_lanes(0.0f));
    }
}

/* The larger of each pair; NaN is preserved if it is the second. */
INLINE lanes larger_lanes(lanes left, lanes right)
{
#if MODEL_LANES == 1
    return left > right ? left : right;
#elif MODEL_LANES == 8 && defined(__AVX2__)
    return (lanes)_mm256_max_ps((__m256)left, (__m256)right);
#elif MODEL_LANES == 4 && defined(__SSE2__)
    return (lanes)_mm_max_ps((__m128)left, (__m128)right);
#else
    const lane_bits take_left = left > right;
    return (lanes)(((lane_bits)left & take_left) | ((lane_bits)right & ~take_left));
#endif
}

INLINE lanes smaller_lanes(lanes left, lanes right)
{
#if MODEL_LANES == 1
    return left < right ? left : right;
#elif MODEL_LANES == 8 && defined(__AVX2__)
    return (lanes)_mm256_min_ps((__m256)left, (__m256)right);
#elif MODEL_LANES == 4 && defined(__SSE2__)
    return (lanes)_mm_min_ps((__m128)left, (__m128)right);
#else
    const lane_bits take_left = left < right;
    return (lanes)(((lane_bits)left & take_left) | ((lane_bits)right & ~take_left));
#endif
}

/* sum + value * factor, with a single rounding if the machine supports it. */
INLINE lanes add_product(lanes sum, lanes value, lanes factor)
{
#if MODEL_LANES == 8 && defined(__AVX2__) && defined(__FMA__)
    return (lanes)_mm256_fmadd_ps((__m256)value, (__m256)factor, (__m256)sum);
#else
    return sum + value * factor;
#endif
}

/* What is done with 1 to 8 accumulators, each a variable of its own so that it stays in a register. */
#define TIMES_1(DO) DO(0)
#define TIMES_2(DO) TIMES_1(DO) DO(1)
#define TIMES_3(DO) TIMES_2(DO) DO(2)
#define TIMES_4(DO) TIMES_3(DO) DO(3)
#define TIMES_5(DO) TIMES_4(DO) DO(4)
#define TIMES_6(DO) TIMES_5(DO) DO(5)
#define TIMES_7(DO) TIMES_6(DO) DO(6)
#define TIMES_8(DO) TIMES_7(DO) DO(7)

/* A hook for programs that time the steps; empty unless it is defined before. */
#ifndef MODEL_STEP_DONE
#define MODEL_STEP_DONE(place)
#endif

void model_init(void *tables)
{
    uint16_t *const expanded = (uint16_t *)tables;
    (void)expanded;
    @EXPANSIONS@
}

void model_predict_with(const void *tables, float *scratch, const float *in, float *out)
{
    const uint16_t *const expanded = (const uint16_t *)tables;
    (void)expanded;
    @STATEMENTS@
}

#ifdef MODEL_THREADS
#ifdef _OPENMP
#include <omp.h>
#endif

void model_predict_batch(const void *tables, float *scratch, const float *in, float *out, size_t count)
{
    long image; /* OpenMP wants it signed */
#ifdef _OPENMP
#pragma omp parallel for num_threads(MODEL_THREADS) schedule(static)
#endif
    for (image = 0; image < (long)count; image++) {
#ifdef _OPENMP
        float *const own = scratch + (size_t)omp_get_thread_num() * MODEL_SCRATCH;
#else
        float *const own = scratch;
#endif
        model_predict_with(tables, own, in + image * MODEL_INPUTS, out + image * MODEL_OUTPUTS);
    }
}
#endif

#ifndef MODEL_NO_SCRATCH
#ifdef __GNUC__
#define MODEL_ALIGNED __attribute__((aligned(64)))
#else
#define MODEL_ALIGNED
#endif

void model_predict(const float *in, float *out)
{
    static MODEL_ALIGNED float scratch[MODEL_SCRATCH];
    static MODEL_ALIGNED uint16_t tables[MODEL_TABLES / 2 + 1];
    static int ready = 0;
    if (!ready) {
        model_init(tables);
        ready = 1;
    }
    model_predict_with(tables, scratch, in, out);
}
#endif

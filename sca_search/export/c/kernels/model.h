#ifndef MODEL_H
#define MODEL_H

/* The number of floats of an image, @SHAPE@, and the number of logits. */
#define MODEL_INPUTS @INPUTS@
#define MODEL_OUTPUTS @OUTPUTS@

/* Bytes of the tables that model_init fills with expanded weights; 0 if they are stored in expanded form. */
#define MODEL_TABLES @TABLES@

/* Floats of scratch memory per prediction. */
#define MODEL_SCRATCH @SCRATCH@

#ifdef MODEL_THREADS
#include <stddef.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

extern const char *const model_class_names[MODEL_OUTPUTS];

/* Fills the tables: once, before the first prediction. Any number of threads can then use them. Both
 * kinds of memory are aligned as a float is; at a multiple of 64 bytes, scratch memory is fastest. */
void model_init(void *tables);

/* The logits of one image, channel by channel and row by row, before normalization, which is done inside. */
void model_predict_with(const void *tables, float *scratch, const float *in, float *out);

#ifdef MODEL_THREADS
/* The logits of this many images by MODEL_THREADS threads, each with its own scratch memory: MODEL_SCRATCH floats per
 * thread, one after the other. Compile with OpenMP (-fopenmp); without it, there is one thread. */
void model_predict_batch(const void *tables, float *scratch, const float *in, float *out, size_t count);
#endif

/* Like model_predict_with, but with static memory: for one thread at a time. Left out where MODEL_NO_SCRATCH is
   defined. */
void model_predict(const float *in, float *out);

#ifdef __cplusplus
}
#endif

#endif

#ifndef MODEL_H
#define MODEL_H

/* How many floats an image has, @SHAPE@, and how many logits there are. */
#define MODEL_INPUTS @INPUTS@
#define MODEL_OUTPUTS @OUTPUTS@

/* How many floats of scratch memory a prediction needs. */
#define MODEL_SCRATCH @SCRATCH@

#ifdef __cplusplus
extern "C" {
#endif

extern const char *const model_class_names[MODEL_OUTPUTS];

/* The logits of one image, channel by channel and row by row, as it was before normalisation: that is done inside. */
void model_predict_with(float *scratch, const float *in, float *out);

/* The same with scratch memory of its own, so by one thread at a time. Left out where MODEL_NO_SCRATCH is defined. */
void model_predict(const float *in, float *out);

#ifdef __cplusplus
}
#endif

#endif

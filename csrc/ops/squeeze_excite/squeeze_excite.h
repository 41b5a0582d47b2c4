/*
 * squeeze_excite.h - channels weighed by a small network over their means. Level close.
 *
 *   y[n][c][i] = x[n][c][i] * gate(b2[c] + w2[c] . hidden[n])
 *   hidden[n][k] = act(b1[k] + w1[k] . means[n]),  means[n][c] = x[n][c]'s mean
 *
 * J. Hu, L. Shen, G. Sun, "Squeeze-and-Excitation Networks", 2018; the hard gate is of
 * A. Howard and others, "Searching for MobileNetV3", 2019. Inputs x, w1, w2 and, where
 * there are biases, b1 and b2, all float32 without gaps: x is NCHW of any number of
 * axes, w1 [hidden, channels], w2 [channels, hidden]. y may lie on x.
 *
 * Rows add up in float, lane by lane, and have the same bits with any number of
 * threads and in any batch.
 */
#ifndef PTAC_OPS_SQUEEZE_EXCITE_SQUEEZE_EXCITE_H
#define PTAC_OPS_SQUEEZE_EXCITE_SQUEEZE_EXCITE_H

#include "core/host.h"
#include "core/kernel.h"
#include "ops/linear/act.h"

enum {
    PTAC_EXCITE_X,
    PTAC_EXCITE_W1,
    PTAC_EXCITE_W2,
    PTAC_EXCITE_B1,
    PTAC_EXCITE_B2,
    PTAC_EXCITE_INPUTS,
};

typedef struct ptac_squeeze_excite {
    int64_t n, n_channels, n_hidden, n_places;
    ptac_act act; /* none, ReLU or SiLU */
    bool is_hard; /* the gate is min(max(z + 3, 0), 6) / 6, and not a sigmoid */
} ptac_squeeze_excite;

/* A call in its stages, over what the ones before have left. */
typedef struct ptac_excitement {
    const ptac_squeeze_excite *p;
    const float *x, *w1, *w2, *b1, *b2; /* the last two may be NULL */
    float *y;
    float *means, *hidden, *gates; /* [n][channels], [n][hidden], [n][channels] */
} ptac_excitement;

typedef struct ptac_excite_stages {
    ptac_range_fn squeeze; /* planes of x */
    ptac_range_fn hide;    /* rows of w1, of all images */
    ptac_range_fn excite;  /* rows of w2, of all images, and the planes they weigh */
} ptac_excite_stages;

ptac_reason ptac_excite_accepts(const ptac_call *call);
ptac_status ptac_excite_run(const ptac_call *call, const ptac_excite_stages *stages);

#endif

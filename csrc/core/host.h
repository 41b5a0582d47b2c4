/*
 * host.h - what the program around us lends: threads, and its own arithmetic.
 *
 * The core runs without any of it (serially, with libm); bind installs torch's.
 * Set once before the first kernel runs, then only read.
 */
#ifndef PTAC_CORE_HOST_H
#define PTAC_CORE_HOST_H

#include "core/base.h"

typedef void (*ptac_range_fn)(int64_t begin, int64_t end, void *context);

/* How the host rounds square roots; see ptac_host.sqrt_f32. */
typedef enum ptac_sqrt_rule {
    PTAC_SQRT_IEEE = 0,  /* correctly rounded, as the instruction does */
    PTAC_SQRT_REFINED,   /* SSE reciprocal estimate and two refinements, see optim/ */
    PTAC_SQRT_CORRECTED, /* AVX-512 reciprocal estimate and one correction, there too */
    PTAC_SQRT_CALL,      /* only the host's own function gives its bits */
} ptac_sqrt_rule;

typedef struct ptac_host {
    /*
     * Call body on pieces of [begin, end) from several threads. Returns when all are
     * done. grain is the least that is worth a thread; pieces may have any length, and
     * those that torch cuts are shorter than grain where an even share is.
     */
    void (*parallel_for)(int64_t begin, int64_t end, int64_t grain, ptac_range_fn body,
                         void *context);
    /* Threads that parallel_for would use now, at least 1. */
    int (*n_threads)(void);
    /* n square roots, bit for bit as the host's own operators compute them. */
    void (*sqrt_f32)(const float *in, float *out, int64_t n);
    void (*sqrt_f64)(const double *in, double *out, int64_t n);
    ptac_sqrt_rule sqrt_rule;     /* of sqrt_f32 */
    ptac_sqrt_rule sqrt_rule_f64; /* of sqrt_f64; PTAC_SQRT_IEEE or PTAC_SQRT_CALL */
    bool fma; /* the host's operators fuse a*b+c, in vectors and in their tails */
} ptac_host;

extern ptac_host ptac_the_host;

static inline void ptac_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                     ptac_range_fn body, void *context)
{
    if (end - begin <= grain)
        body(begin, end, context);
    else
        ptac_the_host.parallel_for(begin, end, grain, body, context);
}

#endif

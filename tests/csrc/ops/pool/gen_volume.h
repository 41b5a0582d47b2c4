/*
 * gen_volume.h - random batches of volumes and windows, for all 3-d pooling.
 */
#ifndef PTAC_TESTS_GEN_VOLUME_H
#define PTAC_TESTS_GEN_VOLUME_H

#include "checkrows.h"
#include "ops/pool/volume/window3d.h"

/* A batch of volumes as a tensor: CDHW or NCDHW, dense, in the layout torch guesses. */
typedef struct random_volume {
    int n_dims;
    int64_t sizes[5], out_sizes[5];
    ptac_dtype dtype;
    bool channels_last;
} random_volume;

/*
 * Windows and a volume that they fit on, by the checks that bind makes: those of
 * random_pool() with a third axis. Without dilation for operators that have none.
 */
void random_volume_pool(rng *r, random_volume *x, ptac_window2d *window,
                        ptac_image *slab, ptac_depth *depth, bool may_dilate);

/* A volume in rows, and what adaptive pooling makes of it. */
void random_adaptive_volume_pool(rng *r, random_volume *x, ptac_image *slab,
                                 ptac_depth *depth);

/* The windows and the volume in words, into c->note. */
void note_volume_pool(test_call *c, const random_volume *x, const ptac_window2d *window,
                      const ptac_image *slab, const ptac_depth *depth);

#endif

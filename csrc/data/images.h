/*
 * images.h - batches of images, cropped, flipped and turned into floats.
 *
 * What torchvision's transforms do image by image. All that happens to a pixel's value
 * (ToTensor, Normalize) is a table: 256 floats a channel, which torchvision's own
 * transforms have filled. What happens to its place is a sequence of moves, each with
 * the random numbers that it takes, drawn as torch draws them.
 */
#ifndef PTAC_DATA_IMAGES_H
#define PTAC_DATA_IMAGES_H

#include "data/rows.h"

typedef enum ptac_move_kind {
    PTAC_MOVE_PAD = 0,     /* numbers: left, top, right, bottom; pixels to add there */
    PTAC_MOVE_CROP,        /* numbers: top, left, height, width of what stays */
    PTAC_MOVE_RANDOM_CROP, /* numbers: height, width; two draws unless that is all */
    PTAC_MOVE_FLIP_X,      /* left becomes right, with a probability; one draw */
    PTAC_MOVE_FLIP_Y,      /* top becomes bottom, likewise */
    PTAC_N_MOVE_KINDS,
} ptac_move_kind;

typedef struct ptac_move {
    ptac_move_kind kind;
    int32_t numbers[4];
    float probability; /* a draw in [0, 1) below it flips */
} ptac_move;

enum {
    PTAC_MAX_MOVES = 16,
    PTAC_MAX_IMAGE_EXTENT = 1 << 15, /* pixels in a row or column, padding included */
};

typedef struct ptac_images {
    ptac_table table; /* rows are images of height x width x channels bytes */
    int32_t height, width, channels;
    const ptac_move *moves;
    int32_t n_moves;
    const float *values; /* channels x 256 */
    const float *fill;   /* a padded pixel's value, by channel */
} ptac_images;

/*
 * What the moves make of an image: its extent, and the draws that each image takes.
 * PTAC_UNSUPPORTED where they cannot be made: a crop that sticks out, an extent that is
 * not positive or beyond PTAC_MAX_IMAGE_EXTENT, an unknown kind, or padding behind a
 * crop, which would have to hide what was cropped.
 */
ptac_status ptac_images_extent(const ptac_images *images, int32_t *height,
                               int32_t *width, int32_t *n_draws);

/*
 * Make the batch: out is n x channels x height x width floats, drawn the n x n_draws
 * numbers of 32 bits. What ptac_images_extent() said, holds.
 */
void ptac_images_batch(const ptac_images *images, const int64_t *index, int64_t n,
                       const uint32_t *drawn, float *out);

#endif

/*
 * implicit.h - convolutions of any geometry as products of a matrix that is never made.
 *
 * The textbook's im2col copies an image once for each tap, so that a convolution is a
 * product of matrices: K. Chellapilla, S. Puri and P. Simard, High Performance
 * Convolutional Neural Networks for Document Processing, 2006. Here a piece of an image
 * is copied once, with its padding, into rows of one pitch; behind one another they are
 * a single long row. A tap then is an offset in it, and a vector of neighbouring
 * places meets the tap by one load, also across the ends of rows. What is computed for
 * places between rows is left out on the way to the result.
 *
 * Words, besides those of conv2d.h:
 *
 *   place    a result before such are left out; places are counted along three axes
 *   source   the image that is copied: x, or for the gradient of the data grad_y
 *   phase    of a stride s the source has s phases along an axis, every s-th element;
 *            each is copied apart, so that the places of a tap are neighbours
 *   class    for the gradient of the data results are in as many classes along an axis,
 *            each with taps of its own: those that meet it
 *   strip    places that are copied and computed together
 *   term     a channel of the source and a tap, whose products a result sums up
 *
 * Sums are cut, see TERMS_AT_ONCE in implicit_plan.c; they have the same bits with any
 * number of threads and whatever else is in the batch. Gradients of weights, which are
 * sums over the batch, have them with as many threads.
 */
#ifndef PTAC_OPS_CONV_IMPLICIT_IMPLICIT_H
#define PTAC_OPS_CONV_IMPLICIT_IMPLICIT_H

#include "core/host.h"
#include "ops/conv/conv2d.h"

enum {
    PTAC_N_AXES = 3, /* depth, height, width */
    PTAC_MOST_PHASES = 32,
};

/* One axis of a convolution as its results see it. */
typedef struct ptac_implicit_axis {
    int n_places;
    int n_source, n_results;
    /* Slot j of phase f is source element j * source_step + f - lead. */
    int source_step, lead;
    /* Place i is result i * result_step + its class - start, if there is one. */
    int result_step, start;
    int reach; /* slots behind the places' own that taps meet */
    int n_taps, tap_step;
    bool is_data;
    int n_phases, phases[PTAC_MOST_PHASES]; /* that taps meet */
} ptac_implicit_axis;

/* Where a tap lies: in the copied source, and among the weights of a channel. */
typedef struct ptac_implicit_tap {
    int at, weight;
} ptac_implicit_tap;

/* Taps of a class of results, a run of the plan's. */
typedef struct ptac_implicit_class {
    int of[PTAC_N_AXES];
    int first, n;
    int chunk; /* channels that are summed together */
} ptac_implicit_class;

typedef struct ptac_implicit {
    ptac_implicit_axis axis[PTAC_N_AXES];
    int64_t n;                      /* images */
    int groups, n_channels, n_rows; /* of a group: source channels, result channels */
    int64_t source_plane, result_plane;
    const float *source, *weight, *shift, *scale; /* the last two may be NULL */
    float *result;
    /* Between the weights of neighbouring rows, channels, groups. */
    int64_t row_step, channel_step, group_step;
    ptac_act act;

    int n_classes, n_taps;
    bool is_whole; /* the source needs no copy, results none either */

    /* A strip: images and places along the axes, but for the last ones. */
    int images, strip[PTAC_N_AXES];
    int most_places, most_copy;                     /* that it has; floats of a copy */
    int slots[PTAC_N_AXES];                         /* of a phase of one image */
    int64_t n_images, n_strips[PTAC_N_AXES], n_all; /* strips */
    int64_t phase_size, plane_size; /* floats of the copy of a channel */
    int n_parts;                    /* of the rows, when there are few strips */
    int rows;                       /* of a block, which are summed together */
    int most_rows;                  /* that there is room for sums of */
    int n_near;                     /* channels whose source stays in the first cache */
    /*
     * Weights whose rows are not long runs are copied, so that a block's are one. From
     * then on taps count their weights in there.
     */
    bool is_packed;
    float *packed;

    int n_pieces;
    int64_t n_items;
    int64_t copy_size, sums_step, n_private; /* floats of scratch, of a piece */
    /* Of the gradient of a weight, which is the result then. */
    const float *grad;
    float *partial; /* sums of pieces, of all weights each */
    int64_t n_weights;
    /* In the scratch, whose floats count; taps begin it. Each piece has a part. */
    int64_t classes_at, packed_at, partial_at, private_at, n_scratch;
    int64_t n_blocks; /* of rows, in all groups */
    ptac_implicit_tap *taps;
    ptac_implicit_class *classes;
    float *scratch;
} ptac_implicit;

/* What the template makes of an instruction set. */
typedef struct ptac_implicit_stages {
    int lanes, rows;          /* of a vector; results that are summed together */
    int sum_rows, sum_terms;  /* of a weight's gradient, likewise */
    ptac_range_fn pack, run;  /* blocks of rows; pieces */
    ptac_range_fn weigh;      /* pieces of the gradient of a weight */
    ptac_range_fn sum_biases; /* channels; the context is the call */
} ptac_implicit_stages;

/* An axis of the gradient of the data, or of the other results. */
ptac_implicit_axis ptac_implicit_axis_of(bool is_data, int in, int out, int kernel,
                                         int stride, int dilation, int pad);

/* The classes of a plan that has been cut, and their taps. */
void ptac_implicit_list_taps(ptac_implicit *plan);

/* Places of a strip in a row, with those between. */
int64_t ptac_implicit_places(const ptac_implicit *plan);

/* The channels whose products with so many taps of a class are summed together. */
int ptac_implicit_chunk(const ptac_implicit *plan, int n_taps);

/* Strips are so small beside what taps reach that copying them is most of the work. */
bool ptac_implicit_copies_much(const ptac_call *call);

/* How a call is cut; and its parts of a scratch of n_scratch floats, with its taps. */
ptac_implicit ptac_implicit_plan_of(const ptac_call *call,
                                    const ptac_implicit_stages *stages);
void ptac_implicit_enter(ptac_implicit *plan, float *scratch);

ptac_reason ptac_implicit_accepts(const ptac_call *call);
/*
 * Not where little or no gain is expected (implicit_gain.h), of gradients of the data
 * only where a loss is, as tables know more of these. Forward, besides, not to a
 * few places, or few of many images, nor by kernels larger than the image; nor, where
 * nothing is expected, to far fewer channels than from. Of what ATen does itself, which
 * is unknown, 1x1 kernels on one image, or on several larger ones. Where a norm or an
 * activation follows, less gain is enough.
 */
bool ptac_implicit_pays(const ptac_call *call, const ptac_implicit_stages *stages);

/* Where no kind says so, only what the expected gain leaves no doubt about. */
bool ptac_implicit_pays_in_any(const ptac_call *call,
                               const ptac_implicit_stages *stages);
ptac_status ptac_implicit_run(const ptac_call *call,
                              const ptac_implicit_stages *stages);

#endif

/*
 * copy.h - elements copied from one arrangement in memory to another. Level exact.
 *
 * A call has one input, of as many elements as the output has or fewer, which are then
 * repeated. Where the elements lie is in a plan, ptac_copy: loops over both, slowest
 * first. Rows look at the plan and at the two addresses, and not at the views' sizes.
 * Of a dtype only the size counts: 4 bytes are told as float32, 2 as bfloat16 and 8 as
 * float64.
 *
 * Input and output do not overlap, and no element of the output is written twice.
 */
#ifndef PTAC_OPS_COPY_COPY_H
#define PTAC_OPS_COPY_COPY_H

#include "core/host.h"
#include "core/kernel.h"

enum {
    PTAC_COPY_DIMS = 8,
};

typedef enum ptac_copy_way {
    PTAC_COPY_DENSE, /* one run: rows leave it to stock */
    PTAC_COPY_RUNS,  /* the last loop goes over neighbours both here and there */
    /*
     * The last loop goes over neighbours in the output, the one before it over
     * neighbours in the input: a plane is turned.
     */
    PTAC_COPY_TURNED,
    PTAC_COPY_OTHER, /* likewise */
} ptac_copy_way;

typedef struct ptac_copy {
    int n_dims; /* at least 1 */
    int bytes;  /* of an element: 2, 4, 8 or 16; several of torch's may be one */
    ptac_copy_way way;
    int64_t n_elements; /* torch's */
    int64_t sizes[PTAC_COPY_DIMS];
    int64_t to[PTAC_COPY_DIMS], from[PTAC_COPY_DIMS]; /* strides in bytes */
} ptac_copy;

/*
 * The plan of a copy into a tensor of these sizes and strides, from one that is
 * repeated where a size of it is 1 or missing. PTAC_ARGUMENT: the sizes do not fit.
 */
ptac_reason ptac_copy_plan(const ptac_view *to, const ptac_view *from, int bytes,
                           ptac_copy *plan);

/* A side of a turned plane that is narrow: it has fewer elements than a block. */
static inline bool ptac_copy_is_narrow(const ptac_copy *plan, int loop)
{
    return plan->sizes[loop] < (plan->bytes < 8 ? 8 : 4);
}

/*
 * Of a turned plane, how many stripes threads share: of columns, which are neighbours
 * in the input, or of rows, the narrow side whole.
 */
typedef struct ptac_copy_stripes {
    int64_t n, width;
    bool of_columns;
} ptac_copy_stripes;

ptac_copy_stripes ptac_copy_cut(const ptac_copy *plan);

/* Where the loops before the last n_inner stand at their index-th turn. */
typedef struct ptac_copy_place {
    int n_outer;
    int64_t at[PTAC_COPY_DIMS];
    int64_t to, from; /* bytes from the beginning */
} ptac_copy_place;

static inline ptac_copy_place ptac_copy_seek(const ptac_copy *plan, int n_inner,
                                             int64_t index)
{
    ptac_copy_place place = {.n_outer = plan->n_dims - n_inner};

    for (int i = place.n_outer - 1; i >= 0; i--) {
        place.at[i] = index % plan->sizes[i];
        index /= plan->sizes[i];
        place.to += place.at[i] * plan->to[i];
        place.from += place.at[i] * plan->from[i];
    }
    return place;
}

static inline void ptac_copy_step(const ptac_copy *plan, ptac_copy_place *place)
{
    for (int i = place->n_outer - 1; i >= 0; i--) {
        place->to += plan->to[i];
        place->from += plan->from[i];
        if (++place->at[i] < plan->sizes[i])
            return;
        place->to -= plan->to[i] * plan->sizes[i];
        place->from -= plan->from[i] * plan->sizes[i];
        place->at[i] = 0;
    }
}

/* How often the loops before the last n_inner turn. */
static inline int64_t ptac_copy_turns(const ptac_copy *plan, int n_inner)
{
    int64_t turns = 1;

    for (int i = 0; i < plan->n_dims - n_inner; i++)
        turns *= plan->sizes[i];
    return turns;
}

/* The part of body's loop that is worth a thread: of n turns over all the elements. */
static inline int64_t ptac_copy_grain(const ptac_copy *plan, int64_t n)
{
    return ptac_parts(n * 16384, plan->n_elements);
}

ptac_reason ptac_copy_accepts(const ptac_call *call);

#endif

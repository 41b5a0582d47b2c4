/*
 * step_cuda.c - launches of step.cu and step_large.cu: a table, as many as it takes.
 *
 * Level close. Each operation is rounded as torch's multi-tensor kernels round it,
 * which its optimizers take on CUDA by default; no device has compared the bits yet.
 * But of 16 bits those kernels round each operation, and ours only what is stored: they
 * divide by zero where float16 cannot hold eps, and ours does not. Biases of capturable
 * Adam have float32's whole precision, of which torch loses up to ten bits.
 */
#include "ops/optim/step_cuda.h"

#include "device/cuda/launch.h"
#include "ops/optim/step.h"
#include "ops/optim/zero_grad.h"

#include <math.h>

PTAC_CUDA_UNIT(step)
PTAC_CUDA_UNIT(step_large)

/* A kernel for small tables and one for large ones, and the entries these have. */
typedef struct kernels {
    ptac_cuda_kernel *small, *large;
    int small_room, large_room;
} kernels;

#define KERNELS(name)                                                                  \
    static ptac_cuda_kernel name[] = PTAC_CUDA_KERNELS(step, #name);                   \
    static ptac_cuda_kernel large_##name[] =                                           \
        PTAC_CUDA_KERNELS(step_large, "large_" #name);

KERNELS(sgd_step)
KERNELS(adam_step)
KERNELS(count_steps)
static ptac_cuda_kernel zero_grad[] = {{&unit_step, "zero_grad", NULL}};
static ptac_cuda_kernel large_zero_grad[] = {
    {&unit_step_large, "large_zero_grad", NULL}};

#define KERNELS_OF(name, i, entry)                                                     \
    (kernels)                                                                          \
    {                                                                                  \
        &name[i], &large_##name[i], PTAC_STEP_ROOM(entry, PTAC_STEP_PARAMETERS),       \
            PTAC_STEP_ROOM(entry, PTAC_STEP_PARAMETERS_LARGE)                          \
    }

#define FITS(entry, options)                                                           \
    _Static_assert(sizeof(PTAC_STEP_TABLE(entry, PTAC_STEP_PARAMETERS)) +              \
                           sizeof(options) <=                                          \
                       4096,                                                           \
                   "more parameters than any device takes");                           \
    _Static_assert(sizeof(PTAC_STEP_TABLE(entry, PTAC_STEP_PARAMETERS_LARGE)) +        \
                           sizeof(options) <=                                          \
                       32764,                                                          \
                   "more parameters than a kernel may have");
FITS(ptac_sgd_entry, ptac_cuda_sgd)
FITS(ptac_adam_entry, ptac_cuda_adam)

/* A table that is being filled, at the beginning of its bytes. */
typedef struct filling {
    const ptac_call *call;
    kernels by;
    void *table, *options;
    int *n;        /* entries in it: the table's first member */
    int room;      /* entries that it takes before it is launched */
    int64_t ahead; /* entries that are still to come, at least */
    int64_t n_blocks;
    bool *has_begun; /* as in ptac_step; or NULL */
    ptac_status status;
} filling;

/*
 * Choose the size of the next table: small ones, as long as there is no machine code
 * for large ones.
 */
static void begin(filling *f)
{
    *f->n = 0;
    f->n_blocks = 0;
    f->room = f->by.small_room;
    if (f->ahead > f->room && ptac_cuda_ask(&unit_step_large) == PTAC_TAKE)
        f->room = f->by.large_room;
}

/* What was put into the table goes; nothing more does once a launch was refused. */
static void launch(filling *f)
{
    const bool is_small = f->room == f->by.small_room;

    if (*f->n && !f->status) {
        f->status =
            ptac_cuda_launch(is_small ? f->by.small : f->by.large, f->call, f->n_blocks,
                             PTAC_STEP_THREADS, PTAC_PARAMETERS(f->table, f->options));
        if (!f->status && f->has_begun)
            *f->has_begun = true;
    }
    f->ahead -= *f->n;
    begin(f);
}

/* Where the next entry goes, of so many blocks; a table that is full goes first. */
static int next_entry(filling *f, int64_t n_blocks)
{
    if (*f->n == f->room || f->n_blocks + n_blocks > INT32_MAX)
        launch(f);
    f->n_blocks += n_blocks;
    return (*f->n)++;
}

/*
 * Begin to fill: home is a table of the host's size, given a name that the statements
 * below use; n_entries is how many there will be at least.
 */
#define FILL(entry, home, f, of_call, of_kernels, n_entries, of_options)               \
    PTAC_STEP_TABLE(entry, PTAC_STEP_PARAMETERS_LARGE) home;                           \
    filling f = {                                                                      \
        .call = of_call,                                                               \
        .by = of_kernels,                                                              \
        .table = &home,                                                                \
        .options = of_options,                                                         \
        .n = &home.n,                                                                  \
        .ahead = n_entries,                                                            \
    };                                                                                 \
    begin(&f)

static int64_t blocks_of(int64_t bytes)
{
    return ptac_parts(bytes, PTAC_STEP_CHUNK_BYTES);
}

static int64_t bytes_of(ptac_dtype dtype)
{
    return dtype == PTAC_F64 ? 8 : dtype == PTAC_F32 ? 4 : 2;
}

/* An array from so many bytes on; NULL of none. */
static void *beyond(const void *array, int64_t bytes)
{
    return array ? (char *)(uintptr_t)array + bytes : NULL;
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_step *step = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype == PTAC_I64 || dtype >= PTAC_N_DTYPES)
        return PTAC_DTYPE;
    if (step->sums) /* which the host would have to wait for */
        return PTAC_DEVICE;
    if (step->way != PTAC_STEP_LOOP)
        return PTAC_NUMERICS;
    return ptac_cuda_ask(&unit_step);
}

static ptac_status run_sgd(const ptac_call *call)
{
    const ptac_step *step = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int64_t size = bytes_of(dtype);
    ptac_cuda_sgd options = {
        .lr_neg = step->sgd.lr_neg,
        .momentum = step->sgd.momentum,
        .one_minus_dampening = step->sgd.one_minus_dampening,
        .weight_decay = step->sgd.weight_decay,
        .nesterov = step->sgd.nesterov,
        .maximize = step->sgd.maximize,
    };

    FILL(ptac_sgd_entry, table, f, call, KERNELS_OF(sgd_step, dtype, ptac_sgd_entry),
         step->n_items, &options);
    f.has_begun = step->has_begun;
    for (int64_t i = 0; i < step->n_items; i++) {
        const ptac_step_item *item = &step->items[i];
        const int64_t bytes = item->n * size;

        for (int64_t at = 0; at < bytes; at += PTAC_STEP_PIECE_BYTES) {
            const int64_t piece = ptac_least(bytes - at, PTAC_STEP_PIECE_BYTES);
            const int place = next_entry(&f, blocks_of(piece));

            table.entries[place] = (ptac_sgd_entry){
                .param = beyond(item->param, at),
                .grad = beyond(item->grad, at),
                .buffer = beyond(item->state[0], at),
                .n = (int)(piece / size),
                .first_chunk = (int)(f.n_blocks - blocks_of(piece)),
                .is_first = item->is_first,
            };
        }
    }
    launch(&f);
    return f.status;
}

static ptac_cuda_adam options_of(const ptac_adam *adam)
{
    return (ptac_cuda_adam){
        .one_minus_beta1 = adam->one_minus_beta1,
        .beta2 = adam->beta2,
        .one_minus_beta2 = adam->one_minus_beta2,
        .eps = adam->eps,
        .weight_decay = adam->weight_decay,
        .decay_factor = adam->decay_factor,
        .maximize = adam->maximize,
        .is_capturable = adam->is_capturable,
        .step_is_f64 = adam->step_dtype == PTAC_F64,
        .lr_is_f64 = adam->lr_dtype == PTAC_F64,
        .log_beta1 = log(adam->beta1),
        .log_beta2 = log(adam->beta2),
        .lr = adam->lr,
        .lr_at = adam->lr_at,
        .decoupled_decay = adam->decoupled_decay,
    };
}

static ptac_adam_entry entry_of(const ptac_step_item *item, const ptac_adam *adam,
                                int64_t at)
{
    ptac_adam_entry entry = {
        .param = beyond(item->param, at),
        .grad = beyond(item->grad, at),
        .average = beyond(item->state[0], at),
        .square = beyond(item->state[1], at),
        .maximum = adam->amsgrad ? beyond(item->state[2], at) : NULL,
    };

    if (adam->is_capturable) {
        entry.step = item->step;
    } else {
        entry.step_size_neg = item->step_size_neg;
        entry.correction = item->bias_correction2_sqrt;
    }
    return entry;
}

/* Captured steps are counted when no block reads the counts any more. */
static ptac_status count(const ptac_call *call)
{
    const ptac_step *step = call->params;
    const ptac_dtype dtype = step->adam.step_dtype;
    int unused = 0;

    FILL(ptac_count_entry, table, f, call,
         KERNELS_OF(count_steps, dtype, ptac_count_entry), step->n_items, &unused);
    for (int64_t i = 0; i < step->n_items; i++) {
        const int place = next_entry(&f, 0);

        table.entries[place].step = step->items[i].step;
        f.n_blocks = place / PTAC_STEP_THREADS + 1;
    }
    launch(&f);
    return f.status;
}

static ptac_status run_adam(const ptac_call *call)
{
    const ptac_step *step = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int64_t size = bytes_of(dtype);
    ptac_cuda_adam options = options_of(&step->adam);

    FILL(ptac_adam_entry, table, f, call, KERNELS_OF(adam_step, dtype, ptac_adam_entry),
         step->n_items, &options);
    f.has_begun = step->has_begun;
    for (int64_t i = 0; i < step->n_items; i++) {
        const ptac_step_item *item = &step->items[i];
        const int64_t bytes = item->n * size;

        for (int64_t at = 0; at < bytes; at += PTAC_STEP_PIECE_BYTES) {
            const int64_t piece = ptac_least(bytes - at, PTAC_STEP_PIECE_BYTES);
            const int place = next_entry(&f, blocks_of(piece));

            table.entries[place] = entry_of(item, &step->adam, at);
            table.entries[place].n = (int)(piece / size);
            table.entries[place].first_chunk = (int)(f.n_blocks - blocks_of(piece));
        }
    }
    launch(&f);
    return f.status || !step->adam.is_capturable ? f.status : count(call);
}

static ptac_reason classify_zero(const ptac_call *call, ptac_shape *shape)
{
    shape->kind = 0;
    shape->work = call->inputs[0].n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(ZERO_GRAD, classify_zero, "dense")

static ptac_reason accepts_zero(const ptac_call *call)
{
    (void)call;
    return ptac_cuda_ask(&unit_step);
}

static ptac_status run_zero(const ptac_call *call)
{
    const ptac_zero_grad *zero = call->params;
    int unused = 0;

    FILL(ptac_zero_entry, table, f, call, KERNELS_OF(zero_grad, 0, ptac_zero_entry),
         zero->n_items, &unused);
    for (int64_t i = 0; i < zero->n_items; i++) {
        const int64_t bytes = zero->items[i].bytes;

        for (int64_t at = 0; at < bytes; at += PTAC_STEP_PIECE_BYTES) {
            const int64_t piece = ptac_least(bytes - at, PTAC_STEP_PIECE_BYTES);
            const int place = next_entry(&f, blocks_of(piece));

            table.entries[place] = (ptac_zero_entry){
                .data = beyond(zero->items[i].data, at),
                .bytes = (int)piece,
                .first_chunk = (int)(f.n_blocks - blocks_of(piece)),
            };
        }
    }
    launch(&f);
    return f.status;
}

#define ROW(op, takes, runs, level)                                                    \
    PTAC_ROW(op, "cuda", level, 0, takes, runs, .device = PTAC_ON_CUDA)

ROW(SGD_STEP, accepts, run_sgd, PTAC_CLOSE)
ROW(ADAM_STEP, accepts, run_adam, PTAC_CLOSE)
ROW(ADAMW_STEP, accepts, run_adam, PTAC_CLOSE)
ROW(ZERO_GRAD, accepts_zero, run_zero, PTAC_EXACT)

/*
 * kernel.h - a call on its way through the house, and the rows that may serve it.
 *
 * bind fills a ptac_call from torch's arguments; the chooser finds the row for it;
 * the row computes. A row is one constant struct at the end of its own file.
 */
#ifndef PTAC_CORE_KERNEL_H
#define PTAC_CORE_KERNEL_H

#include "core/base.h"
#include "core/cpu.h"
#include "core/op.h"
#include "core/view.h"

enum {
    PTAC_MAX_INPUTS = 10,
    PTAC_MAX_OUTPUTS = 7,
    PTAC_MAX_ROWS = 24,   /* rows an operator may have */
    PTAC_MAX_KINDS = 152, /* shape kinds an operator may distinguish */
};

/*
 * What a row makes of weights, kept between calls whose weights are the same, of which
 * no two run at once.
 */
typedef struct ptac_kept {
    void *data;        /* as many bytes as the row asks for, at a cache line */
    const void *maker; /* who has filled it; NULL: nobody has */
} ptac_kept;

/* params is the operator's own struct, see csrc/ops/. accepts() sees no outputs yet. */
typedef struct ptac_call {
    ptac_op op;
    ptac_device on; /* where its data lies: which rows may serve it */
    int n_inputs;
    int n_outputs;
    int n_threads;
    int device;   /* on CUDA: the device's number, */
    void *stream; /* and what a row launches there follows this stream */
    ptac_view inputs[PTAC_MAX_INPUTS];
    ptac_view outputs[PTAC_MAX_OUTPUTS];
    const void *params;
    ptac_kept *kept; /* NULL: the weights may be others in the next call */
} ptac_call;

typedef struct ptac_kernel {
    ptac_op op;
    ptac_device device; /* where it computes, and the data of its calls lies */
    const char *name;   /* the instruction set, or the library that does the work */
    ptac_level level;
    uint32_t needs; /* PTAC_CPU_* bits */
    /* Chosen only where a table says so, also among rows that give the same bits. */
    bool asks_table;
    /* Between rows of one instruction set: how early to prefer it without a table. */
    int rank;
    /*
     * Rounds float32 operands to bfloat16. The level's bound is then that of the same
     * operator of stock's in bfloat16, and the user's autocast goes first.
     */
    bool in_bf16;
    /* NaN and infinity among the inputs may reach more outputs than stock's. */
    bool spreads;
    /* What a device's rows are compared with: no call of torch's comes to it. */
    bool is_definition;
    /* PTAC_TAKE, or what about the call this row cannot do. Writes nothing. */
    ptac_reason (*accepts)(const ptac_call *call);
    /* Whether a call is like those that a table speaks of; NULL: all of their kind. */
    bool (*pays)(const ptac_call *call);
    /* The same where tables speak of any kind, see or_kind: of no more than pays is. */
    bool (*pays_in_any)(const ptac_call *call);
    /*
     * Computes the outputs; on CUDA, launches what does. Never locks, prints or
     * synchronises, and allocates nothing but scratch. Whatever is not PTAC_OK leaves
     * the inputs as they were.
     */
    ptac_status (*run)(const ptac_call *call);
    /* Bytes that run() would keep, if it may; NULL: none. */
    size_t (*kept_bytes)(const ptac_call *call);
} ptac_kernel;

/* Where a call lies among the shapes that calibration measured. */
typedef struct ptac_shape {
    int kind;     /* index into ptac_op_shapes.kinds */
    int64_t work; /* elements, multiply-adds or what else tells its size in the kind */
    /* Whose lines speak where a table has none of this kind; 0: no other kind's do. */
    int else_kind;
    /* Another place, where at the first one no row pays; kind 0: there is none. */
    int or_kind;
    int64_t or_work;
    /* Of a product: multiply-adds an element of its three matrices. Else left alone. */
    int64_t uses;
    int64_t sizes[3]; /* of a product: rows, terms, columns; else zeros */
    /*
     * Nanoseconds on one thread that stock takes for what such a call does beside what
     * calibration measured, as a norm behind a convolution; 0: nothing.
     */
    double spared_ns;
    /* Likewise what a row spares that keeps what it makes of weights; 0: none does. */
    double kept_ns;
} ptac_shape;

/*
 * What an operator knows of its calls' shapes. classify() returns PTAC_TAKE and
 * fills *shape, or says why no row of the operator can serve such a call. On CUDA it is
 * asked where there is a table, which says nothing of a call that has no place.
 */
typedef struct ptac_op_shapes {
    ptac_op op;
    const char *kinds[PTAC_MAX_KINDS]; /* NULL ends the list, where it is not full */
    ptac_reason (*classify)(const ptac_call *call, ptac_shape *shape);
    /* The input whose dtype tables tell: of a lookup the numbers, not the indices. */
    int typed_input;
    /*
     * Who calls has asked the table before, with ptac_chooser_knows(): each call is
     * served, by the row that the table has there or else the one that needs most of
     * this CPU. All rows give the same bits.
     */
    bool is_decided;
} ptac_op_shapes;

/* Rows and shapes announce themselves when the library is loaded. */
#define PTAC_REGISTER(kernel)                                                          \
    __attribute__((constructor)) static void register_##kernel(void)                   \
    {                                                                                  \
        ptac_registry_add(&kernel);                                                    \
    }
#define PTAC_REGISTER_SHAPES(shapes)                                                   \
    __attribute__((constructor)) static void register_##shapes(void)                   \
    {                                                                                  \
        ptac_registry_add_shapes(&shapes);                                             \
    }

/* In a line: a row of PTAC_OP_<id>, what else it has last; its shapes, kinds last. */
#define PTAC_ROW(id, of_name, of_level, features, takes, computes, ...)                \
    static const ptac_kernel row_##id##_##takes##_##computes = {                       \
        .op = PTAC_OP_##id,                                                            \
        .name = of_name,                                                               \
        .level = of_level,                                                             \
        .needs = features,                                                             \
        .accepts = takes,                                                              \
        .run = computes,                                                               \
        ##__VA_ARGS__,                                                                 \
    };                                                                                 \
    PTAC_REGISTER(row_##id##_##takes##_##computes)
#define PTAC_SHAPES(id, by, ...) PTAC_SHAPES_OF(id, by, 0, false, __VA_ARGS__)
#define PTAC_SHAPES_OF(id, by, input, decided, ...)                                    \
    static const ptac_op_shapes shapes_of_##id = {                                     \
        .op = PTAC_OP_##id,                                                            \
        .kinds = {__VA_ARGS__},                                                        \
        .classify = by,                                                                \
        .typed_input = input,                                                          \
        .is_decided = decided,                                                         \
    };                                                                                 \
    PTAC_REGISTER_SHAPES(shapes_of_##id)

void ptac_registry_add(const ptac_kernel *kernel);
void ptac_registry_add_shapes(const ptac_op_shapes *shapes);

/*
 * Rows of an operator, *n of them: the CPU's, in no particular order, or a device's.
 * Those of CUDA begin with the highest rank.
 */
const ptac_kernel *const *ptac_registry_rows(ptac_op op, int *n);
const ptac_kernel *const *ptac_registry_rows_on(ptac_device device, ptac_op op, int *n);
const ptac_op_shapes *ptac_registry_shapes(ptac_op op);

/*
 * The row to run where no table is asked: of those that this CPU runs, that do not ask
 * a table and whose level is not beyond most, the one that needs most of the CPU. Among
 * equals the highest rank wins, which takes most calls. NULL: there is none.
 */
const ptac_kernel *ptac_registry_preferred(ptac_op op, ptac_level most);

/* classify() of operators on floats that go element by element: one kind. */
ptac_reason ptac_classify_elements(const ptac_call *call, ptac_shape *shape);

/* accepts() of rows that can do whatever classify() lets through. */
ptac_reason ptac_accept_all(const ptac_call *call);

/*
 * The row of that name, among the CPU's also one that this CPU cannot run, or among a
 * device's; NULL when unknown.
 */
const ptac_kernel *ptac_registry_find(ptac_op op, const char *name);
const ptac_kernel *ptac_registry_find_on(ptac_device device, ptac_op op,
                                         const char *name);

#endif

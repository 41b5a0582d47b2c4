/*
 * checkrows.h - what a generator of random calls has to say about its operators.
 *
 * One file gen_<family>.c an operator family. It is found through GENERATOR, as rows
 * are through PTAC_REGISTER: a new operator is one new file and no other change.
 */
#ifndef PTAC_TESTS_CHECKROWS_H
#define PTAC_TESTS_CHECKROWS_H

#include "arena.h"
#include "core/kernel.h"
#include "random.h"

enum {
    MAX_BUFFERS = ARENA_SLOTS,
    MAX_DIMS = 6,
    PARAMS_BYTES = 1024,
};

/* What a row may do to a buffer. */
typedef enum buffer_use {
    READS,   /* must be found unchanged */
    WRITES,  /* holds noise before the run */
    UPDATES, /* in place: changed when the row says PTAC_OK, else not at all */
    SCRATCH, /* may hold anything after the run */
} buffer_use;

typedef struct test_buffer {
    buffer_use use;
    ptac_dtype dtype; /* PTAC_OTHER_DTYPE: compared byte by byte */
    size_t element_bytes;
    int64_t n_elements;
    void *content;      /* before the run; noise for WRITES */
    void *data;         /* where it lies during the run at hand */
    double least_scale; /* see generator.roundings */
    bool also_16_bits;  /* see test_also_16_bits() */
    char name[24];
} test_buffer;

typedef struct test_call {
    ptac_call call;
    _Alignas(64) unsigned char params[PARAMS_BYTES];
    int64_t sizes[PTAC_MAX_INPUTS + PTAC_MAX_OUTPUTS][MAX_DIMS];
    int64_t strides[PTAC_MAX_INPUTS + PTAC_MAX_OUTPUTS][MAX_DIMS];
    int input_buffers[PTAC_MAX_INPUTS], output_buffers[PTAC_MAX_OUTPUTS];
    test_buffer buffers[MAX_BUFFERS];
    int n_buffers;
    /* A row may give the call back although "scalar" does the call; all rows must. */
    bool may_be_given_back, must_be_given_back;
    char note[256]; /* the params in words, for the failure message */
} test_call;

typedef struct generator {
    ptac_op op;

    /*
     * Make a call: add its tensors and memory by the functions below, fill their
     * contents and the params (call.params points to c->params already). The call is
     * zeroed before. Random numbers come from r alone.
     */
    void (*make)(rng *r, test_call *c);

    /* Called when buffers have their places, to write those into params. Optional. */
    void (*place)(test_call *c);

    /*
     * Called before "scalar" runs, to work out a least_scale from the inputs, or an
     * input from the others. Optional.
     */
    void (*scale)(test_call *c);

    /*
     * How far an element of a row that is not exact may lie from that of "scalar": so
     * many unit roundoffs of its dtype times the output's largest finite magnitude, or
     * the buffer's least_scale where that is more: what results that cancel are made
     * of. 0: the operator has no such rows. Say why it is enough.
     */
    double roundings;

    /*
     * Dtypes, a bit each, in whose outputs a NaN must have the right bits, not only be
     * one: all where outputs are copies of inputs; bfloat16 where they are rounded to
     * it, as c10 has but one NaN then. Sums of several float NaNs may have either's.
     */
    uint32_t nan_bits;

    /*
     * Of operators with rows of a device: make call i of those by which their work is
     * counted, of shapes that programs have, at most some 100,000 elements; false where
     * there are no more.
     */
    bool (*typical)(int i, rng *r, test_call *c);

    /* Bytes that have to move in such a call; without it test_bytes(). */
    int64_t (*least_bytes)(const test_call *c);

    /*
     * What rows of a device are compared with, where stock's arithmetic there is not
     * the CPU's: it runs on the CPU, and takes 16 bits as they are. NULL: "scalar".
     */
    const ptac_kernel *definition;

    /* Launches that such a call may take; 0: one. */
    int most_launches;

    /* The result of a row may depend on the threads. Only with a reason beside it. */
    bool threads_change_bits;
} generator;

void generator_add(const generator *g);

/* One operator's generator, by the members of the struct above that are not zero. */
#define GENERATOR(g, ...)                                                              \
    static const generator g = {__VA_ARGS__};                                          \
    __attribute__((constructor)) static void add_##g(void)                             \
    {                                                                                  \
        generator_add(&g);                                                             \
    }

/*
 * Dense tensors, added to the call in order. channels_last wants four or five
 * dimensions. The content that comes back has room for n_elements and is the
 * generator's to fill.
 */
void *test_input(test_call *c, ptac_dtype dtype, int n_dims, const int64_t *sizes,
                 bool channels_last);
void test_output(test_call *c, ptac_dtype dtype, int n_dims, const int64_t *sizes,
                 bool channels_last);

/* The next output lies on this input's memory and has its sizes. */
void test_output_in_place(test_call *c, int input);

/* The next input or output is one that the call does without: a view with no data. */
void test_no_input(test_call *c);
void test_no_output(test_call *c);

/*
 * The input, output or memory added last may be of 16 bits in rows of a device if it is
 * of float32. They then run on float16 and bfloat16 too: "scalar" computes in float32
 * what the rounded inputs give, and the row's results have to lie between those that
 * the ends of its tolerance round to. A row that is exact thus has the bits of the
 * rounded reference; one that is close may be half an ulp of 16 bits farther away than
 * in float32. NaNs agree in kind. Tensors of bfloat16 need no mark. A definition of the
 * generator's own computes in 16 bits itself, and is compared with as it is.
 */
void test_also_16_bits(test_call *c);

/* Memory that params point to: buffers[c->n_buffers - 1]. */
void *test_memory(test_call *c, buffer_use use, ptac_dtype dtype, int64_t n_elements);

/* Of all buffers but SCRATCH, each read or written once; both where in place. */
int64_t test_bytes(const test_call *c);

/* What the driver needs besides. Without random numbers buffers lie aligned. */
void test_call_clear(test_call *c);
void test_call_place(rng *r, test_call *c, const generator *g);

/*
 * The first element in which got differs from expected beyond allowed, or -1. Elements
 * that are not finite must agree in kind; with exact bits, in their bits, but for NaNs.
 */
typedef struct equality {
    bool bits;
    uint32_t nan_bits; /* as in generator */
    double allowed;
} equality;
int64_t first_difference(const test_buffer *like, const void *expected, const void *got,
                         const equality *rule);

/* The same of 16 bits, where expected is of float32: see test_also_16_bits(). */
int64_t first_difference_16(const test_buffer *like, const float *expected,
                            const void *got, const equality *rule);

/* Allowed distance from expected: see generator.roundings. */
double roundings_of(const test_buffer *like, const void *expected, double roundings);

#endif

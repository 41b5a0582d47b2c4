/*
 * test_int8_calls.c - which calls of int8 operators are turned away, and what points of
 * a convolution work in.
 */
#include "core/chooser.h"
#include "core/scratch.h"
#include "ops/int8/conv/int8_conv2d.h"
#include "ops/int8/embedding/int8_embedding.h"
#include "ops/int8/int8_linear.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

static const ptac_int8_conv2d ordinary = {
    .batch = 2,
    .groups = 2,
    .c = 8,
    .n = 6,
    .height = 5,
    .width = 7,
    .out_height = 7,
    .out_width = 9,
    .kernel = {3, 3},
    .stride = {1, 1},
    .padding = {2, 2},
    .dilation = {1, 1},
};

static const ptac_kernel *scalar(void)
{
    return ptac_registry_find(PTAC_OP_INT8_CONV2D, "scalar");
}

/* What classify() and accepts() say, who agree. */
static ptac_reason answer(const ptac_int8_conv2d *p)
{
    const ptac_call call = {.op = PTAC_OP_INT8_CONV2D, .params = p};
    ptac_shape shape;
    const ptac_reason why =
        ptac_registry_shapes(PTAC_OP_INT8_CONV2D)->classify(&call, &shape);

    EXPECT(scalar()->accepts(&call) == why);
    return why;
}

UNIT(int8_images_without_a_pixel)
{
    ptac_int8_conv2d p = ordinary;

    EXPECT(answer(&p) == PTAC_TAKE);
    p.height = 0; /* the margins alone give 2 lines */
    p.out_height = 2;
    EXPECT(answer(&p) == PTAC_EMPTY);
    p = ordinary;
    p.width = 0;
    EXPECT(answer(&p) == PTAC_EMPTY);
    p = ordinary;
    p.batch = 0;
    EXPECT(answer(&p) == PTAC_EMPTY);
}

UNIT(int8_windows_that_cannot_be_multiplied)
{
    static const int64_t huge[] = {INT64_C(1) << 31, INT64_C(1) << 32, INT64_C(1) << 62,
                                   INT64_MAX};
    ptac_int8_conv2d p = ordinary;
    int64_t *const numbers[] = {
        &p.batch,      &p.groups,     &p.c,           &p.n,
        &p.height,     &p.width,      &p.out_height,  &p.out_width,
        &p.kernel[0],  &p.kernel[1],  &p.stride[0],   &p.stride[1],
        &p.padding[0], &p.padding[1], &p.dilation[0], &p.dilation[1]};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (size_t j = 0; j < sizeof huge / sizeof *huge; j++) {
            const bool is_image = numbers[i] == &p.batch || numbers[i] == &p.height ||
                                  numbers[i] == &p.width ||
                                  numbers[i] == &p.out_height ||
                                  numbers[i] == &p.out_width;

            p = ordinary;
            *numbers[i] = huge[j];
            EXPECT(ptac_int8_conv2d_is_sound(&p) == is_image);
            if (!is_image || j > 1)
                EXPECT(answer(&p) == PTAC_SHAPE);
        }
    p = ordinary; /* the product is 0 again */
    p.groups = 4;
    p.c = INT64_C(1) << 62;
    EXPECT(!ptac_int8_conv2d_is_sound(&p));
    p = ordinary;
    p.groups = 4; /* of six channels */
    EXPECT(!ptac_int8_conv2d_is_sound(&p));
    p = ordinary;
    p.padding[0] = p.padding[1] = 1 << 24; /* margins of 2^50 pixels */
    EXPECT(ptac_int8_conv2d_is_sound(&p) && answer(&p) == PTAC_SHAPE);
}

UNIT(int8_weights_that_cannot_be_counted)
{
    static const int64_t odd[] = {0, -1, INT64_C(1) << 46, INT64_C(1) << 62, INT64_MAX};
    ptac_packed_shape s = {.n = 6, .c = 5, .taps = 9, .groups = 3};
    int64_t *const numbers[] = {&s.n, &s.c, &s.taps, &s.groups};

    EXPECT(ptac_packed_is_sound(&s));
    for (int i = 0; i < 4; i++)
        for (size_t j = 0; j < sizeof odd / sizeof *odd; j++) {
            s = (ptac_packed_shape){.n = 6, .c = 5, .taps = 9, .groups = 3};
            *numbers[i] = odd[j];
            EXPECT(!ptac_packed_is_sound(&s));
        }
    s = (ptac_packed_shape){INT64_C(1) << 32, INT64_C(1) << 32, 1, 1};
    EXPECT(!ptac_packed_is_sound(&s)); /* their product is 0 */
    s = (ptac_packed_shape){.n = INT64_C(1) << 45, .c = 1, .taps = 1, .groups = 1};
    EXPECT(ptac_packed_is_sound(&s) && ptac_packed_bytes(&s) > 0);
    s.groups = s.n;
    EXPECT(ptac_packed_is_sound(&s) && ptac_packed_bytes(&s) > 0);
}

UNIT(int8_inputs_are_aligned)
{
    static _Alignas(64) char memory[64];
    const ptac_int8_linear linear = {.m = 1, .n = 2, .k = 3, .x_stride = 3};
    const ptac_int8_embedding embedding = {.n_indices = 1, .n_rows = 1, .width = 1};
    const struct {
        ptac_op op;
        const void *params;
        int n_inputs, unaligned; /* the one that may lie anywhere */
    } cases[] = {
        {PTAC_OP_INT8_LINEAR, &linear, 4, -1},
        {PTAC_OP_INT8_CONV2D, &ordinary, PTAC_INT8_CONV_INPUTS, -1},
        {PTAC_OP_INT8_EMBEDDING, &embedding, 3, 1},
    };

    for (int i = 0; i < 3; i++)
        for (int j = 0; j < cases[i].n_inputs; j++)
            for (int by = 0; by <= 4; by++) {
                const ptac_kernel *row = ptac_registry_find(cases[i].op, "scalar");
                const int to = cases[i].op == PTAC_OP_INT8_EMBEDDING && j == 0 ? 8 : 4;
                const bool is_fine = by % to == 0 || j == cases[i].unaligned;
                ptac_call call = {.op = cases[i].op,
                                  .n_inputs = cases[i].n_inputs,
                                  .params = cases[i].params};

                call.inputs[j].data = memory + by;
                EXPECT(row->accepts(&call) == (is_fine ? PTAC_TAKE : PTAC_LAYOUT));
            }
}

static int64_t changing[3];
static int n_rows_read;

/* Meanwhile somebody writes an index that the table does not have. */
static void spoil(const int8_t *q, float scale, int64_t width, float *y)
{
    (void)q;
    (void)scale;
    (void)width;
    (void)y;
    n_rows_read++;
    changing[1] = INT64_C(1) << 40;
}

UNIT(int8_indices_may_change_in_the_call)
{
    static const int8_t table[4];
    static const float scales[4];
    float y[3];
    const ptac_int8_embedding p = {.n_indices = 3, .n_rows = 4, .width = 1};
    const ptac_call call = {.op = PTAC_OP_INT8_EMBEDDING,
                            .n_inputs = 3,
                            .n_outputs = 1,
                            .n_threads = 1,
                            .inputs = {{.data = changing},
                                       {.data = (void *)table},
                                       {.data = (void *)scales}},
                            .outputs = {{.data = y}},
                            .params = &p};

    EXPECT(ptac_int8_embedding_run(&call, spoil) == PTAC_UNSUITED);
    EXPECT(n_rows_read == 1);
}

/* Scratch that a convolution of points, 512 channels of 1024 pixels, leaves behind. */
static size_t scratch_of(int64_t stride)
{
    const ptac_int8_conv2d p = {
        .batch = 1,
        .groups = 1,
        .c = 512,
        .n = 1,
        .height = 32 * stride,
        .width = 32 * stride,
        .out_height = 32,
        .out_width = 32,
        .kernel = {1, 1},
        .stride = {stride, stride},
        .dilation = {1, 1},
    };
    const ptac_packed_shape shape = {.n = 1, .c = 512, .taps = 1, .groups = 1};
    float *x = calloc((size_t)(512 * p.height * p.width), sizeof *x);
    float y[1024], scale = 1;
    _Alignas(64) int8_t packed[16 * 512 + 4], plain[512] = {0};
    const ptac_call call = {
        .op = PTAC_OP_INT8_CONV2D,
        .n_inputs = PTAC_INT8_CONV_INPUTS,
        .n_outputs = 1,
        .n_threads = 1,
        .inputs = {{.data = x}, {.data = packed}, {.data = &scale}},
        .outputs = {{.data = y}},
        .params = &p,
    };
    size_t kept;

    EXPECT(x && ptac_packed_bytes(&shape) == sizeof packed);
    ptac_pack(&shape, plain, packed);
    ptac_scratch_clear();
    EXPECT(x && scalar()->run(&call) == PTAC_OK);
    kept = ptac_scratch_kept();
    free(x);
    return kept;
}

UNIT(int8_points_pick_only_where_they_skip)
{
    const size_t bytes = (1 + (512 << 10) / (48 * 512 * 4)) * 48 * 512;

    EXPECT(scratch_of(1) >= bytes && scratch_of(1) < bytes + (16 << 10));
    EXPECT(scratch_of(2) >= 5 * bytes);
}

/* The table tells of a table's numbers and of its width, as benchmarks write it. */
UNIT(int8_lookups_meet_their_place_in_the_table)
{
    const ptac_kernel *row = ptac_registry_find(PTAC_OP_INT8_EMBEDDING, "scalar");
    const ptac_point point = {.op = PTAC_OP_INT8_EMBEDDING,
                              .dtype = PTAC_F32,
                              .n_threads = 1,
                              .work = 37,
                              .row = row};
    ptac_int8_embedding p = {.n_indices = 3, .n_rows = 4, .width = 37};
    ptac_call call = {
        .op = PTAC_OP_INT8_EMBEDDING,
        .n_inputs = 3,
        .n_threads = 1,
        .inputs = {{.dtype = PTAC_I64},
                   {.dtype = PTAC_OTHER_DTYPE},
                   {.dtype = PTAC_F32}},
        .params = &p,
    };
    ptac_reason why;

    ptac_chooser_set_gate(PTAC_OP_INT8_EMBEDDING, PTAC_TAKE);
    EXPECT(ptac_chooser_install(&point, 1) == PTAC_OK);
    EXPECT(ptac_select(&call, &why) == row && why == PTAC_TAKE);
    p.width = 36; /* nobody has measured it, however many indices there are */
    p.n_indices = 1000;
    EXPECT(ptac_select(&call, &why) != row || ptac_cpu_isa() == PTAC_ISA_SCALAR);
    call.inputs[2].dtype = PTAC_OTHER_DTYPE;
    EXPECT(!ptac_select(&call, &why) && why == PTAC_DTYPE);
    ptac_chooser_install(NULL, 0);
    ptac_chooser_set_gate(PTAC_OP_INT8_EMBEDDING, PTAC_OFF);
}

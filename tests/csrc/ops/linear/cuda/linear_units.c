/*
 * linear_units.c - the rows of linear_act on an emulated device: every activation and
 * dtype, with every epilogue and with those that a library may refuse.
 */
#include "matrices.h"
#include "ops/linear/linear_act.h"
#include "unit.h"

#include "emulated_lt.h"
#include "emulator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What the library refuses in a run. */
static const uint32_t nothing[] = {0};
static const uint32_t with_aux[] = {
    PTAC_LT_EPI_RELU_AUX_BIAS, PTAC_LT_EPI_GELU_AUX_BIAS, PTAC_LT_EPI_RELU_AUX,
    PTAC_LT_EPI_GELU_AUX,      PTAC_LT_EPI_BGRADB,        0};
static const uint32_t all_but_plain[] = {
    PTAC_LT_EPI_BIAS,          PTAC_LT_EPI_RELU_BIAS,     PTAC_LT_EPI_GELU_BIAS,
    PTAC_LT_EPI_RELU_AUX_BIAS, PTAC_LT_EPI_GELU_AUX_BIAS, PTAC_LT_EPI_BGRADB,
    PTAC_LT_EPI_RELU,          PTAC_LT_EPI_GELU,          0};

typedef struct layer {
    ptac_dtype dtype;
    ptac_act act;
    int64_t m, n, k;
    bool has_bias, is_training;
    matrix x, w, bias, y, z; /* forward */
    matrix g, gx, gw, gb;    /* backward */
    matrix workspace;
    ptac_linear_act params;
    ptac_call call;
    int64_t sizes[8][2], strides[8][2];
} layer;

static void layer_make(layer *l, rng *r)
{
    const int64_t gap = rng_chance(r, 50) ? 0 : rng_between(r, 1, 9);
    const int64_t offset = rng_chance(r, 50) ? 0 : rng_between(r, 1, 3);

    l->x = matrix_new(l->dtype, l->m, l->k, l->k + gap, offset);
    l->w = matrix_new(l->dtype, l->n, l->k, l->k + gap, 0);
    l->bias = matrix_new(l->dtype, 1, l->n, l->n, offset);
    l->y = matrix_new(l->dtype, l->m, l->n, l->n + gap, 0);
    l->z = matrix_new(l->dtype, l->m, l->n, ptac_linear_act_ldz(l->n), 0);
    l->g = matrix_new(l->dtype, l->m, l->n, l->n + gap, offset);
    l->gx = matrix_new(l->dtype, l->m, l->k, l->k + gap, offset);
    l->gw = matrix_new(l->dtype, l->n, l->k, l->k, 0);
    l->gb = matrix_new(l->dtype, 1, l->n, l->n, 0);
    matrix_fill(r, &l->x, 0.25);
    matrix_fill(r, &l->w, 0.25);
    matrix_fill(r, &l->bias, 0.0625);
    matrix_fill(r, &l->g, 0.5);
    l->params = (ptac_linear_act){
        .m = l->m,
        .n = l->n,
        .k = l->k,
        .activation = l->act,
        .is_training = l->is_training,
        .products = {.workspace = the_workspace.data,
                     .workspace_bytes = the_workspace.bytes},
    };
}

static void layer_drop(layer *l)
{
    matrix *all[] = {&l->x, &l->w,  &l->bias, &l->y,  &l->z,
                     &l->g, &l->gx, &l->gw,   &l->gb, &l->workspace};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        matrix_drop(all[i]);
}

static ptac_view view(layer *l, int slot, const matrix *m, int n_dims)
{
    return view_of(m, n_dims, l->sizes[slot], l->strides[slot]);
}

static const ptac_kernel *row_of(ptac_op op)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(PTAC_ON_CUDA, op, &n);

    EXPECT(n == 1);
    return rows[0];
}

static void call_forward(layer *l)
{
    l->call = (ptac_call){.op = PTAC_OP_LINEAR_ACT,
                          .n_inputs = 3,
                          .n_outputs = 2,
                          .stream = the_device.stream,
                          .params = &l->params};
    l->call.inputs[0] = view(l, 0, &l->x, 2);
    l->call.inputs[1] = view(l, 1, &l->w, 2);
    if (l->has_bias)
        l->call.inputs[2] = view(l, 2, &l->bias, 1);
    l->call.outputs[0] = view(l, 3, &l->y, 2);
    l->call.outputs[1] = view(l, 4, &l->z, 2);
}

static void call_backward(layer *l, bool wants_x, bool wants_w, bool wants_bias)
{
    l->call = (ptac_call){.op = PTAC_OP_LINEAR_ACT_BACKWARD,
                          .n_inputs = 4,
                          .n_outputs = 3,
                          .stream = the_device.stream,
                          .params = &l->params};
    l->call.inputs[0] = view(l, 0, &l->g, 2);
    l->call.inputs[1] = view(l, 1, &l->x, 2);
    l->call.inputs[2] = view(l, 2, &l->w, 2);
    if (l->act != PTAC_ACT_NONE)
        l->call.inputs[3] = view(l, 3, ptac_act_saves_z(l->act) ? &l->z : &l->y, 2);
    if (wants_x)
        l->call.outputs[0] = view(l, 4, &l->gx, 2);
    if (wants_w)
        l->call.outputs[1] = view(l, 5, &l->gw, 2);
    if (wants_bias)
        l->call.outputs[2] = view(l, 6, &l->gb, 1);
}

/* As bind does: the row is asked before there are outputs. */
static ptac_status run_call(layer *l)
{
    const ptac_kernel *row = row_of(l->call.op);
    ptac_call early = l->call;

    memset(early.outputs, 0, sizeof early.outputs);
    EXPECT(row->accepts(&early) == PTAC_TAKE);
    return row->run(&l->call);
}

/* x w^T + bias, exactly. */
static exact z_of(const layer *l)
{
    exact x = exact_of(&l->x), w = exact_of(&l->w);
    exact z = exact_product(&x, false, &w, true, false);

    for (int64_t i = 0; i < l->m * l->n && l->has_bias; i++)
        z.at[i] += matrix_at(&l->bias, 0, i % l->n);
    exact_drop(&x);
    exact_drop(&w);
    return z;
}

/*
 * z is exact in every dtype. The kernels' functions err by a few units of float, and y
 * is rounded; of 16 bits only the rounding counts, and what a stored z was rounded by.
 */
static void check_forward(const layer *l)
{
    exact z = z_of(l), y = exact_new(l->m, l->n);

    for (int64_t i = 0; i < l->m * l->n; i++)
        y.at[i] = exact_act(z.at[i], l->act);
    EXPECT(matrix_is_near(&l->y, &y, &y, 8, "y"));
    EXPECT(matrix_has_clean_gaps(&l->y));
    if (l->is_training && ptac_act_saves_z(l->act))
        EXPECT(matrix_is_near(&l->z, &z, &z, 1, "z"));
    else
        EXPECT(matrix_is_noise(&l->z));
    exact_drop(&z);
    exact_drop(&y);
}

static void check_product(const matrix *m, const exact *a, bool ta, const exact *b,
                          const char *name)
{
    exact expected = exact_product(a, ta, b, false, false);
    exact size = exact_product(a, ta, b, false, true);

    /* Each gradient before the activation was rounded, and the slope errs as above. */
    EXPECT(matrix_is_near(m, &expected, &size, 8, name));
    EXPECT(matrix_has_clean_gaps(m));
    exact_drop(&expected);
    exact_drop(&size);
}

static void check_backward(const layer *l, bool wants_x, bool wants_w, bool wants_bias)
{
    exact z = z_of(l), gz = exact_of(&l->g), x = exact_of(&l->x), w = exact_of(&l->w);
    exact ones = exact_new(l->m, 1);

    for (int64_t i = 0; i < l->m * l->n; i++)
        gz.at[i] *= exact_slope(z.at[i], l->act);
    for (int64_t i = 0; i < l->m; i++)
        ones.at[i] = 1;
    if (wants_x)
        check_product(&l->gx, &gz, false, &w, "gradient of x");
    if (wants_w)
        check_product(&l->gw, &gz, true, &x, "gradient of w");
    if (wants_bias) {
        exact gb = exact_product(&ones, true, &gz, false, false);
        exact size = exact_product(&ones, true, &gz, false, true);

        EXPECT(matrix_is_near(&l->gb, &gb, &size, 8, "gradient of bias"));
        exact_drop(&gb);
        exact_drop(&size);
    } else
        EXPECT(matrix_is_noise(&l->gb));
    EXPECT(wants_x || matrix_is_noise(&l->gx));
    EXPECT(wants_w || matrix_is_noise(&l->gw));
    exact_drop(&z);
    exact_drop(&gz);
    exact_drop(&x);
    exact_drop(&w);
    exact_drop(&ones);
}

static const ptac_dtype dtypes[] = {PTAC_F32, PTAC_F16, PTAC_BF16};

static void random_layer(layer *l, rng *r)
{
    *l = (layer){
        .dtype = dtypes[rng_below(r, 3)],
        .act = (ptac_act)rng_below(r, PTAC_N_ACTS),
        .m = rng_between(r, 1, 40),
        .n = rng_chance(r, 50) ? 8 * rng_between(r, 1, 12) : rng_between(r, 1, 70),
        .k = rng_between(r, 1, 24),
        .has_bias = rng_chance(r, 80),
        .is_training = rng_chance(r, 60),
    };
    layer_make(l, r);
}

static void note(const layer *l)
{
    printf("  act %d %s, %lld x %lld x %lld, bias %d, training %d\n", l->act,
           ptac_dtype_name(l->dtype), (long long)l->m, (long long)l->k, (long long)l->n,
           l->has_bias, l->is_training);
}

static void check_random_layers(const uint32_t *refused, uint64_t seed)
{
    rng r = {seed};

    device_begin();
    refuse(refused);
    for (uint64_t i = 0; i < unit_amount(50, 1500); i++) {
        const bool wants_x = rng_chance(&r, 70), wants_w = rng_chance(&r, 70);
        const bool wants_bias = rng_chance(&r, 70);
        layer l;
        ptac_status status;

        random_layer(&l, &r);
        the_device.set_order(i % 3 ? rng_next(&r) : i / 3 % 2);
        call_forward(&l);
        EXPECT(run_call(&l) == PTAC_OK);
        check_forward(&l);
        if (l.is_training || !ptac_act_saves_z(l.act)) {
            call_backward(&l, wants_x, wants_w, wants_bias);
            status = run_call(&l);
            EXPECT(status == PTAC_OK);
            if (status == PTAC_OK)
                check_backward(&l, wants_x, wants_w, wants_bias);
            else
                note(&l);
        }
        layer_drop(&l);
    }
    EXPECT(emulated_lt.n_alive == 0);
    refuse(nothing);
}

UNIT(linear_act_of_a_library_that_has_all_epilogues)
{
    check_random_layers(nothing, 1);
}

UNIT(linear_act_of_a_library_without_auxiliary_matrices)
{
    check_random_layers(with_aux, 2);
}

UNIT(linear_act_of_a_library_without_epilogues)
{
    check_random_layers(all_but_plain, 3);
}

/* Products, those with an epilogue, and launches of a training step of one layer. */
static void expect_work(ptac_act act, work forward, work backward)
{
    rng r = {7};
    layer l = {.dtype = PTAC_BF16, .act = act, .m = 16, .n = 64, .k = 8};
    work done;

    l.has_bias = l.is_training = true;
    device_begin();
    refuse(nothing);
    layer_make(&l, &r);
    call_forward(&l);
    forget_work();
    EXPECT(run_call(&l) == PTAC_OK);
    done = work_done();
    EXPECT(memcmp(&done, &forward, sizeof done) == 0);
    call_backward(&l, true, true, true);
    forget_work();
    EXPECT(run_call(&l) == PTAC_OK);
    done = work_done();
    EXPECT(memcmp(&done, &backward, sizeof done) == 0);
    layer_drop(&l);
}

UNIT(linear_act_takes_the_fewest_launches)
{
    expect_work(PTAC_ACT_NONE, (work){1, 1, 0}, (work){2, 1, 0});
    expect_work(PTAC_ACT_RELU, (work){1, 1, 0}, (work){2, 1, 1});
    expect_work(PTAC_ACT_GELU_TANH, (work){1, 1, 0}, (work){2, 1, 1});
    expect_work(PTAC_ACT_GELU, (work){1, 1, 1}, (work){2, 1, 1});
    expect_work(PTAC_ACT_SIGMOID, (work){1, 1, 1}, (work){2, 1, 1});
}

/* A layer whose z is not a number in one place. */
UNIT(a_gradient_passes_relu_at_nan)
{
    rng r = {9};
    layer l = {.dtype = PTAC_F32, .act = PTAC_ACT_RELU, .m = 3, .n = 8, .k = 4};

    l.has_bias = l.is_training = true;
    device_begin();
    layer_make(&l, &r);
    matrix_put(&l.bias, 0, 5, NAN);
    call_forward(&l);
    EXPECT(run_call(&l) == PTAC_OK);
    EXPECT(isnan(matrix_at(&l.y, 1, 5)));
    call_backward(&l, false, false, true);
    EXPECT(run_call(&l) == PTAC_OK);
    EXPECT(matrix_at(&l.gb, 0, 5) ==
           matrix_at(&l.g, 0, 5) + matrix_at(&l.g, 1, 5) + matrix_at(&l.g, 2, 5));
    layer_drop(&l);
}

UNIT(linear_act_plans_nothing_where_it_may_not)
{
    rng r = {10};
    layer l = {.dtype = PTAC_F32, .act = PTAC_ACT_GELU, .m = 5, .n = 11, .k = 3};

    device_begin();
    refuse(nothing);
    layer_make(&l, &r);
    call_forward(&l);
    l.params.products.only_known = true;
    EXPECT(run_call(&l) == PTAC_NOT_YET);
    EXPECT(matrix_is_noise(&l.y));
    l.params.products.only_known = false;
    EXPECT(run_call(&l) == PTAC_OK);
    l.params.products.only_known = true;
    EXPECT(run_call(&l) == PTAC_OK);
    l.params.only_fused = true; /* it takes a kernel */
    l.params.products.only_known = false;
    EXPECT(run_call(&l) == PTAC_UNSUPPORTED);
    layer_drop(&l);
}

static bool is_least(int64_t bytes, int64_t least)
{
    return bytes >= least && 10 * bytes <= 11 * least;
}

UNIT(kernels_behind_products_move_few_bytes)
{
    rng r = {8};
    layer l = {.dtype = PTAC_BF16, .act = PTAC_ACT_GELU, .m = 256, .n = 256, .k = 1};
    const int64_t matrix_bytes = 2 * l.m * l.n;

    l.has_bias = l.is_training = true;
    device_begin();
    layer_make(&l, &r);
    call_forward(&l);
    forget_work();
    EXPECT(run_call(&l) == PTAC_OK);
    EXPECT(is_least(emulator_work().bytes_read, matrix_bytes)); /* z */
    EXPECT(is_least(emulator_work().bytes_written, matrix_bytes));
    call_backward(&l, true, false, true);
    l.params.products.workspace_bytes = the_workspace.bytes;
    EXPECT(ptac_linear_act_backward_workspace(&l.params, l.dtype) >
           (size_t)matrix_bytes);
    forget_work();
    EXPECT(run_call(&l) == PTAC_OK);
    EXPECT(is_least(emulator_work().bytes_read, 2 * matrix_bytes)); /* gradient, z */
    EXPECT(is_least(emulator_work().bytes_written, matrix_bytes));
    layer_drop(&l);
}

/*
 * plan_units.c - the table of plans, and what a product does that fails.
 */
#include "matrices.h"
#include "ops/linear/cuda/lt_probe.h"
#include "ops/linear/linear_act.h"
#include "unit.h"

#include "emulated_lt.h"

#include <pthread.h>
#include <string.h>

enum {
    N_THREADS = 4,
    N_KEYS = 3000, /* more than the table has places */
};

typedef struct product {
    matrix a, b, d;
    ptac_matmul matmul;
} product;

/* d [m, n] = a [m, k] b^T, bfloat16; d begins so many elements later. */
static product product_new(int64_t m, int64_t n, int64_t k, int64_t offset)
{
    rng r = {3};
    product p = {
        .a = matrix_new(PTAC_BF16, m, k, k, 0),
        .b = matrix_new(PTAC_BF16, n, k, k, 0),
        .d = matrix_new(PTAC_BF16, m, n, n, offset),
    };

    matrix_fill(&r, &p.a, 1);
    matrix_fill(&r, &p.b, 1);
    p.matmul = (ptac_matmul){
        .m = m,
        .n = n,
        .k = k,
        .a = lt_of(&p.a),
        .b = lt_of(&p.b),
        .d = lt_of(&p.d),
        .b_is_transposed = true,
        .type = PTAC_LT_R_16BF,
        .d_type = PTAC_LT_R_16BF,
        .compute = PTAC_LT_COMPUTE_32F,
        .epilogue = PTAC_LT_EPI_NONE,
    };
    return p;
}

static void product_drop(product *p)
{
    matrix_drop(&p->a);
    matrix_drop(&p->b);
    matrix_drop(&p->d);
}

/* How often the library was asked for the plan of this product. */
static int n_asked(const product *p, bool expected)
{
    const int before = emulated_lt.n_heuristics;
    ptac_lt_plan plan;

    EXPECT(ptac_lt_plan_for(&p->matmul, &the_workspace, &plan) == expected);
    return emulated_lt.n_heuristics - before;
}

UNIT(a_plan_is_asked_for_once)
{
    product p, moved, tf32;

    device_begin();
    ptac_lt_plan_clear();
    p = product_new(4, 8, 16, 0);
    moved = product_new(4, 8, 16, 2);
    tf32 = product_new(4, 8, 16, 0);
    tf32.matmul.compute = PTAC_LT_COMPUTE_TF32;
    EXPECT(n_asked(&p, true) == 1);
    EXPECT(n_asked(&p, true) == 0);
    EXPECT(n_asked(&moved, true) == 1); /* another alignment of D */
    EXPECT(n_asked(&moved, true) == 0);
    EXPECT(n_asked(&tf32, false) == 1); /* which bfloat16 has none of */
    EXPECT(n_asked(&tf32, false) == 0); /* refusals are kept too */
    p.matmul.device = 9;
    EXPECT(n_asked(&p, false) == 0); /* no such device was opened */
    EXPECT(emulated_lt.n_alive == 0);
    product_drop(&p);
    product_drop(&moved);
    product_drop(&tf32);
}

static ptac_lt_key numbered_key(int64_t i)
{
    return (ptac_lt_key){.m = i, .n = 2 * i, .k = 3 * i};
}

static ptac_lt_plan numbered_plan(int64_t i)
{
    ptac_lt_plan plan = {.workspace_bytes = (uint64_t)i};

    for (int j = 0; j < 8; j++)
        plan.algo.data[j] = (uint64_t)(i + j);
    return plan;
}

/* Whatever the table says of a key is what was kept of it. */
static void *keep_and_find(void *wrong)
{
    for (int64_t i = 1; i <= N_KEYS; i++) {
        const ptac_lt_key key = numbered_key(i), earlier = numbered_key(i / 2 + 1);
        const ptac_lt_plan plan = numbered_plan(i), right = numbered_plan(i / 2 + 1);
        ptac_lt_plan found;

        ptac_lt_plan_keep(&key, &plan);
        if (ptac_lt_plan_find(&earlier, &found) &&
            memcmp(&found, &right, sizeof found) != 0)
            __atomic_fetch_add((int *)wrong, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

UNIT(threads_share_the_table)
{
    pthread_t threads[N_THREADS];
    int wrong = 0, n_kept = 0;
    ptac_lt_plan found;

    ptac_lt_plan_clear();
    for (int i = 0; i < N_THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, keep_and_find, &wrong) == 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    EXPECT(wrong == 0);
    for (int64_t i = 1; i <= N_KEYS; i++) {
        const ptac_lt_key key = numbered_key(i);

        n_kept += ptac_lt_plan_find(&key, &found);
    }
    EXPECT(n_kept > 100);
    EXPECT(n_kept < N_KEYS); /* the table does not grow */
    ptac_lt_plan_clear();
}

static ptac_lt_workspace workspace_of(size_t bytes)
{
    return (ptac_lt_workspace){the_workspace.data, bytes};
}

UNIT(a_workspace_is_not_overrun)
{
    const size_t sizes[] = {0, EMULATED_LT_WORKSPACE - 1, EMULATED_LT_WORKSPACE};
    product p;

    device_begin();
    p = product_new(4, 8, 16, 0);
    for (int i = 0; i < 3; i++) {
        const ptac_lt_workspace workspace = workspace_of(sizes[i]);
        ptac_lt_plan plan;

        EXPECT(ptac_lt_plan_for(&p.matmul, &workspace, &plan));
        EXPECT(plan.workspace_bytes <= sizes[i]);
        EXPECT(ptac_lt_run(&p.matmul, &plan, &workspace, the_device.stream) == PTAC_OK);
    }
    product_drop(&p);
}

/* The library's words of a product that is run otherwise than it was planned. */
static const char *misuse_of(void (*spoil)(product *, ptac_lt_plan *))
{
    product p = product_new(4, 8, 16, 0);
    ptac_lt_plan plan;

    emulated_lt.misuse = "nothing";
    EXPECT(ptac_lt_plan_for(&p.matmul, &the_workspace, &plan));
    if (spoil)
        spoil(&p, &plan);
    EXPECT(ptac_lt_run(&p.matmul, &plan, &the_workspace, the_device.stream) ==
           (spoil ? PTAC_FAILED : PTAC_OK));
    if (spoil)
        EXPECT(strstr(ptac_error_get(), "CUBLAS_STATUS_INVALID_VALUE") != NULL);
    product_drop(&p);
    return emulated_lt.misuse;
}

static void move_d(product *p, ptac_lt_plan *plan)
{
    (void)plan;
    p->matmul.d.data = (char *)p->matmul.d.data + 2;
}

static void narrow_a(product *p, ptac_lt_plan *plan)
{
    (void)plan;
    p->matmul.a.ld = p->matmul.k - 1;
}

static void take_another(product *p, ptac_lt_plan *plan)
{
    (void)plan;
    p->matmul.k -= 1;
}

static void shrink(product *p, ptac_lt_plan *plan)
{
    (void)p;
    plan->workspace_bytes -= 1;
}

UNIT(faults_of_a_product_are_seen)
{
    device_begin();
    EXPECT_TEXT(misuse_of(NULL), "nothing");
    EXPECT_TEXT(misuse_of(move_d), "a pointer that is less aligned than was said");
    EXPECT_TEXT(misuse_of(narrow_a), "a leading dimension below the rows");
    EXPECT_TEXT(misuse_of(take_another), "an algorithm of another product");
    EXPECT_TEXT(misuse_of(shrink), "a workspace that is too small");
}

UNIT(what_fails_says_so_and_what_is_refused_writes_nothing)
{
    product p;
    ptac_call call = {.stream = NULL};
    ptac_lt_place place = {.call = &call, .dtype = PTAC_BF16};
    ptac_lt_forward layer;
    ptac_lt_step step;

    device_begin();
    call.stream = the_device.stream;
    place.workspace = the_workspace;
    p = product_new(4, 8, 16, 0);
    layer = (ptac_lt_forward){.m = 4,
                              .n = 8,
                              .k = 16,
                              .x = p.matmul.a,
                              .w = p.matmul.b,
                              .y = p.matmul.d,
                              .act = PTAC_ACT_GELU};
    refuse_all(true);
    EXPECT(!ptac_lt_plan_forward(&place, &layer, &step));
    EXPECT(matrix_is_noise(&p.d));
    refuse_all(false);
    EXPECT(ptac_lt_plan_forward(&place, &layer, &step));
    emulated_lt.failure = 13; /* execution failed */
    EXPECT(ptac_lt_step_run(&place, &step) == PTAC_FAILED);
    emulated_lt.failure = PTAC_LT_OK;
    EXPECT_TEXT(ptac_error_get(),
                "a product of 4 x 16 x 8: CUBLAS_STATUS_EXECUTION_FAILED");
    EXPECT(ptac_lt_step_run(&place, &step) == PTAC_OK);
    product_drop(&p);
}

static bool has(int device, ptac_dtype dtype, int epilogue, int64_t n)
{
    return ptac_lt_probe(device, dtype, false, epilogue, 64, n, 32, n % 2 ? 2 : 256);
}

UNIT(epilogues_are_asked_for_without_data)
{
    static const int epilogues[] = {
        PTAC_LT_EPI_NONE,          PTAC_LT_EPI_BIAS,        PTAC_LT_EPI_RELU_AUX_BIAS,
        PTAC_LT_EPI_GELU_AUX_BIAS, PTAC_LT_EPI_DRELU_BGRAD, PTAC_LT_EPI_DGELU_BGRAD,
        PTAC_LT_EPI_BGRADB,
    };
    static const uint32_t refused[] = {PTAC_LT_EPI_BGRADB, 0}, none[] = {0};
    const int n_products = emulated_lt.n_products;

    device_begin();
    refuse(none);
    for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++)
        for (int64_t n = 127; n <= 128; n++)
            EXPECT(has(0, PTAC_BF16, epilogues[i], n));
    EXPECT(!has(9, PTAC_BF16, PTAC_LT_EPI_NONE, 128)); /* no such device was opened */
    EXPECT(!has(0, PTAC_F64, PTAC_LT_EPI_NONE, 128));
    refuse(refused);
    EXPECT(!has(0, PTAC_BF16, PTAC_LT_EPI_BGRADB, 128));
    EXPECT(has(0, PTAC_BF16, PTAC_LT_EPI_DRELU_BGRAD, 128));
    refuse(none);
    EXPECT(emulated_lt.n_products == n_products);
    EXPECT(emulated_lt.n_alive == 0);
}

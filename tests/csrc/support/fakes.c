/*
 * fakes.c - rows and shapes of the fake operators.
 */
#include "fakes.h"

#include <string.h>

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const fake_params *params = call->params;

    shape->kind = params->kind;
    shape->work = params->work;
    if (params->uses)
        shape->uses = params->uses;
    memcpy(shape->sizes, params->sizes, sizeof shape->sizes);
    return params->classify;
}

static const ptac_op_shapes shapes = {
    .op = FAKE_OP, .kinds = {"first", "second", "third"}, .classify = classify};
PTAC_REGISTER_SHAPES(shapes)
static const ptac_op_shapes other_shapes = {
    .op = OTHER_FAKE_OP, .kinds = {"first", "second", "third"}, .classify = classify};
PTAC_REGISTER_SHAPES(other_shapes)
static const ptac_op_shapes decided_shapes = {.op = DECIDED_FAKE_OP,
                                              .kinds = {"first", "second", "third"},
                                              .classify = classify,
                                              .is_decided = true};
PTAC_REGISTER_SHAPES(decided_shapes)

static ptac_reason accepts(const ptac_call *call)
{
    return ((const fake_params *)call->params)->accept;
}

static ptac_status run(const ptac_call *call)
{
    (void)call;
    return PTAC_OK;
}

static bool pays(const ptac_call *call)
{
    return !((const fake_params *)call->params)->leaves;
}

#define ROW(of, text, ...)                                                             \
    {                                                                                  \
        .op = of, .name = text, .accepts = accepts, .run = run, ##__VA_ARGS__          \
    }
const ptac_kernel fake_rows[N_FAKE_ROWS] = {
    ROW(FAKE_OP, "scalar"),
    ROW(FAKE_OP, "avx2", .needs = PTAC_CPU_AVX2),
    ROW(FAKE_OP, "avx512", .needs = PTAC_CPU_AVX512, .pays = pays),
};
const ptac_kernel other_fake_row = ROW(OTHER_FAKE_OP, "scalar");
const ptac_kernel rounding_fake_row = {.op = FAKE_OP,
                                       .name = "bf16",
                                       .level = PTAC_FAST,
                                       .in_bf16 = true,
                                       .accepts = accepts,
                                       .run = run};

#define DECIDED(text, cpu)                                                             \
    {                                                                                  \
        .op = DECIDED_FAKE_OP, .name = text, .needs = cpu, .accepts = accepts,         \
        .run = run                                                                     \
    }
const ptac_kernel decided_rows[] = {
    [PTAC_ISA_SCALAR] = DECIDED("scalar", 0),
    [PTAC_ISA_AVX2] = DECIDED("avx2", PTAC_CPU_AVX2),
    [PTAC_ISA_AVX512] = DECIDED("avx512", PTAC_CPU_AVX512),
};

__attribute__((constructor)) static void add_rows(void)
{
    for (int i = 0; i < N_FAKE_ROWS; i++)
        ptac_registry_add(&fake_rows[i]);
    ptac_registry_add(&other_fake_row);
    ptac_registry_add(&rounding_fake_row);
    for (int isa = PTAC_ISA_AVX512; isa >= PTAC_ISA_SCALAR; isa--)
        ptac_registry_add(&decided_rows[isa]);
}

ptac_call fake_call(const fake_params *params, ptac_dtype dtype, int n_threads)
{
    return (ptac_call){.op = FAKE_OP,
                       .n_inputs = 1,
                       .n_threads = n_threads,
                       .inputs = {{.dtype = dtype}},
                       .params = params};
}

/*
 * test_chooser_cuda.c - rows of calls on CUDA: ranks, levels, gates, quarantine.
 */
#include "core/chooser.h"
#include "unit.h"

/* An operator that no other test of the chooser touches. */
#define OP PTAC_OP_ATTENTION_BACKWARD

static ptac_reason answers[2]; /* of accepts(): the general row's, the special one's */

static ptac_reason general_accepts(const ptac_call *call)
{
    (void)call;
    return answers[0];
}

static ptac_reason special_accepts(const ptac_call *call)
{
    (void)call;
    return answers[1];
}

static ptac_status run(const ptac_call *call)
{
    (void)call;
    return PTAC_OK;
}

#define ROW(text, takes, ...)                                                          \
    {                                                                                  \
        .op = OP, .device = PTAC_ON_CUDA, .name = text, .accepts = takes, .run = run,  \
        __VA_ARGS__                                                                    \
    }
static const ptac_kernel general = ROW("general", general_accepts, .level = PTAC_CLOSE);
static const ptac_kernel special = ROW("special", special_accepts, .rank = 2);
static const ptac_kernel measured =
    ROW("measured", ptac_accept_all, .rank = 3, .asks_table = true);
static const ptac_kernel rough =
    ROW("rough", ptac_accept_all, .rank = 1, .level = PTAC_FAST);

/* Of an operator that is asked for by name. */
static const ptac_kernel quantized = {.op = PTAC_OP_INT8_EMBEDDING,
                                      .device = PTAC_ON_CUDA,
                                      .name = "quantized",
                                      .level = PTAC_FAST,
                                      .accepts = ptac_accept_all,
                                      .run = run};

__attribute__((constructor)) static void add_rows(void)
{
    ptac_registry_add(&general);
    ptac_registry_add(&special);
    ptac_registry_add(&measured);
    ptac_registry_add(&rough);
    ptac_registry_add(&quantized);
}

static const ptac_kernel *choose(int64_t n_elements, ptac_reason *why)
{
    const ptac_call call = {.op = OP, .inputs = {{.n_elements = n_elements}}};

    return ptac_select_on_cuda(&call, why);
}

static void reset(void)
{
    answers[0] = answers[1] = PTAC_TAKE;
    ptac_chooser_reset_quarantine();
    ptac_chooser_set_gate(OP, PTAC_TAKE);
    ptac_chooser_set_level(PTAC_CLOSE);
}

UNIT(rows_of_a_device_go_by_rank)
{
    ptac_reason why;
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(PTAC_ON_CUDA, OP, &n);

    reset();
    EXPECT(n == 4 && rows[0] == &measured && rows[3] == &general);
    EXPECT(choose(1, &why) == &special && why == PTAC_TAKE);
    answers[1] = PTAC_SHAPE;
    EXPECT(choose(1, &why) == &general && why == PTAC_TAKE);
    answers[0] = PTAC_COMPILING;
    EXPECT(!choose(1, &why) && why == PTAC_COMPILING);
}

UNIT(rows_of_a_device_keep_to_the_level)
{
    ptac_reason why;

    reset();
    answers[1] = PTAC_SHAPE;
    ptac_chooser_set_level(PTAC_EXACT);
    EXPECT(!choose(1, &why) && why == PTAC_NUMERICS);
    ptac_chooser_set_level(PTAC_FAST);
    EXPECT(choose(1, &why) == &rough);
    reset();
}

UNIT(quantization_has_no_level)
{
    const ptac_call call = {.op = PTAC_OP_INT8_EMBEDDING,
                            .inputs = {{.n_elements = 1}}};
    ptac_reason why;

    reset();
    ptac_chooser_set_gate(PTAC_OP_INT8_EMBEDDING, PTAC_TAKE);
    ptac_chooser_set_level(PTAC_EXACT);
    EXPECT(ptac_select_on_cuda(&call, &why) == &quantized);
    ptac_chooser_set_gate(PTAC_OP_INT8_EMBEDDING, PTAC_OFF);
    reset();
}

UNIT(a_device_has_a_gate_of_its_own)
{
    ptac_reason why;

    reset();
    ptac_chooser_set_gate_on(PTAC_ON_CUDA, OP, PTAC_EXCLUDED);
    EXPECT(!choose(1, &why) && why == PTAC_EXCLUDED);
    EXPECT(ptac_chooser_gate(OP) == PTAC_TAKE);
    ptac_chooser_set_gate_on(PTAC_ON_CUDA, OP, PTAC_TAKE);
    ptac_chooser_set_gate_on(PTAC_ON_CPU, OP, PTAC_EXCLUDED);
    EXPECT(choose(1, &why) == &special);
    ptac_chooser_set_gate(OP, PTAC_OFF);
    EXPECT(!choose(1, &why) && why == PTAC_OFF);
    reset();
}

UNIT(quarantine_of_a_device_s_row_is_its_own)
{
    ptac_reason why;
    int n;
    const ptac_kernel *const *on_cpu = ptac_registry_rows(OP, &n);

    reset();
    ptac_chooser_quarantine(&special);
    EXPECT(choose(1, &why) == &general);
    for (int i = 0; i < n; i++)
        EXPECT(!ptac_chooser_is_quarantined(on_cpu[i]));
    ptac_chooser_quarantine(&general);
    EXPECT(!choose(1, &why) && why == PTAC_QUARANTINED);
    reset();
    EXPECT(choose(1, &why) == &special);
}

UNIT(nothing_is_launched_for_no_elements)
{
    ptac_reason why;

    reset();
    EXPECT(!choose(0, &why) && why == PTAC_EMPTY);
}

/*
 * test_calibration_cuda.c - tables of CUDA devices: what they decide, and for which.
 */
#include "core/counters.h"
#include "fakes.h"
#include "unit.h"

#include <string.h>

static ptac_status run(const ptac_call *call)
{
    (void)call;
    return PTAC_OK;
}

#define ROW(text, ...)                                                                 \
    {                                                                                  \
        .op = FAKE_OP, .device = PTAC_ON_CUDA, .name = text, .run = run,               \
        .accepts = ptac_accept_all, __VA_ARGS__                                        \
    }
static const ptac_kernel sure = ROW("sure", .level = PTAC_CLOSE);
static const ptac_kernel unsure = ROW("unsure", .rank = 1, .asks_table = true);

__attribute__((constructor)) static void add_rows(void)
{
    ptac_registry_add(&sure);
    ptac_registry_add(&unsure);
}

static int n_asked;

/* Devices 0 and 2 are alike. */
static bool is_called(int device, const char *name)
{
    n_asked++;
    return strcmp(name, device == 1 ? "other" : "one") == 0;
}

static ptac_point point(int64_t work, const ptac_kernel *row)
{
    return (ptac_point){.op = FAKE_OP,
                        .dtype = PTAC_F16,
                        .n_threads = 1,
                        .work = work,
                        .row = row,
                        .stock_ns = 100,
                        .ratio = row ? 2 : 1};
}

static void install(const ptac_point *points, int n, const char *device)
{
    EXPECT(ptac_chooser_install_on_cuda(points, n, device, is_called) == PTAC_OK);
}

static void reset(void)
{
    install(NULL, 0, "");
    ptac_chooser_set_measuring(false);
    ptac_chooser_set_level(PTAC_CLOSE);
    ptac_chooser_reset_quarantine();
    ptac_chooser_set_gate(FAKE_OP, PTAC_TAKE);
    n_asked = 0;
}

static const ptac_kernel *choose_of(const fake_params *params, ptac_dtype dtype,
                                    int device, ptac_reason *why)
{
    ptac_call call = fake_call(params, dtype, 1);

    call.on = PTAC_ON_CUDA;
    call.device = device;
    call.inputs[0].n_elements = 1;
    return ptac_select_on_cuda(&call, why);
}

static const ptac_kernel *choose(int64_t work, int device, ptac_reason *why)
{
    const fake_params params = {.work = work};

    return choose_of(&params, PTAC_F16, device, why);
}

UNIT(a_table_of_a_device_decides_by_work)
{
    const ptac_point points[] = {point(100, &sure), point(200, NULL),
                                 point(300, &unsure)};
    ptac_reason why;

    reset();
    install(points, 3, "one");
    EXPECT(choose(99, 0, &why) == &sure); /* unmeasured: what cannot lose serves */
    EXPECT(choose(150, 0, &why) == &sure);
    EXPECT(!choose(200, 0, &why) && why == PTAC_NOT_FASTER);
    EXPECT(!choose(299, 0, &why) && why == PTAC_NOT_FASTER);
    EXPECT(choose(1000, 0, &why) == &unsure);
    install(NULL, 0, "one");
    EXPECT(choose(200, 0, &why) == &sure);
    EXPECT(choose(1000, 0, &why) == &sure);
}

UNIT(what_a_table_does_not_know_is_as_without_one)
{
    const ptac_point points[] = {point(0, NULL)};
    const fake_params of_other_kind = {.kind = 1, .work = 5};
    const fake_params of_none = {.classify = PTAC_SHAPE, .work = 5};
    const fake_params plain = {.work = 5};
    ptac_reason why;

    reset();
    install(points, 1, "one");
    EXPECT(!choose_of(&plain, PTAC_F16, 0, &why));
    EXPECT(choose_of(&plain, PTAC_F32, 0, &why) == &sure);
    EXPECT(choose_of(&plain, PTAC_OTHER_DTYPE, 0, &why) == &sure);
    EXPECT(choose_of(&of_other_kind, PTAC_F16, 0, &why) == &sure);
    EXPECT(choose_of(&of_none, PTAC_F16, 0, &why) == &sure);
    reset();
}

UNIT(a_table_speaks_for_devices_of_its_name)
{
    const ptac_point points[] = {point(0, NULL)};
    ptac_reason why;

    reset();
    install(points, 1, "one");
    for (int i = 0; i < 3; i++) {
        EXPECT(!choose(5, 0, &why));
        EXPECT(choose(5, 1, &why) == &sure);
        EXPECT(!choose(5, 2, &why));
        EXPECT(choose(5, 64, &why) == &sure); /* beyond those that are told apart */
        EXPECT(choose(5, -1, &why) == &sure);
    }
    EXPECT(n_asked == 3);
    install(points, 1, "other");
    EXPECT(choose(5, 0, &why) == &sure);
    EXPECT(!choose(5, 1, &why));
    reset();
}

UNIT(the_level_comes_before_a_table_of_a_device)
{
    const ptac_point points[] = {point(0, &sure)};
    ptac_reason why;

    reset();
    install(points, 1, "one");
    ptac_chooser_set_level(PTAC_EXACT);
    EXPECT(!choose(5, 0, &why) && why == PTAC_NUMERICS);
    reset();
}

UNIT(a_table_of_a_device_estimates)
{
    const ptac_point points[] = {point(10, &sure), point(100, NULL)};
    ptac_op_counts before, after;
    ptac_reason why;

    reset();
    install(points, 2, "one");
    ptac_counters_read(FAKE_OP, &before);
    EXPECT(choose(20, 0, &why) == &sure);
    ptac_count_accelerated(FAKE_OP);
    EXPECT(!choose(100, 0, &why));
    ptac_count_forwarded(FAKE_OP, why);
    ptac_counters_read(FAKE_OP, &after);
    EXPECT(after.estimated_served_ns - before.estimated_served_ns == 200);
    EXPECT(after.estimated_saved_ns - before.estimated_saved_ns == 100);
    EXPECT(after.estimated_stock_ns - before.estimated_stock_ns == 100);
    reset();
}

UNIT(calibration_asks_no_table_of_a_device)
{
    const ptac_point points[] = {point(0, NULL)};
    ptac_reason why;

    reset();
    install(points, 1, "one");
    ptac_chooser_set_measuring(true);
    EXPECT(choose(5, 0, &why) == &unsure);
    ptac_chooser_set_measuring(false);
    EXPECT(!choose(5, 0, &why));
    reset();
}

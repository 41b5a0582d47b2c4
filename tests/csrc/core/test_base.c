/*
 * test_base.c - texts, names, the error detail, CPU limits and the registry.
 */
#include "core/cpu.h"
#include "core/host.h"
#include "core/kernel.h"
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

UNIT(reason_texts_are_distinct)
{
    for (int i = 0; i < PTAC_N_REASONS; i++) {
        const char *text = ptac_reason_text((ptac_reason)i);

        EXPECT((text[0] == '\0') == (i == PTAC_TAKE));
        for (int j = 0; j < i; j++)
            EXPECT(strcmp(text, ptac_reason_text((ptac_reason)j)) != 0);
    }
    EXPECT_TEXT(ptac_reason_text(PTAC_N_REASONS), "unknown");
    EXPECT(PTAC_TAKE == 0); /* "if (why)" rests on it */
}

UNIT(dtype_and_level_names)
{
    EXPECT_TEXT(ptac_dtype_name(PTAC_F32), "float32");
    EXPECT_TEXT(ptac_dtype_name(PTAC_BF16), "bfloat16");
    EXPECT_TEXT(ptac_dtype_name(PTAC_F64), "float64");
    EXPECT_TEXT(ptac_dtype_name(PTAC_I64), "int64");
    EXPECT_TEXT(ptac_dtype_name(PTAC_OTHER_DTYPE), "other");
    EXPECT_TEXT(ptac_dtype_name((ptac_dtype)77), "other");
    EXPECT_TEXT(ptac_level_name(PTAC_EXACT), "exact");
    EXPECT_TEXT(ptac_level_name(PTAC_CLOSE), "close");
    EXPECT_TEXT(ptac_level_name(PTAC_FAST), "fast");
    EXPECT_TEXT(ptac_level_name((ptac_level)77), "unknown");
}

UNIT(operator_names_lead_back)
{
    for (int op = 0; op < PTAC_N_OPS; op++)
        EXPECT(ptac_op_find(ptac_op_name((ptac_op)op)) == (ptac_op)op);
    EXPECT(ptac_op_find("no such operator") == PTAC_N_OPS);
    EXPECT(ptac_op_find("") == PTAC_N_OPS);
    EXPECT_TEXT(ptac_op_name(PTAC_N_OPS), "unknown");
}

static void *error_of_another_thread(void *unused)
{
    (void)unused;
    EXPECT_TEXT(ptac_error_get(), "");
    ptac_error_set("the other's");
    EXPECT_TEXT(ptac_error_get(), "the other's");
    return NULL;
}

UNIT(error_text_is_cut_and_belongs_to_its_thread)
{
    char expected[96];
    pthread_t thread;

    EXPECT_TEXT(ptac_error_get(), "");
    ptac_error_set("%s %d", "row", 7);
    EXPECT_TEXT(ptac_error_get(), "row 7");

    ptac_error_set("%0200d", 0);
    memset(expected, '0', 95);
    expected[95] = '\0';
    EXPECT_TEXT(ptac_error_get(), expected);

    ptac_error_set("%.*s", 95, expected);
    EXPECT_TEXT(ptac_error_get(), expected);

    pthread_create(&thread, NULL, error_of_another_thread, NULL);
    pthread_join(thread, NULL);
    EXPECT_TEXT(ptac_error_get(), expected);

    ptac_error_set("%s", "");
    EXPECT_TEXT(ptac_error_get(), "");
}

UNIT(cpu_limits_take_features_away)
{
    const uint32_t all = ptac_cpu_features();

    ptac_cpu_limit(PTAC_ISA_AVX2);
    EXPECT(ptac_cpu_features() == (all & PTAC_CPU_AVX2));
    EXPECT(ptac_cpu_isa() <= PTAC_ISA_AVX2);
    ptac_cpu_limit(PTAC_ISA_SCALAR);
    EXPECT(ptac_cpu_features() == 0);
    EXPECT(ptac_cpu_isa() == PTAC_ISA_SCALAR);
    ptac_cpu_limit(PTAC_ISA_AVX512);
    EXPECT(ptac_cpu_features() == all);
    EXPECT(!(all & PTAC_CPU_AVX512) || (all & PTAC_CPU_AVX2));
    EXPECT((ptac_cpu_isa() == PTAC_ISA_AVX512) == ((all & PTAC_CPU_AVX512) != 0));

    EXPECT_TEXT(ptac_isa_name(PTAC_ISA_SCALAR), "scalar");
    EXPECT_TEXT(ptac_isa_name(PTAC_ISA_AVX2), "avx2");
    EXPECT_TEXT(ptac_isa_name(PTAC_ISA_AVX512), "avx512");
    EXPECT_TEXT(ptac_isa_name((ptac_isa)77), "scalar");
}

#if defined(__x86_64__)
static bool cpuinfo_has(const char *flags, const char *flag)
{
    char word[32];

    snprintf(word, sizeof word, " %s ", flag);
    return strstr(flags, word) != NULL;
}

/* The kernel lists what it has enabled, so its flags must agree with ours. */
UNIT(cpu_is_the_one_that_the_kernel_sees)
{
    static char line[8192], flags[8192], vendor[64], expected[96];
    unsigned int family = 0, model = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    char *end;

    EXPECT(file != NULL);
    if (!file)
        return;
    while (fgets(line, sizeof line, file) && line[0] != '\n') {
        sscanf(line, "vendor_id : %63s", vendor);
        sscanf(line, "cpu family : %u", &family);
        sscanf(line, "model : %u", &model);
        if (strncmp(line, "flags", 5) == 0)
            memcpy(flags, line, sizeof flags);
    }
    fclose(file);
    end = strchr(flags, '\n');
    if (end)
        *end = ' '; /* so that the last flag has one behind it, too */
    snprintf(expected, sizeof expected, "%s-%u-%u", vendor, family, model);
    EXPECT_TEXT(ptac_cpu_model(), expected);

    const bool avx2 = cpuinfo_has(flags, "avx2") && cpuinfo_has(flags, "fma") &&
                      cpuinfo_has(flags, "f16c");
    const bool avx512 =
        cpuinfo_has(flags, "avx512f") && cpuinfo_has(flags, "avx512bw") &&
        cpuinfo_has(flags, "avx512dq") && cpuinfo_has(flags, "avx512vl");

    EXPECT(((ptac_cpu_features() & PTAC_CPU_AVX2) != 0) == avx2);
    EXPECT(((ptac_cpu_features() & PTAC_CPU_AVX512) != 0) == (avx2 && avx512));
}
#endif

static ptac_reason take(const ptac_call *call)
{
    (void)call;
    return PTAC_TAKE;
}

static ptac_status do_nothing(const ptac_call *call)
{
    (void)call;
    return PTAC_OK;
}

static const ptac_kernel many[PTAC_MAX_ROWS + 1] = {
    [0 ... PTAC_MAX_ROWS] = {.op = PTAC_OP_ZERO_GRAD,
                             .name = "row",
                             .accepts = take,
                             .run = do_nothing},
};

static bool rows_keep_their_order(void)
{
    int n;
    const ptac_kernel *const *rows;

    for (int i = 0; i < PTAC_MAX_ROWS; i++)
        ptac_registry_add(&many[i]);
    rows = ptac_registry_rows(PTAC_OP_ZERO_GRAD, &n);
    for (int i = 0; i < PTAC_MAX_ROWS; i++)
        if (rows[i] != &many[i])
            return false;
    return n == PTAC_MAX_ROWS &&
           ptac_registry_find(PTAC_OP_ZERO_GRAD, "row") == &many[0] &&
           ptac_registry_find(PTAC_OP_ZERO_GRAD, "ro") == NULL;
}

static bool add_one_too_many(void)
{
    for (int i = 0; i <= PTAC_MAX_ROWS; i++)
        ptac_registry_add(&many[i]);
    return true;
}

/* In children, so that the rows do not stay. */
UNIT(registry_holds_so_many_rows_and_no_more)
{
    EXPECT(unit_in_child(rows_keep_their_order));
    EXPECT(unit_child_dies(add_one_too_many, SIGABRT));
}

UNIT(operators_without_rows)
{
    int n = -1;

    ptac_registry_rows(PTAC_OP_ZERO_GRAD, &n);
    EXPECT(n == 0);
    EXPECT(ptac_registry_find(PTAC_OP_ZERO_GRAD, "scalar") == NULL);
}

static void add_up(int64_t begin, int64_t end, void *context)
{
    *(int64_t *)context += end - begin;
}

static int n_shared_out;

static void share_out(int64_t begin, int64_t end, int64_t grain, ptac_range_fn body,
                      void *context)
{
    (void)grain;
    n_shared_out++;
    body(begin, end, context);
}

UNIT(small_ranges_stay_in_the_thread)
{
    const ptac_host own = ptac_the_host;
    int64_t sum = 0;

    EXPECT(own.n_threads() == 1);
    ptac_parallel_for(3, 40, 5, add_up, &sum);
    EXPECT(sum == 37);

    ptac_the_host.parallel_for = share_out;
    ptac_parallel_for(0, 5, 5, add_up, &sum);
    EXPECT(n_shared_out == 0 && sum == 42);
    ptac_parallel_for(0, 6, 5, add_up, &sum);
    EXPECT(n_shared_out == 1 && sum == 48);
    ptac_the_host = own;
}

UNIT(square_roots_without_a_host)
{
    const float in[] = {4.0f, 2.0f, 0.0f, -0.0f, INFINITY};
    const double in64[] = {4.0, 2.0, 0.0, -0.0, INFINITY};
    float out[5];
    double out64[5];

    ptac_the_host.sqrt_f32(in, out, 5);
    ptac_the_host.sqrt_f64(in64, out64, 5);
    for (int i = 0; i < 5; i++) {
        EXPECT(out[i] == sqrtf(in[i]) && !signbit(out[i]) == !signbit(in[i]));
        EXPECT(out64[i] == sqrt(in64[i]) && !signbit(out64[i]) == !signbit(in64[i]));
    }
}

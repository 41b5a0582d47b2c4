/*
 * lt_sizes.c - lt_sizes [LIBRARY]: does cuBLASLt take our attributes at our sizes?
 *
 * The library creates descriptions, layouts and preferences without a driver too, and
 * refuses an attribute of another size. Without an argument the program itself is the
 * library. Prints the version; the exit status is 0 where all is as it should be.
 */
#include "device/cuda/cublaslt.h"

#include <stdio.h>

static int n_failures;

static void expect(int got, int expected, const char *what)
{
    if (got != expected) {
        printf("%s: %d, not %d\n", what, got, expected);
        n_failures++;
    }
}

typedef struct attribute {
    int name;
    size_t bytes;
    const char *text;
} attribute;

static const attribute of_desc[] = {
    {PTAC_LT_TRANSA, 4, "TRANSA"},           {PTAC_LT_TRANSB, 4, "TRANSB"},
    {PTAC_LT_EPILOGUE, 4, "EPILOGUE"},       {PTAC_LT_BIAS_POINTER, 8, "BIAS_POINTER"},
    {PTAC_LT_AUX_POINTER, 8, "AUX_POINTER"}, {PTAC_LT_AUX_LD, 8, "AUX_LD"},
    {PTAC_LT_A_SCALE, 8, "A_SCALE"},         {PTAC_LT_B_SCALE, 8, "B_SCALE"},
    {PTAC_LT_FAST_ACCUM, 1, "FAST_ACCUM"},   {PTAC_LT_BIAS_TYPE, 4, "BIAS_TYPE"},
};

/* cuBLAS 12.9 and later. */
static const attribute of_desc_with_modes[] = {
    {PTAC_LT_A_SCALE_MODE, 4, "A_SCALE_MODE"},
    {PTAC_LT_B_SCALE_MODE, 4, "B_SCALE_MODE"},
};

static const attribute of_preference[] = {
    {PTAC_LT_MAX_WORKSPACE, 8, "MAX_WORKSPACE"},
    {PTAC_LT_REDUCTIONS, 4, "REDUCTIONS"},
    {PTAC_LT_ALIGNMENT_A, 4, "ALIGNMENT_A"},
    {PTAC_LT_ALIGNMENT_B, 4, "ALIGNMENT_B"},
    {PTAC_LT_ALIGNMENT_C, 4, "ALIGNMENT_C"},
    {PTAC_LT_ALIGNMENT_D, 4, "ALIGNMENT_D"},
};

static const int64_t value = PTAC_LT_EPI_NONE; /* a good one of each, little-endian */

static void check_desc(lt_desc desc, const attribute *attributes, int n)
{
    for (int i = 0; i < n; i++) {
        const attribute *a = &attributes[i];

        expect(ptac_lt.desc_set(desc, a->name, &value, a->bytes), PTAC_LT_OK, a->text);
        expect(ptac_lt.desc_set(desc, a->name, &value, a->bytes == 4 ? 8 : 4),
               PTAC_LT_INVALID_VALUE, a->text);
    }
}

static void check_preference(lt_preference preference)
{
    const int n = (int)(sizeof of_preference / sizeof *of_preference);

    for (int i = 0; i < n; i++) {
        const attribute *a = &of_preference[i];

        expect(ptac_lt.preference_set(preference, a->name, &value, a->bytes),
               PTAC_LT_OK, a->text);
        expect(ptac_lt.preference_set(preference, a->name, &value, 12 - a->bytes),
               PTAC_LT_INVALID_VALUE, a->text);
    }
}

int main(int argc, char **argv)
{
    const char *const names[] = {argv[1], NULL};
    const char *trouble = ptac_lt_load(argc > 1 ? names : NULL);
    lt_desc desc = NULL;
    lt_layout layout = NULL;
    lt_preference preference = NULL;

    if (trouble) {
        printf("%s\n", trouble);
        return 2;
    }
    expect(ptac_lt.desc_create(&desc, PTAC_LT_COMPUTE_32F, PTAC_LT_R_32F), PTAC_LT_OK,
           "a description");
    expect(ptac_lt.layout_create(&layout, PTAC_LT_R_16BF, 64, 32, 64), PTAC_LT_OK,
           "a layout");
    expect(ptac_lt.preference_create(&preference), PTAC_LT_OK, "a preference");
    if (n_failures)
        return 1;
    check_desc(desc, of_desc, (int)(sizeof of_desc / sizeof *of_desc));
    if (ptac_lt.version() >= 120900)
        check_desc(desc, of_desc_with_modes, 2);
    check_preference(preference);
    ptac_lt.preference_destroy(preference);
    ptac_lt.layout_destroy(layout);
    ptac_lt.desc_destroy(desc);
    printf("cuBLASLt %zu, %s\n", ptac_lt.version(),
           ptac_lt.status_name(PTAC_LT_NOT_SUPPORTED));
    return n_failures != 0;
}

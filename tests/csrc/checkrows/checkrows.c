/*
 * checkrows.c - every row of every operator against the operator's row "scalar".
 *
 *   checkrows [--bench | --count] [--seed N] [--cases N] [--op NAME [--case K]]
 *
 * After dav1d's checkasm: random calls, each run on buffers that notice stray reads and
 * writes, under every instruction set limit and with several threads. Case K depends on
 * the seed, the operator's name and K alone, so a failure is repeated by its last line.
 * With --bench the same calls are timed instead, each row beside "scalar". With --count
 * a device's rows run on typical calls, and what they move and launch is judged.
 */
#include "checkrows.h"

#include "counting.h"
#include "faults.h"
#include "timing.h"
#include "trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_COMPARED = 20, /* of each row; what fewer calls say is not worth a pass */
    MOST_CASES = 5000,   /* to get there */
};

/* Operators with rows whose calls cannot be made up here, and why. */
static const struct {
    ptac_op op;
    const char *why;
} excused[] = {
    {PTAC_OP_LINEAR_ACT,
     "rows of the CPU take torch's tensors, and those of CUDA, with a cuBLASLt, are "
     "held to exact products: tests/csrc/ops/linear/cuda"},
    {PTAC_OP_LINEAR_ACT_BACKWARD, "likewise"},
    {PTAC_OP_MLP, "likewise"},
    {PTAC_OP_MLP_BACKWARD, "likewise"},
    {PTAC_OP_FP8_LINEAR, "likewise: tests/csrc/ops/int8/cuda"},
    {PTAC_OP_MULTI_HEAD_ATTENTION,
     "rows take torch's tensors, and consist of rows that are compared"},
    {PTAC_OP_ENCODER_LAYER, "likewise"},
    {PTAC_OP_ZERO_GRAD,
     "no row of the CPU's says what is right: see test_step_cuda.py"},
};

typedef struct options {
    uint64_t seed;
    int64_t n_cases;
    int64_t only_case;
    ptac_op only_op;
    bool benches, counts;
} options;

static const generator *generators[PTAC_N_OPS];

void generator_add(const generator *g)
{
    generators[g->op] = g;
}

/* The rows of the operator that this CPU runs and that were compared too rarely. */
static int n_neglected(ptac_op op, const tally *records, const char **name)
{
    int n, neglected = 0;
    const ptac_kernel *const *rows = ptac_registry_rows_on(the_device.device, op, &n);

    ptac_cpu_limit(PTAC_ISA_AVX512);
    for (int i = 0; i < n; i++) {
        if ((rows[i]->needs & ~ptac_cpu_features()) == 0 &&
            records[i].n_compared < LEAST_COMPARED) {
            *name = rows[i]->name;
            neglected++;
        }
    }
    return neglected;
}

static void print_record(ptac_op op, int64_t n_cases, const tally *records)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(the_device.device, op, &n);

    printf("%s: %lld cases\n", ptac_op_name(op), (long long)n_cases);
    for (int i = 0; i < n; i++) {
        if (rows[i]->needs & ~ptac_cpu_features())
            printf("  %-8s not checked: this CPU cannot run it\n", rows[i]->name);
        else
            printf("  %-8s %s: %lld runs compared (%lld shared out), %lld refused, "
                   "%lld given back\n",
                   rows[i]->name, ptac_level_name(rows[i]->level),
                   (long long)records[i].n_compared, (long long)records[i].n_shared,
                   (long long)records[i].n_refused, (long long)records[i].n_given_back);
        if (the_device.device)
            printf("  %-8s of those compared, %lld on float16, %lld on bfloat16\n", "",
                   (long long)records[i].n_16_bits[0],
                   (long long)records[i].n_16_bits[1]);
    }
}

static bool check_op(const options *asked, const generator *g)
{
    tally records[PTAC_MAX_ROWS] = {{0}};
    const char *name = "";
    int64_t k = 0;

    if (asked->only_case >= 0)
        return check_case(g, asked->seed, asked->only_case, records);
    for (;; k++) {
        if (k >= asked->n_cases &&
            (n_neglected(g->op, records, &name) == 0 || k >= MOST_CASES))
            break;
        if (!check_case(g, asked->seed, k, records))
            return false;
    }
    print_record(g->op, k, records);
    if (n_neglected(g->op, records, &name) == 0)
        return true;
    printf("FAIL %s row %s: its generator made hardly any call that it takes\n",
           ptac_op_name(g->op), name);
    return false;
}

static void time_op(const options *asked, const generator *g)
{
    row_speed speeds[PTAC_MAX_ROWS] = {{0}};

    if (asked->only_case >= 0) {
        time_case(g, asked->seed, asked->only_case, true, speeds);
        return;
    }
    for (int64_t k = 0; k < asked->n_cases; k++)
        time_case(g, asked->seed, k, false, speeds);
    print_speeds(g->op, speeds);
}

static const char *excuse(ptac_op op)
{
    for (size_t i = 0; i < sizeof excused / sizeof *excused; i++)
        if (excused[i].op == op)
            return excused[i].why;
    return NULL;
}

/* Whether an operator's rows can be checked at all; false is a failure. */
static bool is_checkable(ptac_op op, int *n_rows)
{
    const ptac_kernel *scalar = ptac_registry_find(op, "scalar");
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows_on(the_device.device, op, &n);

    *n_rows = n;
    if (n == 0)
        return true;
    if (excuse(op)) {
        printf("%s: not checked: %s\n", ptac_op_name(op), excuse(op));
        *n_rows = 0;
        return true;
    }
    if (!scalar || scalar->needs) {
        printf("FAIL %s has no row \"scalar\" that runs on any CPU\n",
               ptac_op_name(op));
        return false;
    }
    if (!generators[op]) {
        printf("FAIL %s has rows and no generator: add a gen_<family>.c\n",
               ptac_op_name(op));
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (rows[i]->level != PTAC_EXACT && generators[op]->roundings == 0 &&
            rows[i] != scalar) {
            printf("FAIL %s row %s is %s and its generator states no tolerance\n",
                   ptac_op_name(op), rows[i]->name, ptac_level_name(rows[i]->level));
            return false;
        }
    }
    return true;
}

static bool read_options(int argc, char **argv, options *asked)
{
    *asked =
        (options){.seed = 1, .n_cases = 300, .only_case = -1, .only_op = PTAC_N_OPS};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];

        if (strcmp(name, "--bench") == 0 || strcmp(name, "--count") == 0) {
            asked->benches |= name[2] == 'b';
            asked->counts |= name[2] == 'c';
            continue;
        }
        if (++i == argc)
            return false;
        if (strcmp(name, "--seed") == 0)
            asked->seed = strtoull(argv[i], NULL, 0);
        else if (strcmp(name, "--cases") == 0)
            asked->n_cases = atoll(argv[i]);
        else if (strcmp(name, "--case") == 0)
            asked->only_case = atoll(argv[i]);
        else if (strcmp(name, "--op") != 0 ||
                 (asked->only_op = ptac_op_find(argv[i])) == PTAC_N_OPS)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    options asked;
    bool fine = true, todo[PTAC_N_OPS] = {false};
    int n_ops = 0, n_rows;

    if (!read_options(argc, argv, &asked)) {
        fprintf(stderr, "usage: checkrows [--bench | --count] [--seed N] [--cases N] "
                        "[--op NAME [--case K]]\n");
        return 2;
    }
    arena_prepare();
    if (the_device.begin)
        the_device.begin();
    faults_watch(name_of_buffer);
    printf("checkrows --seed %llu on %s, %s\n", (unsigned long long)asked.seed,
           ptac_cpu_model(), ptac_isa_name(ptac_cpu_isa()));
    for (int op = 0; op < PTAC_N_OPS; op++) {
        if (asked.only_op != PTAC_N_OPS && op != (int)asked.only_op)
            continue;
        if (!is_checkable((ptac_op)op, &n_rows))
            fine = false;
        else if (n_rows > 0)
            todo[op] = ++n_ops;
    }
    for (int op = 0; op < PTAC_N_OPS; op++)
        if (todo[op] && asked.benches)
            time_op(&asked, generators[op]);
        else if (todo[op] && asked.counts)
            fine &= count_op(generators[op]);
        else if (todo[op])
            fine &= check_op(&asked, generators[op]);
    forget_case();
    printf("%s: %d operators\n", fine ? "passed" : "FAILED", n_ops);
    return fine ? 0 : 1;
}

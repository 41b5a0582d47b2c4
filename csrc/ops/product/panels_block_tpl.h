/*
 * panels_block_tpl.h - a block of rows times a panel, summed in registers.
 *
 *     registers of sums        8 rows of AVX-512: 0 to 23    4 rows of AVX2: 0 to 11
 *     the panel's vectors                        24 to 26                   12 to 14
 *     one weight                                       27                         15
 *
 * A term costs a row one load and up to three multiply-adds. Assembly, because gcc 12
 * moves sums of the same loop in intrinsics, and takes pointers to rows from memory.
 */
#include "ops/product/product_registers.h"

enum {
    BLOCK_ROWS = PRODUCT_REGISTERS == 32 ? 8 : 4,
    PANEL_VECTORS = 3,
    LINE = 64,
};

/* What a block reads and where its sums go. */
typedef struct block_place {
    const float *weight, *next; /* of the rows; what is fetched meanwhile */
    int64_t row;                /* from row to row */
    const float *panel;         /* [n_terms, vectors] */
    int64_t n_terms;
    float *sums; /* [rows, vectors] */
} block_place;

#if PRODUCT_REGISTERS == 32
#define VECTORS VECTORS_32
#define REG     "%%zmm"
#define SIZE    "64"
#define X0      REG "24"
#define X1      REG "25"
#define X2      REG "26"
#define ONE     REG "27"
#else
#define VECTORS VECTORS_16
#define REG     "%%ymm"
#define SIZE    "32"
#define X0      REG "12"
#define X1      REG "13"
#define X2      REG "14"
#define ONE     REG "15"
#endif

/* DO(where a row's weight is, registers of its sums). */
#define EACH_OF_4(DO)                                                                  \
    DO("(%[weight])", 0, 1, 2)                                                         \
    DO("(%[weight], %[row])", 3, 4, 5)                                                 \
    DO("(%[weight], %[row], 2)", 6, 7, 8)                                              \
    DO("(%[weight_3])", 9, 10, 11)
#define EACH_OF_8(DO)                                                                  \
    EACH_OF_4(DO)                                                                      \
    DO("(%[weight], %[row], 4)", 12, 13, 14)                                           \
    DO("(%[weight_3], %[row], 2)", 15, 16, 17)                                         \
    DO("(%[weight], %[row_3], 2)", 18, 19, 20)                                         \
    DO("(%[weight_3], %[row], 4)", 21, 22, 23)
#if PRODUCT_REGISTERS == 32
#define EACH(DO) EACH_OF_8(DO)
#else
#define EACH(DO) EACH_OF_4(DO)
#endif

#define CLEAR(i)            "vxorps " REG #i ", " REG #i ", " REG #i "\n\t"
#define CLEAR_1(w, i, j, k) CLEAR(i)
#define CLEAR_2(w, i, j, k) CLEAR(i) CLEAR(j)
#define CLEAR_3(w, i, j, k) CLEAR(i) CLEAR(j) CLEAR(k)

#define LOAD_1 "vmovups (%[panel]), " X0 "\n\t"
#define LOAD_2 LOAD_1 "vmovups " SIZE "(%[panel]), " X1 "\n\t"
#define LOAD_3 LOAD_2 "vmovups 2*" SIZE "(%[panel]), " X2 "\n\t"

#define ADD(x, i)         "vfmadd231ps " ONE ", " x ", " REG #i "\n\t"
#define ADD_1(w, i, j, k) "vbroadcastss " w ", " ONE "\n\t" ADD(X0, i)
#define ADD_2(w, i, j, k) ADD_1(w, i, j, k) ADD(X1, j)
#define ADD_3(w, i, j, k) ADD_2(w, i, j, k) ADD(X2, k)

#define STORE(at, i)        "vmovups " REG #i ", " at "(%[sums])\n\t"
#define PASS(n)             "addq $" #n "*" SIZE ", %[sums]\n\t"
#define STORE_1(w, i, j, k) STORE("", i) PASS(1)
#define STORE_2(w, i, j, k) STORE("", i) STORE(SIZE, j) PASS(2)
#define STORE_3(w, i, j, k) STORE("", i) STORE(SIZE, j) STORE("2*" SIZE, k) PASS(3)

/* With every second term a line of the next row, behind the last row the next line. */
#define FETCH                                                                          \
    "testq $1, %[n_terms]\n\t"                                                         \
    "jz 2f\n\t"                                                                        \
    "prefetcht1 (%[next])\n\t"                                                         \
    "addq %[row], %[next]\n\t"                                                         \
    "decl %[n_rows]\n\t"                                                               \
    "jnz 2f\n\t"                                                                       \
    "movl %[all_rows], %[n_rows]\n\t"                                                  \
    "addq %[back], %[next]\n"                                                          \
    "2:\n\t"

#define SUM(n)                                                                         \
    EACH(CLEAR_##n)                                                                    \
    ".p2align 5\n"                                                                     \
    "1:\n\t" FETCH LOAD_##n                                                            \
    EACH(ADD_##n) "addq $4, %[weight]\n\t"                                             \
                  "addq $4, %[weight_3]\n\t"                                           \
                  "addq $" #n "*" SIZE ", %[panel]\n\t"                                \
                  "decq %[n_terms]\n\t"                                                \
                  "jnz 1b\n\t" EACH(STORE_##n)

#define BLOCK(n)                                                                       \
    TARGET static void sum_block_##n(const block_place *b)                             \
    {                                                                                  \
        const float *weight = b->weight, *weight_3 = weight + 3 * b->row;              \
        const float *next = b->next, *panel = b->panel;                                \
        const int64_t row = b->row * (int64_t)sizeof(float);                           \
        int64_t n_terms = b->n_terms;                                                  \
        int n_rows = BLOCK_ROWS;                                                       \
        float *sums = b->sums;                                                         \
                                                                                       \
        __asm__ volatile(                                                              \
            SUM(n)                                                                     \
            : [weight] "+&r"(weight), [weight_3] "+&r"(weight_3), [next] "+&r"(next),  \
              [panel] "+&r"(panel), [n_terms] "+&r"(n_terms), [sums] "+&r"(sums),      \
              [n_rows] "+&r"(n_rows)                                                   \
            : [row] "r"(row), [row_3] "r"(3 * row),                                    \
              [back] "r"(LINE - BLOCK_ROWS * row), [all_rows] "i"(BLOCK_ROWS)          \
            : "memory", "cc", VECTORS);                                                \
    }
BLOCK(1)
BLOCK(2)
BLOCK(3)

/* By vectors; n_terms is not 0. */
static void (*const sum_blocks[PANEL_VECTORS + 1])(const block_place *) = {
    NULL, sum_block_1, sum_block_2, sum_block_3};

#undef BLOCK
#undef SUM
#undef FETCH
#undef STORE_3
#undef STORE_2
#undef STORE_1
#undef PASS
#undef STORE
#undef ADD_3
#undef ADD_2
#undef ADD_1
#undef ADD
#undef LOAD_3
#undef LOAD_2
#undef LOAD_1
#undef CLEAR_3
#undef CLEAR_2
#undef CLEAR_1
#undef CLEAR
#undef EACH
#undef EACH_OF_8
#undef EACH_OF_4
#undef ONE
#undef X2
#undef X1
#undef X0
#undef SIZE
#undef REG
#undef VECTORS

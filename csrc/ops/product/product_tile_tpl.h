/*
 * product_tile_tpl.h - a tile of rows times a panel of columns, summed in registers.
 *
 * A panel is two vectors of columns, term by term. A tile has an accumulator for both
 * in each row of its own, and its floats lie term by term, too:
 *
 *     registers of sums           14 rows of AVX-512: 0 to 27    6 of AVX2: 0 to 11
 *     one float, in turns                             28, 29                12, 13
 *     the panel's vectors                             30, 31                14, 15
 *
 * A term costs a row one load and two multiply-adds. Assembly, because gcc 12 spills
 * sums of the same loop in intrinsics.
 */
#include "ops/product/product_registers.h"

enum {
    TILE_ROWS = PRODUCT_REGISTERS == 32 ? 14 : 6,
    TILE_COLUMNS = 2 * LANES,
    TILE_LINE = 16, /* floats of a cache line */
};

/*
 * The i-th line of the columns of a panel's first term, which may begin within one;
 * NULL: they have no more, or there is no panel.
 */
INLINE const float *line_of_panel(const float *columns, int64_t i)
{
    return columns && i <= TILE_COLUMNS / TILE_LINE
               ? columns + ptac_least(i * TILE_LINE, TILE_COLUMNS - 1)
               : NULL;
}

/* What a tile reads and where its sums go. */
typedef struct tile_place {
    const float *rows;  /* [n_terms, n_rows] */
    const float *panel; /* [n_terms, TILE_COLUMNS] */
    int64_t panel_term; /* from term to term of the panel */
    int64_t n_terms;
    float *y;
    int64_t y_row;
    bool adds;          /* to what is in y */
    const float *bias;  /* [TILE_COLUMNS], added last; or NULL */
    const float *ahead; /* what is fetched meanwhile, a line with each term; or NULL */
    int64_t ahead_term; /* from line to line */
} tile_place;

#if PRODUCT_REGISTERS == 32
#define VECTORS VECTORS_32
#define REG     "%%zmm"
#define HALF    "64"
#define EVEN    REG "28"
#define ODD     REG "29"
#define LOW     REG "30"
#define HIGH    REG "31"
#else
#define VECTORS VECTORS_16
#define REG     "%%ymm"
#define HALF    "32"
#define EVEN    REG "12"
#define ODD     REG "13"
#define LOW     REG "14"
#define HIGH    REG "15"
#endif

/* DO(row, register of its low sums, of its high sums, of its float). */
#define EACH_1(DO)  DO(0, 0, 1, EVEN)
#define EACH_2(DO)  EACH_1(DO) DO(1, 2, 3, ODD)
#define EACH_3(DO)  EACH_2(DO) DO(2, 4, 5, EVEN)
#define EACH_4(DO)  EACH_3(DO) DO(3, 6, 7, ODD)
#define EACH_5(DO)  EACH_4(DO) DO(4, 8, 9, EVEN)
#define EACH_6(DO)  EACH_5(DO) DO(5, 10, 11, ODD)
#define EACH_7(DO)  EACH_6(DO) DO(6, 12, 13, EVEN)
#define EACH_8(DO)  EACH_7(DO) DO(7, 14, 15, ODD)
#define EACH_9(DO)  EACH_8(DO) DO(8, 16, 17, EVEN)
#define EACH_10(DO) EACH_9(DO) DO(9, 18, 19, ODD)
#define EACH_11(DO) EACH_10(DO) DO(10, 20, 21, EVEN)
#define EACH_12(DO) EACH_11(DO) DO(11, 22, 23, ODD)
#define EACH_13(DO) EACH_12(DO) DO(12, 24, 25, EVEN)
#define EACH_14(DO) EACH_13(DO) DO(13, 26, 27, ODD)

#define CLEAR(i, low, high, one)                                                       \
    "vxorps " REG #low ", " REG #low ", " REG #low "\n\t"                              \
    "vxorps " REG #high ", " REG #high ", " REG #high "\n\t"
#define MULTIPLY(i, low, high, one)                                                    \
    "vbroadcastss 4*" #i "(%[rows]), " one "\n\t"                                      \
    "vfmadd231ps " one ", " LOW ", " REG #low "\n\t"                                   \
    "vfmadd231ps " one ", " HIGH ", " REG #high "\n\t"
#define ADD_BEFORE(i, low, high, one)                                                  \
    "vaddps (%[rows]), " REG #low ", " REG #low "\n\t"                                 \
    "vaddps " HALF "(%[rows]), " REG #high ", " REG #high "\n\t"                       \
    "addq %[y_row], %[rows]\n\t"
#define ADD_BIAS(i, low, high, one)                                                    \
    "vaddps " LOW ", " REG #low ", " REG #low "\n\t"                                   \
    "vaddps " HIGH ", " REG #high ", " REG #high "\n\t"
#define STORE(i, low, high, one)                                                       \
    "vmovups " REG #low ", (%[y])\n\t"                                                 \
    "vmovups " REG #high ", " HALF "(%[y])\n\t"                                        \
    "addq %[y_row], %[y]\n\t"

#define SUM_TILE(n)                                                                    \
    EACH_##n(                                                                          \
        CLEAR) ".p2align 6\n"                                                          \
               "1:\n\t"                                                                \
               "vmovups (%[panel]), " LOW "\n\t"                                       \
               "vmovups " HALF "(%[panel]), " HIGH "\n\t" EACH_##n(                    \
                   MULTIPLY) "addq $4*" #n ", %[rows]\n\t"                             \
                             "addq %[panel_term], %[panel]\n\t"                        \
                             "prefetcht0 (%[ahead])\n\t"                               \
                             "addq %[ahead_term], %[ahead]\n\t"                        \
                             "decq %[n_terms]\n\t"                                     \
                             "jnz 1b\n\t"                                              \
                             "testl %[adds], %[adds]\n\t"                              \
                             "jz 2f\n\t"                                               \
                             "movq %[y], %[rows]\n\t" EACH_##n(                        \
                                 ADD_BEFORE) "2:\n\t"                                  \
                                             "testq %[bias], %[bias]\n\t"              \
                                             "jz 3f\n\t"                               \
                                             "vmovups (%[bias]), " LOW "\n\t"          \
                                             "vmovups " HALF "(%[bias]), " HIGH        \
                                             "\n\t" EACH_##n(                          \
                                                 ADD_BIAS) "3:\n\t" EACH_##n(STORE)

#define TILE(n)                                                                        \
    TARGET static void tile_##n(const tile_place *t)                                   \
    {                                                                                  \
        const float *rows = t->rows, *panel = t->panel;                                \
        int64_t n_terms = t->n_terms;                                                  \
        const float *ahead = t->ahead ? t->ahead : t->panel;                           \
        float *y = t->y;                                                               \
                                                                                       \
        for (int i = 0; i < (n); i++) {                                                \
            __builtin_prefetch(y + i * t->y_row, 1, 2);                                \
            __builtin_prefetch(y + i * t->y_row + LANES, 1, 2);                        \
        }                                                                              \
        __asm__ volatile(                                                              \
            SUM_TILE(n)                                                                \
            : [rows] "+&r"(rows), [panel] "+&r"(panel), [n_terms] "+&r"(n_terms),      \
              [y] "+&r"(y), [ahead] "+&r"(ahead)                                       \
            : [panel_term] "r"(t->panel_term * (int64_t)sizeof(float)),                \
              [y_row] "r"(t->y_row * (int64_t)sizeof(float)),                          \
              [ahead_term] "r"(t->ahead_term * (int64_t)sizeof(float)),                \
              [adds] "r"((int)t->adds), [bias] "r"(t->bias)                            \
            : "memory", "cc", VECTORS);                                                \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#if PRODUCT_REGISTERS == 32
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
TILE(13)
TILE(14)
#endif

typedef void (*tile_fn)(const tile_place *tile);

/* By rows. */
static const tile_fn tiles[TILE_ROWS + 1] = {
    NULL,   tile_1, tile_2, tile_3,  tile_4,  tile_5,  tile_6,
#if PRODUCT_REGISTERS == 32
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12, tile_13, tile_14,
#endif
};

#undef TILE
#undef SUM_TILE
#undef STORE
#undef ADD_BIAS
#undef ADD_BEFORE
#undef MULTIPLY
#undef CLEAR
#undef HIGH
#undef LOW
#undef ODD
#undef EVEN
#undef HALF
#undef REG
#undef VECTORS
